"""Aggregates as the input: a device's windows are on several partitions, and all of them lead to its alerts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alerts_world import PARTITIONS, Topics, Worker, until

from isotherm.servicekit.kafka import clients
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

WINDOW_MS = 1_000
RULES = [
    {"kind": "above", "metric": "temperature", "threshold": 30},
    {"kind": "silent", "interval_ms": 1_000, "intervals": 10, "min_ms": 1_000},
]


def write(topics: Topics, device_id: str, start_ms: int, means: list[float], revision: int) -> None:
    """Write windows of a device, each to the partition after the one before; one that is no record is among them."""
    producer = clients.producer(topics.kafka, "alerts-test")
    for index, mean in enumerate(means):
        begin_ms = start_ms + index * WINDOW_MS
        record: dict[str, Any] = {"device_id": device_id, "metric": "temperature", "count": 1, "stddev": 0.0}
        record |= {"window_start": begin_ms, "window_end": begin_ms + WINDOW_MS, "revision": revision}
        value = topics.encode(topics.input, record | dict.fromkeys(("sum", "mean", "min", "max"), mean))
        key = f"{device_id}|temperature|{begin_ms}|{begin_ms + WINDOW_MS}"
        # Each is written later than the one before, as windows are.
        at_ms = begin_ms + WINDOW_MS
        producer.produce(topics.input, key=key, value=value, partition=index % PARTITIONS, timestamp=at_ms)
    producer.produce(topics.input, key=f"{device_id}|poison", value=b"no frame", partition=0, timestamp=start_ms)
    assert producer.flush(60) == 0


def abort(topics: Topics, at_ms: int) -> None:
    """Write a window to every partition in a transaction that is aborted: its marker is the last that each holds."""
    producer = clients.producer(topics.kafka, "aborts", transactional_id=f"{topics.name}-aborts")
    producer.init_transactions(60)
    producer.begin_transaction()
    record: dict[str, Any] = {"device_id": "aborted", "metric": "temperature", "count": 1, "stddev": 0.0}
    record |= {"window_start": at_ms - WINDOW_MS, "window_end": at_ms, "revision": 1}
    value = topics.encode(topics.input, record | dict.fromkeys(("sum", "mean", "min", "max"), 99.0))
    for number in range(PARTITIONS):
        producer.produce(topics.input, key="aborted", value=value, partition=number, timestamp=at_ms)
    assert producer.flush(60) == 0
    producer.abort_transaction(60)


def test_windows_on_several_partitions_open_and_close_one_alert(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url, record="TemperatureAggregate")
    topics.declare()
    begin_ms = time.time_ns() // 1_000_000 // WINDOW_MS * WINDOW_MS - 20 * WINDOW_MS
    means: list[float] = [20, 20, 31, 32, 33, 31, 20, 20]
    opened_ms, closed_ms = begin_ms + 3 * WINDOW_MS, begin_ms + 7 * WINDOW_MS
    # The service comes late: one partition after the other would be read if nothing held them together.
    write(topics, "d", begin_ms, means, revision=1)
    abort(topics, begin_ms)
    worker = Worker(topics, tmp_path, free_port(), rules=RULES, max_publish_delay_ms=0, reorder_ms=500).start()
    try:
        until("the alert is closed", lambda: len(topics.alerts_of("d", "above")) == 2)
        opened, closed = topics.alerts_of("d", "above")
        assert (opened["state"], opened["opened_at"], opened["value"]) == ("opened", opened_ms, 31.0)
        assert (closed["state"], closed["closed_at"], closed["alert_id"]) == ("closed", closed_ms, opened["alert_id"])
        # Time goes on behind the markers too.
        until("it is silent", lambda: len(topics.alerts_of("d", "silent")) == 1)
        (silent,) = topics.alerts_of("d", "silent")
        assert silent["opened_at"] == begin_ms + (len(means) + 10) * WINDOW_MS
        until("there is a dead-letter record", lambda: worker.counted("dead_letters_total") == 1)
        assert [one.value() for one in topics.messages(topics.dead)] == [b"no frame"]

        worker.kill()
        # Corrections of windows that had their turn: also after a crash a past alert is not rewritten.
        write(topics, "d", begin_ms, [99.0] * len(means), revision=2)
        write(topics, "after", begin_ms, [31.0], revision=1)
        worker.start()
        until("it goes on", lambda: bool(topics.alerts_of("after", "above")))
        until("the corrections are read", lambda: worker.counted("readings_filtered_total") >= len(means))
        assert {state for _, state in topics.distinct_alerts()} == {"opened", "closed"}
        assert {one["updated_at"] for one in topics.alerts_of("d", "above")} == {opened_ms, closed_ms}
        forwarded = topics.messages(f"{topics.name}-repartition")
        assert {one.key() for one in forwarded} == {b"d", b"after"}
        assert len({one.partition() for one in forwarded if one.key() == b"d"}) == 1
        assert {one.value() for one in forwarded} < {one.value() for one in topics.messages(topics.input)}
        assert worker.stop() == 0
    finally:
        worker.kill()
