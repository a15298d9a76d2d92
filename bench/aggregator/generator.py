"""The load generator of the aggregator's benches: readings in Avro, concatenated from parts that are encoded once.

    python bench/aggregator/generator.py BOOTSTRAP TOPIC SCHEMA_ID --devices N --readings N [--rate N] [--begin-ms MS]

With a rate, the readings are produced at that rate and carry the time of production. Without a rate they are produced
as fast as Kafka accepts them, and carry times from `--begin-ms` on that correspond to 115,741 readings a second. Prints
a line of JSON at the end: how many readings were acknowledged, and in how many seconds.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import sys
import time
from collections.abc import Iterator

import fastavro

from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings

HEADLINE_RATE = 115_741
"""Readings a second; ten billion a day."""

AT_ONCE = 2_000
"""Readings of one batch, which have the same times."""

MARK = "mark-"
"""Prefix of the devices of the last reading in each partition, which lets time advance."""

_QUEUED = 400_000
_MAX_DELAY_MS = 2_000
"""Largest difference between ingest time and event time. Every tenth batch is up to this much out of order."""


def _long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _long(len(encoded)) + encoded


class Readings:
    """Makes values of SensorReading version 1. Device and value are encoded once, the times once for each batch."""

    def __init__(self, schema_id: int, devices: int) -> None:
        self._header = b"\x00" + schema_id.to_bytes(4, "big")
        self.keys = [f"device-{number:06d}".encode() for number in range(devices)]
        self._heads = [self._head(key.decode(), 15.0 + number % 200 / 10) for number, key in enumerate(self.keys)]

    def batch(self, first: int, count: int, ingest_time_ms: int) -> list[dict[str, bytes]]:
        """Return `count` readings from number `first` on, one device after the other."""
        devices = len(self.keys)
        times = _long(event_time_ms(first, ingest_time_ms)) + _long(ingest_time_ms)
        tail = times + _long(first // devices) + b"\x00"
        heads, keys = self._heads, self.keys
        return [
            {"key": keys[number % devices], "value": heads[number % devices] + tail}
            for number in range(first, first + count)
        ]

    def mark(self, number: int, time_ms: int) -> bytes:
        """Return a reading of a separate device whose event time equals its ingest time."""
        return self._head(f"{MARK}{number}", 0.0) + _long(time_ms) + _long(time_ms) + _long(0) + b"\x00"

    def _head(self, device_id: str, value: float) -> bytes:
        return self._header + _text(device_id) + _text("temperature") + struct.pack("<d", value) + _text("Cel")


def event_time_ms(first: int, ingest_time_ms: int) -> int:
    """Return the event time of the batch that begins with number `first`.

    All are on time, and one of ten batches is up to two seconds out of order.
    """
    batch = first // AT_ONCE
    return ingest_time_ms - batch % (50 if batch % 10 else _MAX_DELAY_MS)


def replayed_ms(first: int, begin_ms: int) -> int:
    """Return the ingest time of the batch that begins with number `first`, at 115,741 readings a second."""
    return begin_ms + first * 1000 // HEADLINE_RATE


def batch_starts(rate: int, readings: int) -> Iterator[int]:
    """Yield the first number of each batch at the time at which it is due at `rate` readings a second."""
    begin = time.perf_counter()
    for first in range(0, readings, AT_ONCE):
        ahead_s = first / rate - (time.perf_counter() - begin)
        if ahead_s > 0:
            time.sleep(ahead_s)  # The offered rate does not depend on the readers.
        yield first


def main() -> int:
    """Produce, and print how many readings were acknowledged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("schema_id", type=int)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--readings", type=int, required=True)
    parser.add_argument("--rate", type=int, default=0, help="readings a second; 0: as fast as Kafka takes them")
    parser.add_argument("--begin-ms", type=int, default=0)
    parser.add_argument("--mark-ms", type=int, help="end with one reading of this time in each partition")
    arguments = parser.parse_args()
    producer = clients.producer(
        KafkaSettings(bootstrap_servers=arguments.bootstrap),
        "bench-generator",
        linger_ms=20,
        batch_num_messages=20_000,
        batch_size=1_000_000,
        queue_buffering_max_messages=2 * _QUEUED,
    )
    readings = Readings(arguments.schema_id, arguments.devices)
    begin = time.perf_counter()
    firsts = (
        batch_starts(arguments.rate, arguments.readings) if arguments.rate else range(0, arguments.readings, AT_ONCE)
    )
    for first in firsts:
        time_ms = time.time_ns() // 1_000_000 if arguments.rate else replayed_ms(first, arguments.begin_ms)
        count = min(AT_ONCE, arguments.readings - first)
        batch = readings.batch(first, count, time_ms)
        if arguments.rate:
            producer.produce_batch(arguments.topic, batch)
        else:
            # Each record carries its ingest time as timestamp, and produce_batch accepts no timestamps.
            for record in batch:
                producer.produce(arguments.topic, record["value"], record["key"], timestamp=time_ms)
        while len(producer) > _QUEUED:
            producer.poll(0.01)
        producer.poll(0)
    if arguments.mark_ms is not None:
        for number in producer.list_topics(arguments.topic, timeout=30).topics[arguments.topic].partitions:
            value = readings.mark(number, arguments.mark_ms)
            producer.produce(
                arguments.topic,
                key=f"{MARK}{number}",
                value=value,
                partition=number,
                timestamp=arguments.mark_ms,
            )
    left = producer.flush(120)
    seconds = time.perf_counter() - begin
    json.dump({"readings": arguments.readings - left, "seconds": seconds, "cpu_s": time.process_time()}, sys.stdout)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
