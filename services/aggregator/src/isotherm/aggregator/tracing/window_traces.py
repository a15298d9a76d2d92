"""The traced readings of the windows that are not published yet, and the spans of those that are. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces

MOST_READINGS = 20_000
"""Traced readings that are remembered, some 2 KB each; beyond that the oldest ones are forgotten, and counted."""


class WindowKey(NamedTuple):
    """Which window."""

    device_id: str
    metric: str
    start_ms: int


class TracedReading(NamedTuple):
    """A reading that has come with a sampled trace context."""

    context: Context
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Of its record, in epoch ms."""


class WindowTrace:
    """One window that is being published, in the traces of its readings.

    The window's record goes on with the trace of the first one; the others have their span here and end with it.
    """

    def __init__(self, traces: ConsumedTraces, readings: Iterable[TracedReading], output_topic: str) -> None:
        self._spans: list[Span] = [
            traces.start(
                one.context, one.topic, one.partition, one.offset, since_ms=one.timestamp_ms, operation="aggregate"
            )
            for one in readings
        ]
        send, headers = traces.send(traces.within(self._spans[0]), output_topic)
        self._spans.append(send)
        self.headers: Mapping[str, bytes] = {name: value.encode() for name, value in headers}
        """Of the window's record."""

    def end(self, error: str | None = None) -> None:
        """End the spans: Kafka has the window, or why it has not."""
        from isotherm.servicekit.tracing.spans import end_span

        for span in reversed(self._spans):
            end_span(span, error)


class WindowTraces:
    """Remembers traced readings until their windows are published."""

    def __init__(self, traces: ConsumedTraces, window_ms: int, slide_ms: int | None, output_topic: str) -> None:
        """`window_ms` and `slide_ms` are those of the windows, which go to `output_topic`."""
        self._traces = traces
        self._window_ms, self._slide_ms = window_ms, slide_ms or window_ms
        self._output_topic = output_topic
        self._lock = threading.Lock()
        self._waiting: dict[WindowKey, list[TracedReading]] = {}
        self._readings = 0

    def add(self, device_id: str, metric: str, event_time_ms: int, reading: TracedReading) -> None:
        """Remember a reading in each of its windows."""
        newest = event_time_ms - event_time_ms % self._slide_ms
        starts = range(newest, event_time_ms - self._window_ms, -self._slide_ms)
        with self._lock:
            for start_ms in starts:
                if self._readings >= MOST_READINGS:
                    # The oldest ones: those of windows that never end must not take the place of all others.
                    self._forget(next(iter(self._waiting)))
                self._waiting.setdefault(WindowKey(device_id, metric, start_ms), []).append(reading)
                self._readings += 1

    def of(self, keys: Iterable[WindowKey]) -> dict[WindowKey, WindowTrace]:
        """Begin the spans of those of the windows that have traced readings; they stay remembered until `published`."""
        with self._lock:
            found = {key: tuple(self._waiting[key]) for key in keys if key in self._waiting}
        return {key: WindowTrace(self._traces, readings, self._output_topic) for key, readings in found.items()}

    def ended(self, watermark_ms: int, most: int) -> list[WindowKey]:
        """Return windows with traced readings that have ended by a watermark (epoch ms), `most` of them."""
        with self._lock:
            ended = [key for key in self._waiting if key.start_ms + self._window_ms <= watermark_ms]
        return ended[:most]

    def published(self, keys: Iterable[WindowKey], watermark_ms: int) -> None:
        """Forget windows that Kafka has, and those that ended long before a watermark (epoch ms).

        Of these the traced readings came late, or were refused, or were too many for a batch; they are counted.
        """
        with self._lock:
            for key in keys:
                self._readings -= len(self._waiting.pop(key, ()))
            long_ago = watermark_ms - 2 * self._window_ms
            for key in [key for key in self._waiting if key.start_ms + self._window_ms <= long_ago]:
                self._forget(key)

    def _forget(self, key: WindowKey) -> None:
        readings = self._waiting.pop(key)
        self._readings -= len(readings)
        for _ in readings:
            self._traces.drop()

    @property
    def readings(self) -> int:
        """How many traced readings are remembered."""
        return self._readings
