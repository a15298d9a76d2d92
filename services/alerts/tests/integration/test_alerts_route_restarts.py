"""A route that tells each alert by itself, with a real Kafka: its process is killed amid a storm."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alerts_world import Topics, Worker, until
from route_targets import Incidents

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

MANY, BEFORE = 2_000, 5


def records(topics: Topics, numbers: range, opened_ms: int, state: str = "opened") -> list[dict[str, Any]]:
    """Alerts of devices in all partitions."""
    common = {
        "rule": "above", "severity": "warning", "state": state, "opened_at": opened_ms, "updated_at": opened_ms,
        "closed_at": opened_ms + 1 if state == "closed" else None, "metric": "temperature", "value": 31.0,
        "threshold": 30.0, "message": "hot",
    }  # fmt: skip
    names = [f"{topics.name}-{number:05}" for number in numbers]
    return [{"alert_id": f"{name}/above/temperature/{opened_ms}", "device_id": name, **common} for name in names]


def test_a_process_that_is_killed_amid_a_storm_leaves_one_incident_that_ends(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics, target = Topics(kafka.bootstrap_servers, registry.url), Incidents()
    topics.declare()
    route = {
        "kind": "pagerduty", "name": "pager", "secret_routing_key": "k", "url": target.url, "group_wait_ms": 1_000,
        "group_interval_ms": 1_000,
    }  # fmt: skip
    workers: list[Worker] = []

    def start() -> Worker:
        workers.append(Worker(topics, tmp_path, free_port(), routes=[route]))
        return workers[-1].start()

    now_ms = time.time_ns() // 1_000_000
    try:
        first = start()
        topics.publish(topics.alerts, records(topics, range(BEFORE), now_ms))
        until("the first alerts are told", lambda: len(target.open) == BEFORE)
        topics.publish(topics.alerts, records(topics, range(BEFORE, MANY), now_ms))
        until("the storm is told", lambda: len(target.open) == BEFORE + 1)
        topics.publish(topics.alerts, records(topics, range(BEFORE, MANY // 2), now_ms, "closed"))
        first.kill()
        topics.publish(topics.alerts, records(topics, range(MANY, MANY + 500), now_ms))
        second = start()
        until(
            "all is told", lambda: second.counted("route_pending") == 0 and second.counted("route_alerts_total") >= 500
        )
        assert len(target.open) == len(target.pages) == BEFORE + 1
        topics.publish(topics.alerts, records(topics, range(BEFORE), now_ms, "closed"))
        topics.publish(topics.alerts, records(topics, range(MANY // 2, MANY + 500), now_ms, "closed"))
        until("every incident has ended", lambda: target.open == [])
    finally:
        for worker in workers:
            worker.kill()
        target.close()
    assert len(target.pages) == BEFORE + 1
    assert target.events <= 100
