"""A new checkpoint on a topic whose beginning was deleted leaves correctly published windows as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aggregator_given import SETTINGS, Given
from aggregator_world import MAX_PUBLISH_DELAY_MS, READING, RULES, Process, Topics, identity, wait_for
from confluent_kafka import TopicPartition

from isotherm.schemas import schema
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

READINGS = 4_000
SPAN_MS = 240_000
FIRST_REVISION = 1_000
CUT = {0: 0.3, 2: 0.55}
"""The share of a partition's records that is deleted; the other partitions keep all."""


@pytest.fixture
def given(kafka: Kafka, registry: Registry) -> Given:
    topics = Topics(kafka.bootstrap_servers, registry.url, "aggregator-new-checkpoint")
    topics.declare([READING])
    return Given(topics, readings=READINGS, span_ms=SPAN_MS, late_share=0.05)


def publish(given: Given, windows: Mapping[Any, Mapping[str, float]]) -> None:
    """Write windows as an aggregator with all readings would."""
    topics = given.topics
    encode = SchemaRegistry(topics.registry).encoder(topics.output, schema("TemperatureAggregate", 1))
    producer = clients.producer(topics.kafka, topics.name)
    for (device_id, metric, start, end), numbers in windows.items():
        row = {"device_id": device_id, "metric": metric, "window_start": start, "window_end": end, **numbers}
        producer.produce(topics.output, key=device_id, value=encode({**row, "revision": FIRST_REVISION}))
    assert producer.flush(60) == 0


def published_again(given: Given) -> set[Any]:
    """The windows that this checkpoint has written."""
    return {key for key, row in given.published() if row["revision"] > FIRST_REVISION}


def cut(given: Given) -> int:
    """Delete the first records of some partitions; return the latest time of a new beginning (epoch ms)."""
    topics = given.topics
    consumer = clients.consumer(topics.kafka, topics.name, topics.name)
    try:
        ends = {n: consumer.get_watermark_offsets(TopicPartition(topics.input, n), timeout=30)[1] for n in CUT}
    finally:
        consumer.close()
    begins = {number: int(end * CUT[number]) for number, end in ends.items()}
    admin = clients.admin(topics.kafka, topics.name)
    for future in admin.delete_records(
        [TopicPartition(topics.input, n, begin) for n, begin in begins.items()]
    ).values():
        future.result()
    times = [m.timestamp()[1] for m in topics.read(topics.input) if begins.get(m.partition() or 0, -1) == m.offset()]
    assert len(times) == len(CUT)
    return max(times)


def test_windows_of_which_readings_are_gone_stay_as_they_were_published(
    given: Given, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics, expected = given.topics, given.windows()
    given.put(given.records)
    given.complete()
    publish(given, expected)
    complete_after_ms = cut(given) + RULES.max_skew_ms + MAX_PUBLISH_DELAY_MS
    again = {key for key in expected if key[2] > complete_after_ms}
    assert 0 < len(again) < len(expected)

    settings = {**SETTINGS, "group_attributes": "region"}
    with Process(topics, tmp_path / "checkpoint", free_port(), **settings) as process:
        wait_for(lambda: published_again(given) >= again, "every window that is complete", process)
        groups = checker.expected_groups({key: expected[key] for key in again}, {}, ["region"])
        wait_for(lambda: len(topics.read(topics.grouped)) >= len(groups), "their groups", process)
        left_out = process.metrics()["isotherm_aggregator_windows_incomplete_total"]
        readings_left_out = process.metrics()["isotherm_aggregator_readings_incomplete_total"]
        assert process.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
        assert process.terminate() == 0

    found, problems = checker.latest(given.published())
    assert problems == []
    assert checker.mismatches(expected, found) == []
    assert {key for key, row in found.items() if row["revision"] > FIRST_REVISION} == again
    rows = [dict(given.decode(message.value() or b"").record) for message in topics.read(topics.grouped)]
    assert checker.mismatches(groups, {checker.group_key(row): row for row in rows}) == []
    counted = sum(found[key]["count"] for key in again) + readings_left_out
    # By identity: the query that met a new schema id had written a part of its batch.
    refused = len({identity(message) for message in [*topics.read(topics.late), *topics.read(topics.dead)]})
    assert left_out > 0
    assert counted + refused == len(topics.read(topics.input)) - 1  # the reading that completes the windows
    assert "the input no longer has all readings" in process.log_text()


@pytest.mark.long
def test_offsets_that_the_topic_does_not_have_are_refused(
    given: Given, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    start_from = f'{{"{given.topics.input}": {{"1": 10000000}}}}'
    with Process(given.topics, tmp_path / "checkpoint", free_port(), start_from=start_from) as process:
        assert process.wait() == 2
        assert f"start_from: {given.topics.input}-1 has no offset 10000000; allowed: 0 to " in process.log_text()
