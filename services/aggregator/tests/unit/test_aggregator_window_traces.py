"""Which windows have traced readings, for how long, and what the follower takes from the input's records."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from aggregator_traces import PARENT, TracedWindows
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode

from isotherm.aggregator.tracing import reading_follower, window_traces
from isotherm.aggregator.tracing.reading_follower import ReadingFollower
from isotherm.aggregator.tracing.window_traces import WindowKey
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, WireFormatError


@given(
    at_ms=st.integers(0, 4_102_444_800_000),
    shape=st.sampled_from([(10_000, None), (60_000, 20_000), (10_000, 3_000), (7_000, 7_000)]),
)
def test_a_reading_is_in_the_windows_that_hold_its_time(at_ms: int, shape: tuple[int, int | None]) -> None:
    window_ms, slide_ms = shape
    traced = TracedWindows(window_ms, slide_ms)
    traced.reading("d", at_ms)
    found = traced.windows.ended(at_ms + window_ms + 1, 1_000)
    step = slide_ms or window_ms
    assert {key.start_ms for key in found} == {
        start
        for start in range(at_ms // step * step - 10 * step, at_ms + 1, step)
        if start <= at_ms < start + window_ms
    }
    assert traced.windows.readings == len(found)


def test_what_was_not_written_is_an_error_and_stays() -> None:
    traced = TracedWindows()
    trace = traced.reading("d", 5)
    key = WindowKey("d", "m", 0)
    for window in traced.windows.of([key, WindowKey("d", "m", 10_000)]).values():
        window.end("Kafka is away")
    for window in traced.windows.of([key]).values():
        window.end()
    traced.windows.published([key], 10_000)
    statuses = [span.status.status_code for span in traced.spans()[trace]]
    assert statuses == [StatusCode.ERROR] * 2 + [StatusCode.UNSET] * 2
    assert traced.windows.readings == 0


def test_windows_that_ended_long_ago_are_forgotten() -> None:
    traced = TracedWindows()
    traced.reading("d", 5)
    traced.windows.published([], 29_999)
    assert traced.windows.readings == 1
    traced.windows.published([], 30_000)
    assert traced.windows.readings == 0
    assert not traced.windows.of([WindowKey("d", "m", 0)])
    assert not traced.spans()
    assert traced.registry.get_sample_value("isotherm_spans_total", {"outcome": "dropped"}) == 1


def test_what_is_too_much_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_traces, "MOST_READINGS", 3)
    traced = TracedWindows()
    for number in range(5):
        traced.reading(f"d{number}", 5)
    # The newest ones stay.
    assert [key.device_id for key in traced.windows.ended(10_000, 10)] == ["d2", "d3", "d4"]
    assert traced.windows.readings == 3
    assert traced.registry.get_sample_value("isotherm_spans_total", {"outcome": "dropped"}) == 2


class Message:
    """A record as the client gives it."""

    def __init__(self, headers: list[tuple[str, bytes]] | None, value: bytes | None, error: object = None) -> None:
        self.headers, self.value, self.error = lambda: headers, lambda: value, lambda: error
        self.topic, self.partition, self.offset = lambda: "in", lambda: 1, lambda: 2
        self.timestamp = lambda: (1, NOW_MS)


NOW_MS = 1_767_225_600_000
TIMELINESS = Timeliness(allowed_lateness_ms=20_000, max_skew_ms=60_000, max_publish_delay_ms=5_000)


def decode(value: bytes) -> Any:
    if value == b"bad":
        raise WireFormatError("no reading")
    if value == b"away":
        raise RegistryUnavailableError("away")
    record: Any = {"device_id": value.decode(), "metric": "m", "event_time": NOW_MS, "ingest_time": NOW_MS}
    if value == b"future":
        record["event_time"] += 60_001
    elif value == b"late":
        record["event_time"] -= 20_001
    elif value == b"held back":
        record["ingest_time"] -= 5_001
    elif value == b"another schema":
        del record["metric"]
    elif value == b"no record":
        record = "text"
    return type("Decoded", (), {"record": record})


def follower(traced: TracedWindows, consumer: Any = None) -> ReadingFollower:
    return ReadingFollower(
        lambda: consumer, lambda: ["in"], cast(Decoder, decode), TIMELINESS, traced.traces, traced.windows
    )


SAMPLED, UNSAMPLED = ([("x", b""), ("traceparent", f"00-{1:032x}-{PARENT}-0{flag}".encode())] for flag in "10")


def test_traced_readings_are_taken_and_nothing_else() -> None:
    traced = TracedWindows()
    refused = (b"bad", b"away", b"future", b"late", b"held back", b"another schema", b"no record")
    messages = [
        Message(SAMPLED, b"taken"),
        Message(UNSAMPLED, b"unsampled"),
        Message(None, b"none"),
        Message([("traceparent", b"x")], b"invalid"),
        Message(SAMPLED, None),
        *(Message(SAMPLED, value) for value in refused),
        Message(SAMPLED, b"event", error="an event"),
    ]
    follower(traced).take(cast(Any, messages))
    assert traced.windows.ended(NOW_MS + 10_000, 100) == [WindowKey("taken", "m", NOW_MS)]
    assert traced.registry.get_sample_value("isotherm_spans_total", {"outcome": "dropped"}) == 1


class Partitions:
    """A consumer that breaks at first, and whose topic gets a partition later."""

    def __init__(self) -> None:
        self.assigned: list[tuple[int, int]] = []
        self.breaks, self.partitions = 1, {0: None}
        self.records: list[Message] = []

    def list_topics(self, timeout: float) -> Any:
        return type("Metadata", (), {"topics": {"in": type("Topic", (), {"partitions": self.partitions})}})

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += [(one.partition, one.offset) for one in partitions]

    def poll(self, _timeout: float) -> Any:
        if self.breaks:
            self.breaks -= 1
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        self.partitions = {0: None, 1: None}
        return Message(SAMPLED, b"taken")

    def consume(self, _most: int, _timeout: float) -> list[Any]:
        return []

    def close(self) -> None:
        self.assigned.append((-1, 0))


def test_it_goes_on_after_a_failure_and_follows_partitions_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_follower, "_LIST_INTERVAL_S", 0.0)
    monkeypatch.setattr(reading_follower, "_PAUSE_S", 0.001)
    traced, consumer = TracedWindows(), Partitions()
    with follower(traced, consumer).running():
        deadline = time.monotonic() + 60
        while (1, OFFSET_BEGINNING) not in consumer.assigned:
            assert time.monotonic() < deadline, consumer.assigned
    assert consumer.assigned[:4] == [(0, OFFSET_END), (-1, 0), (0, OFFSET_END), (1, OFFSET_BEGINNING)]
    assert traced.windows.ended(NOW_MS + 10_000, 100) == [WindowKey("taken", "m", NOW_MS)]
