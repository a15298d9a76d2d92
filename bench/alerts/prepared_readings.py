"""Prepared batches of readings: the SensorReadings of many devices go to Kafka as fast as the broker takes them.

Each device has a place in a record batch that is encoded once. A round of all devices patches what changes, times,
sequence and value, compresses the batch and sends it by Kafka's protocol; no client encodes records one by one.

    python bench/alerts/prepared_readings.py HOST:PORT TOPIC SCHEMA_ID --devices 1200000 --rate 115741 --seconds 600

Prints, when it has ended, how many readings it wrote and how far it was behind its plan at most.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from aiokafka.codec import lz4_encode
from aiokafka.record.util import calc_crc32c

import isotherm.schemas
from isotherm.servicekit.avro import encoder

AT_ONCE = 1_000
"""Records of a batch."""
HOT_SHARE = 10_000
"""One reading of so many is too hot; the device's next one is not."""
FIRST_SEQUENCE = 100_000
"""From here to a million a sequence number has the same length in Avro."""
MILD, HOT = 20.0, 35.0
_PRODUCE, _PRODUCE_VERSION = 0, 3
_LZ4, _TIME_BYTES, _SEQUENCE_BYTES, _VALUE_BYTES = 3, 6, 3, 8
_STEP, _ROUND_STEP = 7_919, 104_729
"""Primes, so that hot readings are spread over devices and rounds."""


def device_name(number: int) -> str:
    """Return the id of a device."""
    return f"device-{number:07}"


def partition_of(name: str, partitions: int) -> int:
    """Return the partition of a device, in the input and in the changelog."""
    return int(name.removeprefix("device-")) % partitions


def is_hot(devices: np.ndarray, round_number: int) -> np.ndarray:
    """Return which devices give a reading that is too hot in a round."""
    hot: np.ndarray = (devices * _STEP + round_number * _ROUND_STEP) % HOT_SHARE == 0
    return hot


def _long(number: int) -> bytes:
    """Return a long of Avro, which is also a varint of Kafka."""
    zigzag, found = (number << 1) ^ (number >> 63), bytearray()
    while zigzag > 0x7F:
        found.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    found.append(zigzag)
    return bytes(found)


@dataclass
class PreparedBatch:
    """The records of some devices of a partition, one each, as a batch without compression."""

    partition: int
    devices: np.ndarray
    records: np.ndarray
    """The bytes of all records."""
    values_at: np.ndarray
    """Where the value of each record is; the times and the sequence follow at the same distance in each."""
    times_after: int
    """From a value to its event time, which the ingest time and the sequence follow."""

    def of_round(self, round_number: int, at_ms: int) -> bytes:
        """Return the batch with the readings of a round, measured at `at_ms` (epoch ms)."""
        count = len(self.devices)
        values = MILD + (self.devices + round_number) % 7 * 0.1
        values[is_hot(self.devices, round_number)] = HOT
        self._patch(self.values_at, values.astype("<f8").view(np.uint8).reshape(count, _VALUE_BYTES))
        time_bytes, sequence = _long(at_ms), _long(FIRST_SEQUENCE + round_number)
        assert len(time_bytes) == _TIME_BYTES
        assert len(sequence) == _SEQUENCE_BYTES
        tail = np.frombuffer(time_bytes + time_bytes + sequence, np.uint8)
        self._patch(self.values_at + self.times_after, np.broadcast_to(tail, (count, len(tail))))
        body: bytes = lz4_encode(self.records.tobytes())
        # From the attributes on, which the checksum covers.
        checked = struct.pack(">hiqqqhii", _LZ4, count - 1, at_ms, at_ms, -1, -1, -1, count) + body
        head = struct.pack(">iBI", -1, 2, calc_crc32c(checked))
        batch: bytes = struct.pack(">qi", 0, len(head) + len(checked)) + head + checked
        return batch

    def _patch(self, at: np.ndarray, found: np.ndarray) -> None:
        self.records[at[:, None] + np.arange(found.shape[1])] = found


def prepare(devices: int, partitions: int, schema_id: int) -> list[PreparedBatch]:
    """Return the batches of all devices, in the order in which a round writes them: the partitions in turn."""
    encode = encoder(isotherm.schemas.schema("SensorReading", 1), schema_id)
    at_ms = time.time_ns() // 1_000_000
    by_partition = [range(number, devices, partitions) for number in range(partitions)]
    return [
        _prepared(encode, partition, numbers[begin : begin + AT_ONCE], at_ms)
        for begin in range(0, len(by_partition[0]), AT_ONCE)
        for partition, numbers in enumerate(by_partition)
        if begin < len(numbers)
    ]


def _prepared(encode: object, partition: int, numbers: range, at_ms: int) -> PreparedBatch:
    assert callable(encode)
    parts, values_at, length = list[bytes](), list[int](), 0
    times_after = 0
    for index, number in enumerate(numbers):
        name = device_name(number)
        fields = {
            "device_id": name,
            "metric": "temperature",
            "value": MILD,
            "unit": "Cel",
            "event_time": at_ms,
            "ingest_time": at_ms,
            "sequence": FIRST_SEQUENCE,
            "attributes": {},
        }
        value = encode(fields)
        key = name.encode()
        body = b"\0" + _long(0) + _long(index) + _long(len(key)) + key + _long(len(value)) + value + _long(0)
        record = _long(len(body)) + body
        values_at.append(length + len(record) - len(_long(0)) - len(value) + value.index(struct.pack("<d", MILD)))
        times_after = value.index(_long(at_ms)) - value.index(struct.pack("<d", MILD))
        parts.append(record)
        length += len(record)
    records = np.frombuffer(bytearray(b"".join(parts)), np.uint8)
    return PreparedBatch(partition, np.array(numbers, np.int64), records, np.array(values_at), times_after)


class BatchWriter:
    """Writes record batches to the leader of all partitions, the only broker."""

    def __init__(self, address: str, topic: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 60)
        self._answers = self._socket.makefile("rb")
        self._topic = topic
        self._unanswered = 0

    def write(self, partition: int, batch: bytes) -> None:
        """Send a batch, and wait for an earlier answer when several are outstanding. Raises RuntimeError."""
        topic = self._topic.encode()
        body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">ih", 1, len(topic)) + topic
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        head = struct.pack(">hhih", _PRODUCE, _PRODUCE_VERSION, 0, 5) + b"bench"
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        self._unanswered += 1
        if self._unanswered > 4:
            self._answer()

    def flush(self) -> None:
        """Wait for all answers. Raises RuntimeError."""
        while self._unanswered:
            self._answer()

    def _answer(self) -> None:
        (length,) = struct.unpack(">i", self._answers.read(4))
        answer = self._answers.read(length)
        self._unanswered -= 1
        # Correlation, topics, name, partitions, partition, error.
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(self._topic) + 4 + 4)
        if error:
            raise RuntimeError(f"Kafka refuses a batch with error {error}")


def rounds(batches: list[PreparedBatch], first_round: int) -> Iterator[tuple[PreparedBatch, int]]:
    """Yield the batches with the number of their round, for ever."""
    number = first_round
    while True:
        for batch in batches:
            yield batch, number
        number += 1


def main() -> None:
    """Write at a rate for a while, and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("schema_id", type=int)
    parser.add_argument("--devices", type=int, default=1_200_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rate", type=int, default=115_741)
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    batches = prepare(arguments.devices, arguments.partitions, arguments.schema_id)
    writer = BatchWriter(arguments.address, arguments.topic)
    begin_s, written, hot, behind_s = time.monotonic(), 0, 0, 0.0
    for batch, number in rounds(batches, 1):
        due_s = begin_s + written / arguments.rate
        if due_s - begin_s >= arguments.seconds:
            break
        now_s = time.monotonic()
        if now_s < due_s:
            time.sleep(due_s - now_s)
        behind_s = max(behind_s, now_s - due_s)
        writer.write(batch.partition, batch.of_round(number, time.time_ns() // 1_000_000))
        written += len(batch.devices)
        hot += int(is_hot(batch.devices, number).sum())
    writer.flush()
    print(json.dumps({"readings": written, "hot": hot, "behind_s": round(behind_s, 2)}))


if __name__ == "__main__":
    main()
