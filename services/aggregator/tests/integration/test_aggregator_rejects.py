"""The query of rejects passes over what the windowed query found clean, and finds every rejected record (ADR 264)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from aggregator_given import SETTINGS, Given, assert_all_is_right, has_no_lag, has_read
from aggregator_world import Process, Topics, wait_for

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

READINGS, SPAN_MS = 8_000, 120_000
CHUNKS = 6
PASSED_OVER = "isotherm_aggregator_records_passed_over_total"


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    return Topics.declared(kafka, registry, "aggregator-rejects")


@pytest.mark.long
def test_clean_records_are_passed_over_and_no_rejected_one_is(
    topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    given = Given(topics, READINGS, SPAN_MS, late_share=0.05)
    clean = [record for record in given.records if record.category == "on-time"]
    rejected = [record for record in given.records if record.category != "on-time"]
    assert len(rejected) > 300
    size = -(-len(clean) // CHUNKS)
    chunks = [clean[begin : begin + size] for begin in range(0, len(clean), size)]

    with Process(topics, tmp_path / "checkpoint", free_port(), **SETTINGS) as process:
        for number, chunk in enumerate(chunks[:-1], 1):
            given.put(chunk)
            is_read = partial(has_read, process, number * size, by=("windows", "rejects"))
            wait_for(is_read, "clean records to be read", process)
        passed_over = process.metrics()[PASSED_OVER]
        # The first batches are read, until both queries are side by side.
        assert passed_over >= size
        given.put(rejected)
        wait_for(lambda: len(topics.read(topics.late)) > 0, "the first late reading", process)
        given.put(chunks[-1])
        process.kill()
    with Process(topics, tmp_path / "checkpoint", free_port(), **SETTINGS) as process:
        given.complete()
        wait_for(lambda: len(given.published()) >= len(given.windows()), "every window", process)
        wait_for(lambda: has_no_lag(process, topics), "all records to be read", process)
        assert process.terminate() == 0
    assert_all_is_right(given)
