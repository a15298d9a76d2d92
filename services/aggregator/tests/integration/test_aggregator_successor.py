"""A running aggregator is replaced by one with other partitions of its state and another window: nothing is missing.

Time advances by the readings alone, so that hours of event time take seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from aggregator_given import Given, has_read
from aggregator_world import MAX_PUBLISH_DELAY_MS, READING, RULES, Process, Record, Topics, identity, wait_for

from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(2_400)]

SPAN_MS = 900_000
OVERLAP_MS = 120_000
TIMEOUT_S = 900.0
"""With 32 partitions a batch has 32 tasks, which take minutes beside other tests."""
FORMER_WINDOW_MS, WINDOW_MS = 60_000, 30_000
SETTINGS = {"advance_when_idle": False, "group_attributes": "", "boundary_overlap_ms": OVERLAP_MS}


@pytest.fixture
def given(kafka: Kafka, registry: Registry) -> Given:
    topics = Topics(kafka.bootstrap_servers, registry.url, "aggregator-successor")
    topics.declare([READING])
    return Given(topics, readings=9_000, span_ms=SPAN_MS, late_share=0.1)


def expected(given: Given, boundary_ms: int) -> dict[checker.WindowKey, dict[str, float]]:
    """The former windows up to the boundary, and the new ones from it on."""
    windows: dict[checker.WindowKey, dict[str, float]] = {}
    for window_ms, is_former in ((FORMER_WINDOW_MS, True), (WINDOW_MS, False)):
        rules = checker.Rules(window_ms, RULES.allowed_lateness_ms, RULES.max_skew_ms)
        windows |= {key: row for key, row in given.windows(rules).items() if (key[2] < boundary_ms) == is_former}
    return windows


def before(given: Given, time_ms: int) -> list[Record]:
    return [record for record in given.records if (record.ingest_ms or 0) < time_ms]


def test_partitions_and_window_change_while_it_runs(given: Given, tmp_path: Path, free_port: Callable[[], int]) -> None:
    topics = given.topics
    begin_ms = given.end_ms - SPAN_MS
    boundary_ms = (begin_ms + SPAN_MS // 2) // FORMER_WINDOW_MS * FORMER_WINDOW_MS
    first = before(given, boundary_ms - OVERLAP_MS - MAX_PUBLISH_DELAY_MS)
    given.put(first)
    former_settings = {**SETTINGS, "window_ms": FORMER_WINDOW_MS, "shuffle_partitions": 8}

    def start_former(**more: object) -> Process:
        return Process(topics, tmp_path / "former", free_port(), **former_settings, **more)

    with start_former() as running:
        wait_for(lambda: has_read(running), "the first batch", running, TIMEOUT_S)
        assert running.terminate() == 0

    with start_former(publish_until=boundary_ms) as former:
        wait_for(lambda: has_read(former) or former.ready().get("ready", False), "the former one", former, TIMEOUT_S)
        # Some readings on either side of the boundary come before the successor is there.
        until = len(before(given, boundary_ms + OVERLAP_MS // 2))
        given.put(given.records[len(first) : until])
        successor_settings = {**SETTINGS, "window_ms": WINDOW_MS, "shuffle_partitions": 32}
        name = f"{topics.name}-2"
        with Process(
            topics, tmp_path / "successor", free_port(), name=name, publish_from=boundary_ms, **successor_settings
        ) as successor:
            wait_for(lambda: has_read(successor), "the successor's first batch", successor, TIMEOUT_S)
            given.put(given.records[until:])
            given.complete()
            wait_for(
                lambda: former.metrics().get("isotherm_aggregator_halted") == 1,
                "the former one's end",
                former,
                TIMEOUT_S,
            )
            assert former.is_running(), "a supervisor would start it again"
            assert former.terminate() == 0
            every = expected(given, boundary_ms).keys()
            wait_for(lambda: {key for key, _ in given.published()} >= every, "every window", successor, TIMEOUT_S)
            assert successor.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
            late = {record.identity for record in given.records if record.category == "late"}
            wait_for(
                lambda: {identity(m) for m in topics.read(topics.late)} >= late, "late readings", successor, TIMEOUT_S
            )
            assert successor.terminate() == 0

    published = given.published()
    found, problems = checker.latest(published)
    assert problems == []
    assert checker.mismatches(expected(given, boundary_ms), found) == []
    keys = [key for key, _ in published]
    assert len(keys) == len(set(keys)), "a window was published twice"
    # By identity: a query that met a new schema id had written a part of its batch, and writes it again.
    dead = {record.identity for record in given.records if record.category not in ("on-time", "late")}
    assert {identity(message) for message in topics.read(topics.late)} == late
    assert {identity(message) for message in topics.read(topics.dead)} == dead
