"""Kafka goes away while the service runs, and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from alerts_world import Topics, Worker, until

from simulators.scripted_day import temperature
from stack.kafka import Kafka
from stack.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long]

RULES = [{"kind": "above", "metric": "temperature", "threshold": 30}]


@pytest.mark.timeout(900)
def test_the_same_process_goes_on_when_kafka_is_back(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url)
    topics.declare()
    worker = Worker(topics, tmp_path, free_port(), rules=RULES, read_slack_ms=0).start()
    try:
        pid = worker.pid
        begin_ms = time.time_ns() // 1_000_000
        topics.publish(topics.input, [temperature("before", 31, begin_ms, 1)])
        until("an alert before", lambda: len(topics.alerts_of("before", "above")) == 1)
        kafka.kill()
        until("it says that it is not ready", lambda: not worker.is_ready())
        kafka.start()
        kafka.wait_ready()
        topics.publish(
            topics.input, [temperature("before", 20, begin_ms + 1_000, 2), temperature("after", 31, begin_ms, 1)]
        )
        until("an alert after", lambda: len(topics.alerts_of("after", "above")) == 1)
        until("the alert from before is closed", lambda: len(topics.alerts_of("before", "above")) >= 2)
        until("it is ready", worker.is_ready)
        assert worker.pid == pid
        states = [one["state"] for one in topics.alerts_of("before", "above")]
        assert states == ["opened", "closed"]
        assert worker.stop() == 0
    finally:
        worker.kill()
