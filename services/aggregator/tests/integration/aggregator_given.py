"""Readings whose category is known, and what an aggregator must make of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aggregator_world import (
    DEADLINE_S,
    READING,
    RULES,
    Process,
    Record,
    Topics,
    identity,
    make_records,
    produce,
)
from confluent_kafka import TopicPartition

from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker

LATER_MS = 600_000
SETTINGS = {"advance_when_idle": False, "group_attributes": ""}
"""For an aggregator whose time advances by these readings alone."""


class Given:
    """The readings of a test, and the expected category of each."""

    def __init__(self, topics: Topics, readings: int, span_ms: int, late_share: float, years_ahead: str = "") -> None:
        self.topics = topics
        registry = SchemaRegistry(topics.registry)
        self.decode = avro.Decoder(registry)
        self.encode = registry.encoder(topics.input, READING)
        self._producer = clients.producer(topics.kafka, topics.name)
        begin_ms = time.time_ns() // 1_000_000 - span_ms - LATER_MS
        self.end_ms = begin_ms + span_ms
        self.newest_ms = self.end_ms + RULES.max_skew_ms
        """No reading on time was measured later, apart from the one that completes all windows."""
        self.records = make_records(
            self.encode, begin_ms, readings=readings, span_ms=span_ms, late_share=late_share, years_ahead=years_ahead
        )

    def put(self, records: list[Record]) -> None:
        """Produce some of them."""
        produce(self._producer, self.topics.input, records)
        assert self._producer.flush(120) == 0

    def complete(self) -> None:
        """Produce a reading of ten minutes later, which finishes every window but its own."""
        at_ms = self.end_ms + LATER_MS
        reading = {
            "device_id": "clock",
            "metric": "temperature",
            "value": 0.0,
            "unit": "Cel",
            "event_time": at_ms,
            "ingest_time": at_ms,
            "sequence": 0,
            "attributes": {},
        }
        self.put([Record("clock", b"clock", self.encode(reading), "on-time", ingest_ms=at_ms)])

    def windows(self, rules: checker.Rules = RULES) -> dict[Any, Any]:
        """The recount."""
        return checker.expected_windows((r.reading for r in self.records if r.reading is not None), rules)

    def published(self) -> list[tuple[Any, Mapping[str, Any]]]:
        """Key and row of all that is in the output topic."""
        rows = [dict(self.decode(message.value() or b"").record) for message in self.topics.read(self.topics.output)]
        return [(checker.window_key(row), row) for row in rows]


def has_read(process: Process, records: int = 1, *, by: Sequence[str] = ("windows",)) -> bool:
    """Whether each of these queries has read so many records, or passed over them."""
    found = process.metrics()
    return all(found.get(f'isotherm_aggregator_input_records_total{{query="{name}"}}', 0) >= records for name in by)


def has_no_lag(process: Process, topics: Topics) -> bool:
    """Whether the stateless query has read everything."""
    found = process.metrics()
    name = 'isotherm_aggregator_lag_records{{partition="{}",query="rejects",topic="{}"}}'
    return all(found.get(name.format(number, topics.input)) == 0 for number in range(4))


def kill_at_next_record(topics: Topics, topic: str, process: Process) -> None:
    """Kill driver and JVM as soon as a topic grows."""
    consumer = clients.consumer_to_the_end(topics.kafka, "kill", isolation_level="read_uncommitted")
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, n), 60)[1] for n in range(topics.partitions)]
        consumer.assign([TopicPartition(topic, number, end) for number, end in enumerate(ends)])
        deadline, found = time.monotonic() + DEADLINE_S, None
        while found is None or found.error() is not None:
            assert time.monotonic() < deadline, process.log_text()[-3_000:]
            found = consumer.poll(DEADLINE_S)
    finally:
        consumer.close()
    for pid in process.jvm_pids()[-1:]:
        os.kill(pid, signal.SIGKILL)
    process.kill()


def assert_all_is_right(given: Given) -> None:
    """Compare the output topics with a recount: all is there, right, and if twice then the same."""
    rows = given.published()
    found, problems = checker.latest(rows)
    assert problems == []
    assert checker.mismatches(given.windows(), found) == []
    repeated: dict[Any, set[str]] = {}
    for key, row in rows:
        repeated.setdefault(key, set()).add(repr(row))
    assert [key for key, different in repeated.items() if len(different) > 1] == []
    late = {record.identity for record in given.records if record.category == "late"}
    dead = {record.identity for record in given.records if record.category not in ("late", "on-time")}
    assert {identity(message) for message in given.topics.read(given.topics.late)} == late
    assert {identity(message) for message in given.topics.read(given.topics.dead)} == dead
