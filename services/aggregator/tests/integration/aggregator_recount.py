"""A recount of a whole topic with one process for each core, for topics that are too large for `checker`.

Plain Python over what Kafka holds, as in `checker`, and none of the aggregator's code. A window's keys lie on one
partition, because a device does; so partitions are counted apart.
"""

from __future__ import annotations

import io
import json
import math
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import fastavro
from confluent_kafka import TopicPartition

from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.settings import KafkaSettings
from isotherm.simulators import checker
from isotherm.simulators.checker import Rules, WindowKey

_HEADER_BYTES = 5
_AT_ONCE = 10_000
_TIMEOUT_S = 60.0


class _Window:
    """Count, sum, least, greatest, and the sums of the distances from the first value and of their squares."""

    __slots__ = ("count", "first", "greatest", "least", "moved", "squares", "total")

    def __init__(self, first: float) -> None:
        self.first = self.least = self.greatest = first
        self.count, self.total, self.moved, self.squares = 0, 0.0, 0.0, 0.0

    def add(self, value: float) -> None:
        distance = value - self.first
        self.count += 1
        self.total += value
        self.moved += distance
        self.squares += distance * distance
        if value < self.least:
            self.least = value
        if value > self.greatest:
            self.greatest = value

    def statistics(self) -> dict[str, float]:
        variance = max(0.0, self.squares / self.count - (self.moved / self.count) ** 2)
        return {
            "count": self.count,
            "sum": self.total,
            "mean": self.total / self.count,
            "min": self.least,
            "max": self.greatest,
            "stddev": math.sqrt(variance),
        }


def recount(
    settings: KafkaSettings, topic: str, partitions: int, schema: Mapping[str, Any], rules: Rules
) -> tuple[int, dict[WindowKey, dict[str, float]]]:
    """How many committed records the topic has, and every window of those that are on time.

    All values are in Confluent's wire format and of one writer `schema`, with times in epoch ms. Raises TimeoutError
    when Kafka does not answer.
    """
    text = json.dumps(_without_logical_types(schema))
    # Not forked: librdkafka's threads of this process would not live in the children.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        counts = [
            pool.submit(_partition, settings.bootstrap_servers, topic, number, text, rules)
            for number in range(partitions)
        ]
        windows: dict[WindowKey, dict[str, float]] = {}
        records = 0
        for count in counts:
            read, found = count.result()
            records += read
            windows.update(found)
    return records, windows


def _partition(
    bootstrap: str, topic: str, number: int, schema: str, rules: Rules
) -> tuple[int, dict[WindowKey, dict[str, float]]]:
    parsed = fastavro.parse_schema(json.loads(schema))
    consumer = clients.consumer_to_the_end(KafkaSettings(bootstrap_servers=bootstrap), "recount")
    consumer.assign([TopicPartition(topic, number, 0)])
    windows: dict[WindowKey, _Window] = {}
    records = 0
    try:
        while True:
            messages = consume_available(consumer, _AT_ONCE, _TIMEOUT_S)
            if not messages:
                raise TimeoutError(f"{topic}-{number} gave nothing for {_TIMEOUT_S:.0f} s")
            for message in messages:
                if message.error() is not None:
                    return records, {key: window.statistics() for key, window in windows.items()}
                records += 1
                body = io.BytesIO((message.value() or b"")[_HEADER_BYTES:])
                _count(windows, fastavro.schemaless_reader(body, parsed, None), rules)
    finally:
        consumer.close()


def _count(windows: dict[WindowKey, _Window], reading: Any, rules: Rules) -> None:
    if checker.classify(reading, rules) != "on-time":
        return
    for start, end in checker.windows_of(reading["event_time"], rules):
        key = (reading["device_id"], reading["metric"], start, end)
        window = windows.get(key)
        if window is None:
            window = windows[key] = _Window(reading["value"])
        window.add(reading["value"])


def _without_logical_types(schema: Any) -> Any:
    """The schema with times as plain numbers, which is how `checker` takes them, and quicker to read."""
    if isinstance(schema, Mapping):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    if isinstance(schema, list):
        return [_without_logical_types(value) for value in schema]
    return schema
