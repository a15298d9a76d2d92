"""The memory of a persister while its sink accepts nothing."""

from __future__ import annotations

import sys
from typing import Any

import psutil
import pytest
from persisters_stores import MapStore, Store
from persisters_world import BASE_MS, Broker, Persister, Persisters

pytest_plugins = ("persisters_fixtures",)
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.faults]

FEW, MANY = 10_000, 1_000_000
ALLOWED_MB = 100.0
PARTITIONS = 100
OF_MANY_PARTITIONS_MB = 400.0
"""298 MB were measured: 52,000 records that wait or are in batches, decoded, and what the client has fetched. Without a
limit on the records in batches it was 559 MB."""
STEADY_ROUNDS = 100
"""This many samples, a tenth of a second apart, without a new maximum."""


def highest_resident_mb(task: Persister) -> float:
    """The maximum, once it does not rise any more."""
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


def test_a_hundred_partitions_hold_the_bound(
    kafka: Any, registry: Any, map_store: MapStore, persister: Persisters, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sink accepts nothing, so that every partition buffer is full."""
    broker = Broker(kafka.bootstrap_servers, registry.url, partitions=PARTITIONS)
    task = persister(broker, map_store)
    broker.aggregates(1, range(1), revision=BASE_MS)
    task.start()
    task.until_read(1)
    before_mb = highest_resident_mb(task)
    map_store.server.pause()
    try:
        broker.aggregates(1_000, range(1, 1 + MANY // 1_000), revision=BASE_MS)
        task.until(f"{MANY} waiting", lambda: task.gauge("lag_records") == MANY)
        after_mb = highest_resident_mb(task)
        figures = f"{PARTITIONS} partitions, {MANY} waiting: {after_mb:.0f} MB, {after_mb - before_mb:.0f} MB more"
        with capsys.disabled():
            sys.stdout.write(f"\n{figures}\n")
        assert after_mb - before_mb < OF_MANY_PARTITIONS_MB, figures
    finally:
        task.kill()
        map_store.server.resume()


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
