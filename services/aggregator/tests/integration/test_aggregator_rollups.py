"""Longer windows made of finished ones, against a real Kafka: through `kill -9`, corrections and a restart."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aggregator_given import Given, kill_at_next_record
from aggregator_world import ATTRIBUTES, READING, RULES, Process, Topics, wait_for, write_devices

from isotherm.servicekit.avro import SchemaRegistry
from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long]

LENGTHS_MS = {"minute": 60_000, "quarter": 300_000}
Rows = Mapping[Any, Mapping[str, Any]]


def settings_for(topics: Topics) -> dict[str, object]:
    settings: dict[str, object] = {"windows_interval_ms": 1_000, "max_offsets_per_trigger": 50_000}
    for name, length_ms in LENGTHS_MS.items():
        settings[f"windows.{name}.length_ms"] = length_ms
        settings[f"windows.{name}.output_topic"] = topics.rollups
        settings[f"windows.{name}.grouped_topic"] = topics.rollups_grouped
    return settings


class Published:
    """What the topics of the longer windows hold."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def _rows(self, topic: str) -> list[dict[str, Any]]:
        return [dict(self._given.decode(one.value() or b"").record) for one in self._given.topics.read(topic)]

    def windows(self) -> list[tuple[Any, dict[str, Any]]]:
        return [(checker.window_key(row), row) for row in self._rows(self._given.topics.rollups)]

    def _is_asked_for(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is not about the reading that completes all others."""
        return checker.epoch_ms(row["window_start"]) <= self._given.newest_ms

    def newest(self) -> Rows:
        found, problems = checker.latest((key, row) for key, row in self.windows() if self._is_asked_for(row))
        assert problems == []
        return found

    def groups(self) -> Rows:
        rows = self._rows(self._given.topics.rollups_grouped)
        found, problems = checker.latest((checker.group_key(row), row) for row in rows if self._is_asked_for(row))
        assert problems == []
        return found


def expected(given: Given, *, with_late: bool) -> Rows:
    """The recount: every longer window over the readings on time, or over all of them."""
    lateness_ms = 10**15 if with_late else RULES.allowed_lateness_ms
    found: dict[Any, Any] = {}
    for length_ms in LENGTHS_MS.values():
        found |= given.windows(replace(RULES, window_ms=length_ms, allowed_lateness_ms=lateness_ms))
    return found


def test_longer_windows_equal_a_batch_and_follow_the_corrections(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url, f"rollups-{os.getpid()}")
    topics.declare([READING])
    given = Given(topics, readings=8_000, span_ms=600_000, late_share=0.2)
    devices = write_devices(topics, SchemaRegistry(topics.registry))
    published, settings, folder = Published(given), settings_for(topics), tmp_path / "checkpoint"
    on_time, whole = expected(given, with_late=False), expected(given, with_late=True)
    given.put(given.records)
    given.complete()

    with Process(topics, folder, free_port(), **settings) as process:
        kill_at_next_record(topics, topics.rollups, process)
    assert 0 < len(published.windows()) <= len(on_time)

    with Process(topics, folder, free_port(), **settings) as process:
        wait_for(lambda: checker.mismatches(on_time, published.newest()) == [], "every window", process)
        of_groups = checker.expected_groups(on_time, devices, ATTRIBUTES)
        wait_for(lambda: checker.mismatches(of_groups, published.groups()) == [], "every group", process)
        assert process.terminate() == 0
    # The killed process wrote whole windows, and the next one none of them again with other numbers.
    counts: dict[Any, set[int]] = {}
    for key, row in published.windows():
        counts.setdefault(key, set()).add(row["count"])
    assert [key for key, different in counts.items() if len(different) > 1] == []

    with Process(topics, folder, free_port(), **settings, **{"corrections.interval_ms": 1_000}) as process:
        wait_for(lambda: checker.mismatches(whole, published.newest()) == [], "the corrections", process)
        of_groups = checker.expected_groups(whole, devices, ATTRIBUTES)
        wait_for(lambda: checker.mismatches(of_groups, published.groups()) == [], "the groups", process)
        assert process.metrics()["isotherm_aggregator_rollups_failed_total"] == 0
        assert process.terminate() == 0
