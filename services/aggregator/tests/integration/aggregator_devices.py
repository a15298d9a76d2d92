"""Devices that measure in real time, and a recount of the windows that follow from their topic."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

from aggregator_world import READING, Topics
from confluent_kafka import Message

from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry, WireFormatError
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker


class Devices:
    """Devices that keep measuring, and one whose readings are delayed."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._encode = SchemaRegistry(topics.registry).encoder(topics.input, READING)
        self._producer = clients.producer(topics.kafka, topics.name)
        self._chance = random.Random(5)
        self._sent = 0

    def reading(self, device_id: str) -> bytes:
        """A value that was measured and received now."""
        now_ms = time.time_ns() // 1_000_000
        self._sent += 1
        reading = {"device_id": device_id, "metric": "temperature", "value": 20.0, "unit": "Cel"}
        times = {"event_time": now_ms, "ingest_time": now_ms, "sequence": self._sent, "attributes": {}}
        return self._encode({**reading, **times})

    def send(self, values: dict[str, bytes], producer: Any = None) -> None:
        for name, value in values.items():
            headers: list[tuple[str, str | bytes | None]] = [("identity", name.encode())]
            (producer or self._producer).produce(
                self._topics.input, key=name.partition("#")[0], value=value, headers=headers
            )
        (producer or self._producer).flush(30)

    def go_on(self) -> None:
        """One round: every partition gets readings, and one in twenty records cannot be read."""
        values = {}
        for number in range(2 * self._topics.partitions):
            value = self.reading(f"d{number}")
            values[f"d{number}#{self._sent}"] = b"?" if self._chance.random() < 0.05 else value
        self.send(values)

    def many(self, device_id: str, count: int) -> dict[str, bytes]:
        return {f"{device_id}#{number}": self.reading(device_id) for number in range(count)}


def recounted(stored: list[Message], decoder: avro.Decoder, rules: checker.Rules) -> dict[Any, dict[str, float]]:
    """The windows that the topic makes, by the time at which the broker appended each reading."""
    return checker.expected_windows(_readings(stored, decoder), rules)


def _readings(stored: list[Message], decoder: avro.Decoder) -> Iterator[Mapping[str, Any]]:
    for message in stored:
        try:
            record = dict(decoder(message.value() or b"").record)
        except WireFormatError:
            continue
        yield record | {"appended_time": message.timestamp()[1]}
