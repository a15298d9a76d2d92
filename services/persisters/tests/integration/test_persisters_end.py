"""The end of a task whose sink is frozen: it leaves its group within the limit, with the right exit code."""

from __future__ import annotations

import time
from typing import Any

import pytest
from persisters_stores import Store
from persisters_world import BASE_MS, Broker, Persisters

from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit

pytest_plugins = ("persisters_fixtures",)
pytestmark = [pytest.mark.integration, pytest.mark.faults]


def members(broker: Broker, group: str) -> int:
    """How many members a group has."""
    admin = clients.admin(broker.kafka, "test")
    described: Any = admin.describe_consumer_groups([group])[group].result(60)
    return len(described.members)


def test_a_frozen_sink_does_not_hold_the_end_of_its_task(broker: Broker, store: Store, persister: Persisters) -> None:
    """The session is so long that only a member that leaves by itself is removed from its group."""
    written = broker.aggregates(10, range(2), revision=BASE_MS)
    task = persister(broker, store)
    limits = {"drain_timeout_ms": 3_000, "shutdown_timeout_ms": 12_000, "session_timeout_ms": 45_000}
    task.start(**limits)
    task.until_read(len(written))
    store.server.pause()
    try:
        written += broker.aggregates(10, range(2, 4), revision=BASE_MS)
        task.until("a write waits", lambda: task.gauge("lag_records") > 0)
        began_s = time.monotonic()
        code = task.stop()
        took_s = time.monotonic() - began_s
        assert members(broker, task.group) == 0, task.log()
    finally:
        store.server.resume()
    assert code == Exit.DEADLINE, task.log()
    assert "not drained within the deadline" not in task.log(), f"ended by force after {took_s:.1f} s"
    task.start(**limits)
    task.until_read(len(written))
    task.until("all there", lambda: not store.problems(written))
    assert task.stop() == Exit.OK, task.log()
