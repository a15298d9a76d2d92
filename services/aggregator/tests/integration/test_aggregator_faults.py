"""Kills and outages over the life of an aggregator, and what must be in Kafka afterwards: everything, and correct.

The test reads the topics and recounts in plain Python. Time advances by the readings alone (`advance_when_idle` is
off), so a reading waits for a slow test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from aggregator_given import SETTINGS, Given, assert_all_is_right, has_no_lag, has_read
from aggregator_world import Process, Topics, wait_for

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long]

KILLS = 5
YEARS_AHEAD = "device|0%"


@pytest.fixture
def topics(kafka: Kafka, registry: Registry, request: pytest.FixtureRequest) -> Topics:
    return Topics.declared(kafka, registry, f"aggregator-{request.node.name}"[:100])


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

    assert_all_is_right(given)
    assert sum(record.category == "late" for record in given.records) > 0.09 * len(given.records)
    assert YEARS_AHEAD not in {device_id for (device_id, *_), _ in given.published()}
