"""Corrections that the service makes by itself, against a real Kafka: through `kill -9`, copies and a second burst."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aggregator_given import Given, has_no_lag, kill_at_next_record
from aggregator_world import (
    ATTRIBUTES,
    READING,
    RULES,
    Process,
    Record,
    Topics,
    headers,
    settings_of,
    wait_for,
    write_devices,
)
from confluent_kafka import TopicPartition

from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

HEADER = "aggregator.late_readings"
JUDGED_BY = "aggregator.judged_by"
WAITING = "isotherm_aggregator_corrections_waiting"
WHOLE = checker.Rules(RULES.window_ms, allowed_lateness_ms=10**15, max_skew_ms=RULES.max_skew_ms)
SETTINGS = {"corrections.interval_ms": 1_000, "max_offsets_per_trigger": 50_000}
Rows = Mapping[Any, Mapping[str, Any]]


def newest(given: Given) -> Rows:
    """The row of the highest revision of each window."""
    found, problems = checker.latest(given.published())
    assert problems == []
    return found


def is_right(given: Given, expected: Rows) -> bool:
    return checker.mismatches(expected, newest(given)) == []


def final_ms(process: Process) -> float:
    """The time up to which every window is published."""
    return process.metrics().get("isotherm_aggregator_watermark_seconds", 0.0) * 1000


def groups(given: Given) -> Rows:
    rows = [dict(given.decode(message.value() or b"").record) for message in given.topics.read(given.topics.grouped)]
    found, problems = checker.latest((checker.group_key(row), row) for row in rows)
    assert problems == []
    return found


def kill_in_a_correction(topics: Topics, process: Process) -> int:
    """Kill driver and JVM as soon as the output topic grows; return how many corrected rows it holds then."""
    kill_at_next_record(topics, topics.output, process)
    return sum(HEADER in headers(message) for message in topics.read(topics.output))


def over_all(records: list[Record]) -> Rows:
    """What a batch over all these readings gives, late ones included."""
    return checker.expected_windows((one.reading for one in records if one.reading is not None), WHOLE)


def expire_whole(topics: Topics) -> None:
    """Let the late topic have had records of which retention has left none."""
    producer = clients.producer(topics.kafka, "expired")
    for number in range(topics.partitions):
        producer.produce(topics.late, value=b"a late reading of long ago", partition=number)
    assert producer.flush(60) == 0
    ends = [TopicPartition(topics.late, number, 1) for number in range(topics.partitions)]
    admin = clients.admin(topics.kafka, "expired")
    for removed in admin.delete_records(ends).values():
        removed.result(60)


@pytest.mark.long
@pytest.mark.faults
def test_windows_equal_a_batch_over_all_readings_by_themselves(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url, f"corrections-{os.getpid()}")
    topics.declare([READING])
    given = Given(topics, readings=20_000, span_ms=600_000, late_share=0.3)
    devices = write_devices(topics, SchemaRegistry(topics.registry))
    second = [record for record in given.records[16_000:] if record.category == "late"]
    held_back = {record.identity for record in second}
    first = [record for record in given.records if record.identity not in held_back]
    folder, without, all_but_second = tmp_path / "checkpoint", given.windows(), over_all(first)

    expire_whole(topics)
    given.put(first)
    with Process(topics, folder, free_port(), max_offsets_per_trigger=50_000) as process:
        wait_for(lambda: is_right(given, without), "every window", process)
        wait_for(lambda: has_no_lag(process, topics), "every late reading", process)
        assert process.terminate() == 0
    with Process(topics, folder, free_port(), **SETTINGS) as process:
        corrected = kill_in_a_correction(topics, process)
    assert 0 < corrected < sum(all_but_second[key] != without.get(key) for key in all_but_second)

    with Process(topics, folder, free_port(), **SETTINGS) as process:
        wait_for(lambda: is_right(given, all_but_second), "every correction", process)
        # Copies, as the query for late readings leaves them after a kill.
        copies = clients.producer(topics.kafka, "copies")
        for message in topics.read(topics.late):
            copies.produce(topics.late, key=message.key(), value=message.value())
        assert copies.flush(60) == 0
        given.put(second)
        whole = over_all(given.records)
        wait_for(lambda: is_right(given, whole), "the corrections of the second burst", process)
        of_groups = checker.expected_groups(whole, devices, ATTRIBUTES)
        wait_for(lambda: checker.mismatches(of_groups, groups(given)) == [], "the groups", process)
        assert process.metrics()["isotherm_aggregator_corrections_failed_total"] == 0
        assert process.terminate() == 0


def recomputed_from_input(given: Given, folder: Path, settled_ms: int, **settings: object) -> dict[str, Any]:
    """What `isotherm-aggregator recompute --from-input` over all windows says."""
    span = "--from", given.end_ms - 600_000, "--to", given.end_ms + 60_000
    command = [sys.executable, "-m", "isotherm.aggregator", "recompute", "--from-input", *map(str, span)]
    command += ["--settled-ms", str(settled_ms), *settings_of(given.topics, folder, **settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    return dict(json.loads(done.stdout))


@pytest.mark.long
@pytest.mark.faults
def test_a_raised_lateness_doubles_and_loses_no_late_reading(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    """Each window keeps to the settings by which its original row was made, whichever that is."""
    topics = Topics(kafka.bootstrap_servers, registry.url, f"raised-{os.getpid()}")
    topics.declare([READING])
    given = Given(topics, readings=4_000, span_ms=200_000, late_share=0.3)
    whole = over_all(given.records)
    given.put(given.records)
    with Process(topics, tmp_path / "before", free_port()) as process:
        wait_for(lambda: is_right(given, given.windows()), "every window", process)
        wait_for(lambda: has_no_lag(process, topics), "every late reading", process)
        assert process.terminate() == 0
    published_ms = max(row["revision"] for row in newest(given).values())

    # It publishes the windows of the second half again, with the late readings of which it says that they are on time.
    settings = {**SETTINGS, "allowed_lateness_ms": 120_000, "start_from": given.end_ms - 100_000}
    with Process(topics, tmp_path / "after", free_port(), **settings) as process:
        wait_for(lambda: is_right(given, whole), "every window", process)
        wait_for(lambda: process.metrics().get(WAITING) == 0 and has_no_lag(process, topics), "rest", process)
        wait_for(
            lambda: all(checker.epoch_ms(row["window_end"]) <= final_ms(process) for row in newest(given).values()),
            "end",
            process,
        )
        assert process.terminate() == 0
    assert is_right(given, whole)
    by_settings = Counter(headers(one)[JUDGED_BY].split()[0] for one in topics.read(topics.output))
    assert by_settings.keys() == {b"allowed_lateness_ms=5000", b"allowed_lateness_ms=120000"}

    # Computed from the input, all readings are on time; a second time at once there is nothing to do.
    first = recomputed_from_input(given, tmp_path, 0, **settings)
    assert first["rebuilt_windows"] > 0
    long_ago_ms = time.time_ns() // 1_000_000 - published_ms - 1_000
    again = recomputed_from_input(given, tmp_path, long_ago_ms, **settings)
    assert (again["to_ms"], again["rebuilt_windows"], again["corrected_windows"]) == (first["to_ms"], 0, 0)
    assert is_right(given, whole)
