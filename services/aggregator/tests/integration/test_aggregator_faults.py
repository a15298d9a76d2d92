"""Kills and outages over the life of an aggregator, and what must be in Kafka afterwards: everything, and correct.

The test reads the topics and recounts in plain Python. Time advances by the readings alone (`advance_when_idle` is
off), so a reading waits for a slow test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aggregator_given import SETTINGS, Given
from aggregator_world import READING, Process, Topics, identity, wait_for

from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1_800)]

KILLS = 5
YEARS_AHEAD = "device|0%"


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
    late = {record.identity for record in given.records if record.category == "late"}
    dead = {record.identity for record in given.records if record.category not in ("late", "on-time")}
    assert len(late) > 0.09 * len(given.records)
    assert {identity(message) for message in topics.read(topics.late)} == late
    assert {identity(message) for message in topics.read(topics.dead)} == dead
    assert YEARS_AHEAD not in {device_id for device_id, *_ in found}
