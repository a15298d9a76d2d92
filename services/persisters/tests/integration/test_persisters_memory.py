"""How much memory a persister takes while its sink takes nothing."""

from __future__ import annotations

import sys

import psutil
import pytest
from persisters_stores import Store
from persisters_world import BASE_MS, Broker, Persister, Persisters

pytest_plugins = ("persisters_fixtures",)
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.faults, pytest.mark.timeout(900)]

FEW, MANY = 10_000, 1_000_000
ALLOWED_MB = 100.0
STEADY_ROUNDS = 100
"""So many looks, a tenth of a second apart, without a new highest figure."""


def highest_resident_mb(task: Persister) -> float:
    """The highest figure, once it does not rise any more."""
    assert task.process is not None
    process = psutil.Process(task.process.pid)
    highest, rounds = 0, 0

    def is_steady() -> bool:
        nonlocal highest, rounds
        found = process.memory_info().rss
        highest, rounds = max(highest, found), 0 if found > highest else rounds + 1
        return rounds >= STEADY_ROUNDS

    task.until("steady memory", is_steady)
    return highest / 1e6


def test_a_frozen_sink_with_a_million_waiting_records(
    broker: Broker, store: Store, persister: Persisters, capsys: pytest.CaptureFixture[str]
) -> None:
    task = persister(broker, store)
    broker.aggregates(1, range(1), revision=BASE_MS)
    task.start()
    task.until_read(1)
    store.server.pause()
    try:
        broker.aggregates(10, range(1, 1 + FEW // 10), revision=BASE_MS)
        task.until(f"{FEW} waiting", lambda: task.gauge("lag_records") == FEW)
        before_mb = highest_resident_mb(task)
        broker.aggregates(10, range(1 + FEW // 10, 1 + MANY // 10), revision=BASE_MS)
        task.until(f"{MANY} waiting", lambda: task.gauge("lag_records") == MANY)
        after_mb = highest_resident_mb(task)
        figures = f"{store.sink}: {FEW} waiting {before_mb:.0f} MB, {MANY} waiting {after_mb:.0f} MB"
        with capsys.disabled():
            sys.stdout.write(f"\n{figures}\n")
        assert after_mb - before_mb < ALLOWED_MB, figures
    finally:
        task.kill()
        store.server.resume()
