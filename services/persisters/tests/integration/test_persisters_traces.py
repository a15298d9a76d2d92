"""Traced records: a span of each that the sink has, or that failed, through a kill; and exemplars that lead to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from http_receiver import Receiver
from otlp_collector import Collector, Span, collecting
from persisters_world import BASE_MS, Broker, Persister

from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

PARENT = "b7ad6b7169203331"
RECORDS = 400
SAMPLED, UNSAMPLED, BAD, FILTERED = range(4)


def kind(number: int) -> int:
    return number % 4


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as made:
        yield made


@pytest.fixture
def persister(broker: Broker, receiver: Receiver, tmp_path: Path, free_port_row: Any) -> Iterator[Persister]:
    lines = [
        f"connect.http.kcql=INSERT INTO a SELECT * FROM {broker.topic} WHERE revision < 3",
        f"connect.http.url=http://127.0.0.1:{receiver.port}/in",
        "connect.http.batch.size=20",
        "errors.tolerance=all",
        f"errors.deadletterqueue.topic.name={broker.topic}-dlq",
        "errors.deadletterqueue.topic.replication.factor=1",
    ]
    made = Persister(broker, "http", tmp_path, free_port_row(1), lines)
    yield made
    made.kill()


def produce(broker: Broker, numbers: range) -> None:
    """Records in one partition, so that each has the offset of its number."""
    producer = clients.producer(broker.kafka, "test")
    for number in numbers:
        is_sampled = kind(number) != UNSAMPLED
        value = (
            b"\0\0\0" if kind(number) == BAD else broker.aggregate("d", number, 3 if kind(number) == FILTERED else 1)
        )
        context = f"00-{number + 1:032x}-{PARENT}-{'01' if is_sampled else '00'}"
        # As a dead letter has it that was produced again: the last one counts.
        headers: list[tuple[str, str | bytes | None]] = [("traceparent", f"00-{1:032x}-{PARENT}-01"), ("other", b"1")]
        producer.produce(broker.topic, key="d", value=value, partition=0, headers=[*headers, ("traceparent", context)])
    assert producer.flush(60) == 0
    producer.close()


def test_traced_records_have_spans(broker: Broker, collector: Collector, persister: Persister) -> None:
    settings = {"tracing.endpoint": collector.endpoint}
    produce(broker, range(RECORDS // 2))
    persister.start(**settings)
    persister.until_read(RECORDS // 4)
    persister.kill()
    produce(broker, range(RECORDS // 2, RECORDS))
    persister.start(**settings)
    persister.until_read(RECORDS)
    page = persister.page("metrics", "application/openmetrics-text; version=1.0.0")
    assert persister.stop() == Exit.OK, persister.log()

    found: dict[int, list[Span]] = {}
    for span in collector.spans():
        assert (span.service, span.name, span.kind) == ("persisters", f"process {broker.topic}", "consumer")
        assert (span.parent, span.attributes["isotherm.connector"]) == (PARENT, persister.name)
        assert int(span.attributes["messaging.kafka.offset"]) == int(span.trace, 16) - 1
        found.setdefault(int(span.trace, 16) - 1, []).append(span)
    # The spans of the killed process that were not exported yet are lost with it.
    assert {kind(number) for number in found} == {SAMPLED, BAD}
    after = {number for number in range(RECORDS // 2, RECORDS) if kind(number) in (SAMPLED, BAD)}
    assert after <= set(found)
    for number, spans in found.items():
        assert {bool(span.error) for span in spans} == {kind(number) == BAD}
    (error,) = {span.error for span in found[RECORDS - 2]}
    assert error.startswith("VALUE_CONVERTER ")

    exemplars = set(re.findall(r'_bucket\{.*since="ingest"[^}]*\} \S+ # \{trace_id="([0-9a-f]{32})"\}', page))
    assert exemplars
    assert all(kind(int(trace, 16) - 1) == SAMPLED for trace in exemplars)


def test_without_tracing_nothing_is_different(broker: Broker, persister: Persister, receiver: Receiver) -> None:
    produce(broker, range(40))
    persister.start()
    persister.until_read(40)
    lines = persister.metrics()
    assert not any("isotherm_spans" in line for line in lines)
    assert persister.stop() == Exit.OK, persister.log()
    assert {row["window_start"] for one in receiver.received for row in one.rows} == {
        BASE_MS + 10_000 * number for number in range(40) if kind(number) in (SAMPLED, UNSAMPLED)
    }
