"""Readings that reach Kafka long after their ingest time, while windows of other readings are published.

In one run: readings that an outage held back, readings in a transaction that stays open meanwhile, and in every
partition records that nobody can read. Times are short; `tests/faults` has a real ingest service and a real outage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aggregator_devices import Devices, recounted
from aggregator_world import READING, Process, Topics, identity, wait_for

from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

DELAY_MS = 2_000
RULES = checker.Rules(window_ms=1_000, allowed_lateness_ms=1_000, max_skew_ms=1_000, publish_delay_ms=DELAY_MS)
PARTITIONS = 16
HELD, IN_TRANSACTION = 200, 100
SETTINGS = {
    "window_ms": RULES.window_ms,
    "allowed_lateness_ms": RULES.allowed_lateness_ms,
    "max_skew_ms": RULES.max_skew_ms,
    "max_publish_delay_ms": DELAY_MS,
    "read_margin_ms": 500,
    "group_attributes": "",
    # Devices send all the time, so each trigger finds something, and a batch costs the same whatever is in it.
    "rejects_trigger_ms": 2_000,
}


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    declared = Topics(kafka.bootstrap_servers, registry.url, "aggregator-held-back")
    declared.log_append_time = True
    declared.partitions = PARTITIONS
    declared.declare([READING])
    return declared


@pytest.mark.long
@pytest.mark.faults
def test_windows_late_and_dead_letters_are_the_topic(
    topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    devices, decoder = Devices(topics), avro.Decoder(SchemaRegistry(topics.registry))
    transactional = clients.producer(topics.kafka, topics.name, transactional_id=topics.name)
    transactional.init_transactions()

    def windows() -> dict[Any, Any]:
        rows = [dict(decoder(message.value() or b"").record) for message in topics.read(topics.output)]
        found, problems = checker.latest((checker.window_key(row), row) for row in rows)
        assert problems == []
        return found

    def go_on_until(condition: Callable[[], bool], what: str) -> None:
        def round_() -> bool:
            devices.go_on()
            return condition()

        wait_for(round_, what, process)

    with Process(topics, tmp_path / "checkpoint", free_port(), **SETTINGS) as process:
        go_on_until(lambda: len(windows()) > 0, "the first windows")
        held = devices.many("held", HELD)
        measured_ms = time.time_ns() // 1_000_000
        go_on_until(lambda: max(key[2] for key in windows()) > measured_ms, "windows after the held readings")
        transactional.begin_transaction()
        devices.send(devices.many("open", IN_TRANSACTION), transactional)
        begun_s = time.monotonic()
        go_on_until(lambda: time.monotonic() - begun_s > 2 * DELAY_MS / 1000, "a while")
        devices.send(held)
        transactional.commit_transaction()
        devices.go_on()

        stored = topics.read(topics.input)
        expected = recounted(stored, decoder, RULES)
        wait_for(lambda: windows().keys() >= expected.keys(), "every window, with nothing new to read", process)
        rejected = len(stored) - sum(int(window["count"]) for window in expected.values())
        wait_for(lambda: len(topics.read(topics.late) + topics.read(topics.dead)) >= rejected, "the rejects", process)
        dropped = process.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"]
        assert process.terminate() == 0

    found, late, dead = windows(), topics.read(topics.late), topics.read(topics.dead)
    assert checker.mismatches(expected, found) == []
    late_ones, dead_ones = ({identity(message) for message in each} for each in (late, dead))
    assert late_ones >= held.keys()
    assert sum(row["count"] for row in found.values()) + len(late_ones) + len(dead_ones) == len(stored)
    in_windows = sum(row["count"] for key, row in found.items() if key[0] == "open")
    # On a machine that stands still for a moment some are appended late, and so are late.
    assert in_windows + sum(name.startswith("open#") for name in late_ones) == IN_TRANSACTION
    assert len(dead) > 0
    assert dropped == 0


def test_a_topic_without_the_brokers_time_is_not_begun_with(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url, "aggregator-untimed")
    topics.declare([READING])
    with Process(topics, tmp_path / "checkpoint", free_port(), require_log_append_time=True) as process:
        wait_for(lambda: "LogAppendTime" in process.ready().get("problems", {}).get("kafka", ""), "words", process)
        topics.log_append_time = True
        topics.declare([READING])
        wait_for(lambda: process.ready().get("ready", False), "readiness after `apply`", process)
        assert process.terminate() == 0
