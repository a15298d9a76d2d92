"""Several tasks of one connector: they share its partitions, and all end when one fails."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from persisters_stores import MapStore
from persisters_world import BASE_MS, Broker, Persisters

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration


def test_tasks_share_the_partitions_and_a_failed_one_ends_the_connector(
    broker: Broker, map_store: MapStore, persister: Persisters
) -> None:
    written = broker.aggregates(20, range(5), revision=BASE_MS)
    task = persister(broker, map_store, "tasks.max=2")
    task.start()
    task.until("all there", lambda: not map_store.problems(written))
    written += broker.aggregates(20, range(5, 10), revision=BASE_MS)
    task.until("all there", lambda: not map_store.problems(written))
    first, second = task.tasks()
    os.kill(first, signal.SIGKILL)
    assert task.exit_code() == 128 + signal.SIGKILL, task.log()
    assert not psutil.pid_exists(second)
    task.start()
    written += broker.aggregates(20, range(10, 12), revision=BASE_MS)
    task.until("all there", lambda: not map_store.problems(written))
    assert task.stop() == 0, task.log()
