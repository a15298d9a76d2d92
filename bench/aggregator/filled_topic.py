"""The input topic of the catch-up bench, filled once by the generator, and the windows that it must give."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from confluent_kafka import TopicPartition

import generator
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

_TIMEOUT_S = 30.0


def fill(kafka_settings: KafkaSettings, topic: str, schema_id: int, devices: int, *options: object) -> dict[str, float]:
    """Run the generator in a separate process; return its figures. Raises CalledProcessError."""
    command = [sys.executable, generator.__file__, kafka_settings.bootstrap_servers, topic, str(schema_id)]
    command += ["--devices", str(devices), *map(str, options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def expected_windows(devices: int, readings: int, begin_ms: int, window_ms: int) -> int:
    """Return in how many windows (of a device each) the generator's readings lie."""
    seen: dict[int, bytearray] = {}
    for first in range(0, readings, generator.AT_ONCE):
        time_ms = generator.event_time_ms(first, generator.replayed_ms(first, begin_ms))
        window = seen.setdefault(time_ms // window_ms, bytearray(devices))
        count = min(generator.AT_ONCE, readings - first, devices)
        begin = first % devices
        window[begin : begin + count] = b"\1" * min(count, devices - begin)
        window[: max(0, begin + count - devices)] = b"\1" * max(0, begin + count - devices)
    return sum(sum(window) for window in seen.values())


class Output:
    """The records that are written to a topic from now on."""

    def __init__(self, kafka_settings: KafkaSettings, registry: RegistrySettings, topic: str) -> None:
        self._settings = kafka_settings
        self._decode = Decoder(SchemaRegistry(registry))
        self._topic = topic
        self._watcher = clients.consumer(kafka_settings, "bench", "bench-output")
        self._begin = self._ends()

    def records(self) -> int:
        """Return the number of records since then, by offsets: the topic has no transactions."""
        return sum(self._ends().values()) - sum(self._begin.values())

    def windows_and_readings(self) -> tuple[int, int]:
        """Return the number of windows since then, and the sum of their counts, without the generator's marks."""
        ends = self._ends()
        consumer = clients.consumer(self._settings, "bench", "bench-output")
        consumer.assign([TopicPartition(self._topic, number, offset) for number, offset in self._begin.items()])
        keys: set[bytes] = set()
        readings, left = 0, self.records()
        while left > 0:
            messages = consumer.consume(min(left, 10_000), _TIMEOUT_S)
            if not messages:
                raise TimeoutError(f"{self._topic}: {left} records up to {ends} are missing")
            left -= len(messages)
            for message in messages:
                record = self._decode(message.value() or b"").record
                key = message.key() or b""
                if not record["device_id"].startswith(generator.MARK) and key not in keys:
                    keys.add(bytes(key))
                    readings += record["count"]
        consumer.close()
        return len(keys), readings

    def close(self) -> None:
        """Close the consumer."""
        self._watcher.close()

    def _ends(self) -> Mapping[int, int]:
        partitions = self._watcher.list_topics(self._topic, timeout=_TIMEOUT_S).topics[self._topic].partitions
        return {
            number: self._watcher.get_watermark_offsets(TopicPartition(self._topic, number), timeout=_TIMEOUT_S)[1]
            for number in partitions
        }
