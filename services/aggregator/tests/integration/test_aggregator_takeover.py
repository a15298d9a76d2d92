"""An aggregator that stood still while another one took over goes on where it was: nothing of what it does counts.

Only its process is stopped and let go on; the test says nothing to it, and chooses no moment of its work.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from aggregator_given import SETTINGS, Given, assert_all_is_right, has_no_lag, has_read
from aggregator_world import Process, Topics, wait_for

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long]

DROPPED = "isotherm_aggregator_rows_dropped_by_watermark_total"


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    return Topics.declared(kafka, registry, "aggregator-takeover")


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to an aggregator and to its newest Spark."""
    for pid in (process.pid, process.jvm_pids()[-1]):
        os.kill(pid, number)


def is_standby(process: Process) -> bool:
    return "held by" in str(process.ready().get("problems", {}).get("checkpoint", ""))


def test_a_holder_that_stood_still_changes_nothing(
    topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    given = Given(topics, readings=12_000, span_ms=120_000, late_share=0.1)
    half = len(given.records) // 2

    def start() -> Process:
        # Many small batches, so that it stands still in the midst of one.
        return Process(topics, tmp_path / "run", free_port(), max_offsets_per_trigger=600, trigger_ms=50, **SETTINGS)

    given.put(given.records[:half])
    with start() as former:
        wait_for(lambda: len(given.published()) > 0, "the first windows", former)
        (its_spark,) = former.jvm_pids()
        send(former, signal.SIGSTOP)
        try:
            with start() as newer:
                wait_for(lambda: has_read(newer), "the first batch of the newer one", newer)
                send(former, signal.SIGCONT)
                given.put(given.records[half:])
                given.complete()
                wait_for(lambda: is_standby(former), "the former one as a standby", former)
                wait_for(lambda: not Path(f"/proc/{its_spark}").exists(), "the end of its Spark", former)
                expected = given.windows()
                wait_for(lambda: {key for key, _ in given.published()} >= expected.keys(), "every window", newer)
                wait_for(lambda: has_no_lag(newer, topics), "the stateless query", newer)
                assert newer.metrics()[DROPPED] == 0
                assert newer.terminate() == 0
        finally:
            # A Spark that stands still would outlive the test.
            with suppress(ProcessLookupError):
                os.kill(its_spark, signal.SIGCONT)
        wait_for(lambda: len(former.jvm_pids()) == 2 and former.ready().get("ready", False), "its return", former)
        assert former.metrics()[DROPPED] == 0
        assert former.terminate() == 0
    assert_all_is_right(given)
