"""Which windows have traced readings, for how long, and what the follower takes from the input's records."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aggregator_traces import PARENT, TracedWindows
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode

from isotherm.aggregator.tracing import window_traces
from isotherm.aggregator.tracing.reading_follower import ReadingFollower
from isotherm.aggregator.tracing.window_traces import WindowKey
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


def test_what_is_too_much_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_traces, "MOST_READINGS", 3)
    traced = TracedWindows()
    for number in range(5):
        traced.reading(f"d{number}", 5)
    assert traced.windows.readings == 3
    assert traced.registry.get_sample_value("isotherm_spans_total", {"outcome": "dropped"}) == 2


class Message:
    """A record as the client gives it."""

    def __init__(self, headers: list[tuple[str, bytes]] | None, value: bytes | None, error: object = None) -> None:
        self.headers, self.value, self.error = lambda: headers, lambda: value, lambda: error
        self.topic, self.partition, self.offset = lambda: "in", lambda: 1, lambda: 2
        self.timestamp = lambda: (1, 1_767_225_600_000)


def decode(value: bytes) -> Any:
    if value == b"bad":
        raise WireFormatError("no reading")
    if value == b"away":
        raise RegistryUnavailableError("away")
    record = {"device_id": value.decode(), "metric": "m", "event_time": 5}
    return type("Decoded", (), {"record": record})


def test_traced_readings_are_taken_and_nothing_else() -> None:
    traced = TracedWindows()
    follower = ReadingFollower(
        lambda: pytest.fail("no Kafka here"), ["in"], cast(Decoder, decode), traced.traces, traced.windows
    )
    sampled, unsampled = ([("x", b""), ("traceparent", f"00-{1:032x}-{PARENT}-0{flag}".encode())] for flag in "10")
    messages = [
        Message(sampled, b"taken"),
        Message(unsampled, b"unsampled"),
        Message(None, b"none"),
        Message([("traceparent", b"x")], b"invalid"),
        Message(sampled, None),
        Message(sampled, b"bad"),
        Message(sampled, b"away"),
        Message(sampled, b"event", error="an event"),
    ]
    follower.take(cast(Any, messages))
    assert traced.windows.ended(10_000, 100) == [WindowKey("taken", "m", 0)]
    assert traced.registry.get_sample_value("isotherm_spans_total", {"outcome": "dropped"}) == 1
