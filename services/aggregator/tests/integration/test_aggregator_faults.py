"""What an aggregator is put through over its life, and what has to be in Kafka afterwards: all of it, and right.

The judge reads the topics and recounts in plain Python. Time goes on by the readings alone (`idle_flush` off), so a
reading waits for a slow test.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aggregator_world import (
    READING,
    RULES,
    Process,
    Record,
    Topics,
    identity,
    make_records,
    produce,
    settings_of,
    wait_for,
)

from servicekit import avro
from servicekit import kafka as clients
from servicekit.avro import SchemaRegistry
from simulators import checker
from stack.kafka import Kafka
from stack.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1_800)]

KILLS = 5
YEARS_AHEAD = "device|0%"
LATER_MS = 600_000
SETTINGS = {"idle_flush": False, "group_attributes": ""}


class Given:
    """The readings of a test, and what has to become of them."""

    def __init__(self, topics: Topics, readings: int, span_ms: int, late_share: float, years_ahead: str = "") -> None:
        self.topics = topics
        registry = SchemaRegistry(topics.registry)
        self.decode = avro.Decoder(registry)
        self._encode = registry.encoder(topics.input, READING)
        self._producer = clients.producer(topics.kafka, topics.name)
        begin_ms = time.time_ns() // 1_000_000 - span_ms - LATER_MS
        self.end_ms = begin_ms + span_ms
        self.records = make_records(
            self._encode, begin_ms, readings=readings, span_ms=span_ms, late_share=late_share, years_ahead=years_ahead
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
        self.put([Record("clock", b"clock", self._encode(reading), "on-time")])

    def windows(self, rules: checker.Rules = RULES) -> dict[Any, Any]:
        """The recount."""
        return checker.expected_windows((r.reading for r in self.records if r.reading is not None), rules)

    def published(self) -> list[tuple[Any, Mapping[str, Any]]]:
        """Key and row of all that is in the output topic."""
        rows = [dict(self.decode(message.value() or b"").record) for message in self.topics.read(self.topics.output)]
        return [(checker.window_key(row), row) for row in rows]


@pytest.fixture
def topics(kafka: Kafka, registry: Registry, request: pytest.FixtureRequest) -> Topics:
    declared = Topics(kafka.bootstrap_servers, registry.url, f"aggregator-{request.node.name}"[:100])
    declared.declare([READING])
    return declared


def has_read(process: Process) -> bool:
    """Whether the windowed query has finished a batch."""
    return process.metrics().get('isotherm_aggregator_input_records_total{query="windows"}', 0) > 0


def has_no_lag(process: Process, topics: Topics) -> bool:
    """Whether the stateless query has read everything."""
    found = process.metrics()
    name = 'isotherm_aggregator_lag_records{{partition="{}",query="rejects",topic="{}"}}'
    return all(found.get(name.format(number, topics.input)) == 0 for number in range(4))


def test_five_kills_and_a_broker_restart_leave_every_window_right(
    kafka: Kafka, topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    given = Given(topics, readings=60_000, span_ms=240_000, late_share=0.1, years_ahead=YEARS_AHEAD)
    part = len(given.records) // (KILLS + 1)

    def start() -> Process:
        return Process(topics, tmp_path / "checkpoint", free_port(), max_offsets_per_trigger=2_000, **SETTINGS)

    for number in range(KILLS):
        given.put(given.records[number * part : (number + 1) * part])
        with start() as process:
            wait_for(partial(has_read, process), "the first batch", process)
            process.kill()
    given.put(given.records[KILLS * part :])
    given.complete()

    expected = given.windows()
    with start() as last:
        wait_for(lambda: has_read(last), "the first batch", last)
        kafka.kill()
        kafka.start()
        kafka.wait_ready()
        wait_for(lambda: {key for key, _ in given.published()} >= expected.keys(), "every window", last)
        wait_for(lambda: has_no_lag(last, topics), "the stateless query", last)
        assert last.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
        assert last.terminate() == 0

    rows = given.published()
    found, problems = checker.latest(rows)
    assert problems == []
    assert checker.mismatches(expected, found) == []
    repeated: dict[Any, set[str]] = {}
    for key, row in rows:
        repeated.setdefault(key, set()).add(repr(row))
    assert [key for key, different in repeated.items() if len(different) > 1] == []
    late = {record.identity for record in given.records if record.fate == "late"}
    dead = {record.identity for record in given.records if record.fate not in ("late", "on-time")}
    assert len(late) > 0.09 * len(given.records)
    assert {identity(message) for message in topics.read(topics.late)} == late
    assert {identity(message) for message in topics.read(topics.dead)} == dead
    assert YEARS_AHEAD not in {device_id for device_id, *_ in found}


def test_a_hundred_thousand_late_readings_are_put_into_their_windows(
    topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    given = Given(topics, readings=220_000, span_ms=900_000, late_share=0.5)
    whole = checker.Rules(RULES.window_ms, allowed_lateness_ms=10**15, max_skew_ms=RULES.max_skew_ms)
    late = sum(record.fate == "late" for record in given.records)
    expected, before = given.windows(whole), given.windows()
    assert late >= 100_000
    assert len({(start, end) for _, _, start, end in expected}) >= 50
    given.put(given.records)
    given.complete()

    folder = tmp_path / "checkpoint"
    with Process(topics, folder, free_port(), max_offsets_per_trigger=50_000, **SETTINGS) as process:
        wait_for(lambda: {key for key, _ in given.published()} >= before.keys(), "every window", process)
        assert process.terminate() == 0
    published = given.published()
    found, problems = checker.latest(published)
    assert problems == []
    assert checker.mismatches(before, found) == []

    moments = min(start for _, _, start, _ in expected), max(end for *_, end in expected)
    command = [sys.executable, "-m", "aggregator", "recompute", "--from", str(moments[0]), "--to", str(moments[1])]
    command += ["--settled-ms", "0", *settings_of(topics, folder, **SETTINGS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3_000:]
    outcome = json.loads(done.stdout)
    assert outcome["late_readings"] == late

    corrected = given.published()
    found, problems = checker.latest(corrected)
    assert problems == []
    assert checker.mismatches(expected, found) == []
    revisions: dict[Any, set[int]] = {}
    for key, row in corrected:
        revisions.setdefault(key, set()).add(row["revision"])
    changed = {key for key in expected if expected[key] != before.get(key)}
    assert outcome["corrected_windows"] == len(changed)
    assert {key for key, seen in revisions.items() if outcome["revision"] in seen} == changed
