"""`topics.regex` as in Kafka Connect: the meaning of Java, topics that are created later, no internal topics."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from persisters_stores import MapStore
from persisters_world import BASE_MS, Broker, Persisters

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration


def test_topics_that_a_java_pattern_means_are_read_also_those_that_come_later(
    kafka: Any, registry: Any, map_store: MapStore, persister: Persisters
) -> None:
    prefix = f"sensor{uuid.uuid4().hex[:6]}"

    def made(name: str) -> Broker:
        return Broker(kafka.bootstrap_servers, registry.url, topic=f"{prefix}-{name}")

    first, other = made("1"), made("1x")
    written = first.aggregates(5, range(2), revision=BASE_MS)
    other.aggregates(5, range(50, 52), revision=BASE_MS)
    isotherm = Broker(kafka.bootstrap_servers, registry.url, topic=f"isotherm.{prefix}-7")
    isotherm.aggregates(5, range(60, 62), revision=BASE_MS)

    pattern = rf"topics.regex=(isotherm\\.)?{prefix}-\\d+"
    task = persister(first, map_store, pattern, written=map_store.lines("`*`"))
    task.start()
    task.until_read(len(written))
    assert map_store.problems(written) == []
    written += made("22").aggregates(5, range(2, 4), revision=BASE_MS)
    task.until_read(len(written))
    assert map_store.problems(written) == []
    assert task.stop() == 0


def test_a_pattern_without_a_topic_is_said_and_waits_for_one(
    kafka: Any, registry: Any, map_store: MapStore, persister: Persisters
) -> None:
    prefix = f"later{uuid.uuid4().hex[:6]}"
    elsewhere = Broker(kafka.bootstrap_servers, registry.url)
    pattern = rf"topics.regex={prefix}-\\d{{2}}"
    task = persister(elsewhere, map_store, pattern, written=map_store.lines("`*`"))
    task.start()
    task.until("said", lambda: prefix in task.problems().get("topics", ""))
    broker = Broker(kafka.bootstrap_servers, registry.url, topic=f"{prefix}-01")
    written = broker.aggregates(5, range(2), revision=BASE_MS)
    task.until_read(len(written))
    task.until("ready", lambda: not task.problems())
    assert map_store.problems(written) == []
    assert task.stop() == 0
