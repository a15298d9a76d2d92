"""An outage of Kafka while the service runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from alerts_world import Topics, Worker, until

from isotherm.simulators.scripted_day import temperature
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long]

RULES = [{"kind": "above", "metric": "temperature", "threshold": 30}]


def test_the_same_process_goes_on_when_kafka_is_back(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url)
    topics.declare()
    worker = Worker(topics, tmp_path, free_port(), rules=RULES, max_publish_delay_ms=0).start()
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


LIVE_LIMIT_S = 30.0
"""The number of loop iterations after which a service counts as dead."""


@pytest.mark.parametrize("how", ["paused", "killed"])
def test_it_lives_and_ends_in_time_while_kafka_is_away(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int], how: str
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url)
    topics.declare()
    worker = Worker(topics, tmp_path, free_port(), rules=RULES, max_publish_delay_ms=0).start()
    try:
        begin_ms = time.time_ns() // 1_000_000
        readings = [temperature(f"d-{number % 100}", 31, begin_ms + number, number) for number in range(20_000)]
        topics.publish(topics.input, readings)
        until("it is in the midst of them", lambda: worker.counted("readings_read_total") > 0)
        (kafka.pause if how == "paused" else kafka.kill)()
        try:
            assert worker.counted("readings_read_total") < len(readings)
            away_since = time.monotonic()

            def is_outlasted() -> bool:
                assert worker.is_live(), worker.log()
                return time.monotonic() - away_since > LIVE_LIMIT_S + 10

            until("it has lived through the limit", is_outlasted)
            assert not worker.is_ready()
            # Within its own limit, or the exit code were another one.
            assert worker.stop() == 0, worker.log()
        finally:
            (kafka.resume if how == "paused" else kafka.start)()
        kafka.wait_ready()
        worker.start()
        until("everything is read", lambda: topics.unread() == 0)
        opened = {key for key in topics.distinct_alerts() if key[1] == "opened"}
        assert opened == {(f"d-{number}/above/temperature/{begin_ms + number}", "opened") for number in range(100)}
        assert worker.stop() == 0
    finally:
        worker.kill()
