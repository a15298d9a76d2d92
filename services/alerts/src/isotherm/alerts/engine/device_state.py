"""What is remembered of one device between its readings, and how it is written to the changelog.

A value of the changelog is a header of two numbers and a JSON text. The header holds the revision, by which the newer
of two values of a device is told whatever their order, and the time at which the device is due without a reading, so
that a fleet can be recovered without reading every text.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_HEADER = struct.Struct(">qq")
_NEVER = 2**62

MAX_METRICS = 64
"""Metrics of one device, unless the settings say otherwise."""

AlertRecord = dict[str, Any]
"""An Alert as plain values, times in epoch ms."""


Point = tuple[int, float]
"""An event time, epoch ms, and the value then."""


class Held(NamedTuple):
    """A reading that waits for one that was measured before it."""

    event_time_ms: int
    sequence: int
    value: float
    unit: str


@dataclass(slots=True)
class Watch:
    """How a rule stands for a metric or a device."""

    since_ms: int | None = None
    """Event time at which the condition began to hold; None while it does not."""
    opened_ms: int | None = None
    """`opened_at` of the open alert; None while none is open."""
    anchor: float | None = None
    """The value that has not moved since `since_ms`, for flat lines."""
    severity: str = "warning"
    """Of the open alert: the rule may have gone when it is closed."""
    highest: list[Point] = field(default_factory=list)
    """For rates: the values of the window that no later one exceeds, in order of time."""
    lowest: list[Point] = field(default_factory=list)
    """Those that no later one is below."""

    def is_idle(self) -> bool:
        """Whether there is nothing to remember."""
        return self.since_ms is None and self.opened_ms is None and self.anchor is None and not self.highest


@dataclass(slots=True)
class MetricMemory:
    """One metric of one device."""

    event_time_ms: int = -1
    """With `sequence` the position: what was measured before it has had its turn."""
    sequence: int = 0
    value: float = 0.0
    unit: str = ""
    newest_ms: int = -1
    """Event time of the newest reading, held ones too."""
    interval_ms: int = 0
    """Usual distance of two readings, learned; 0 until the second one."""
    gaps: int = 0
    """From how many distances it was learned."""
    held: list[Held] = field(default_factory=list)
    """In order of event time and sequence."""
    samples: list[Point] = field(default_factory=list)
    """Earlier values in a memory that an earlier version wrote; the rates take them over."""
    trend_per_hour: float | None = None
    """Smoothed change; None while it is not known."""


@dataclass(slots=True)
class DeviceMemory:
    """All that is remembered of a device."""

    revision: int = 0
    metrics: dict[str, MetricMemory] = field(default_factory=dict)
    watches: dict[str, Watch] = field(default_factory=dict)
    """By the rule's key."""
    last_seen_ms: int = -1
    """Event time of the newest reading that has had its turn."""
    outbox: list[AlertRecord] = field(default_factory=list)
    """Alerts that are decided; they leave when Kafka has them."""

    def open_alerts(self, device_id: str) -> list[str]:
        """The ids of the alerts that are open, sorted."""
        return sorted(
            alert_id(device_id, key, watch.opened_ms)
            for key, watch in self.watches.items()
            if watch.opened_ms is not None
        )


def alert_id(device_id: str, rule_key: str, opened_ms: int) -> str:
    """The id of an incident: whoever decides it again comes to the same one."""
    metric, _, name = rule_key.rpartition(".")
    return "/".join([device_id, name, *([metric] if metric else []), str(opened_ms)])


def encode(memory: DeviceMemory, due_ms: int | None) -> bytes:
    """The value of the changelog."""
    text = json.dumps(
        {
            "m": {
                name: [
                    one.event_time_ms,
                    one.sequence,
                    one.value,
                    one.unit,
                    one.newest_ms,
                    one.interval_ms,
                    one.gaps,
                    one.held,
                    one.samples,
                    one.trend_per_hour,
                ]
                for name, one in memory.metrics.items()
            },
            "w": {
                key: [
                    watch.since_ms,
                    watch.opened_ms,
                    watch.anchor,
                    watch.severity,
                    *([watch.highest, watch.lowest] if watch.highest else []),
                ]
                for key, watch in memory.watches.items()
            },
            "s": memory.last_seen_ms,
            "o": memory.outbox,
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return _HEADER.pack(memory.revision, _NEVER if due_ms is None else min(due_ms, _NEVER)) + text.encode()


def revision_of(value: bytes) -> int:
    """The revision in the header. Raises struct.error for what is no value of the changelog."""
    return int(_HEADER.unpack_from(value)[0])


def due_of(value: bytes) -> int | None:
    """When the device is due without a reading; None for never."""
    due = int(_HEADER.unpack_from(value)[1])
    return None if due == _NEVER else due


def decode(value: bytes) -> DeviceMemory:
    """The inverse of `encode`. Raises ValueError, KeyError, TypeError or struct.error for anything else."""
    read = json.loads(value[_HEADER.size :])
    metrics = {name: _metric(*parts) for name, parts in read["m"].items()}
    watches = {key: _watch(*watch) for key, watch in read["w"].items()}
    return DeviceMemory(revision_of(value), metrics, watches, read["s"], read["o"])


def _watch(
    since_ms: int | None,
    opened_ms: int | None,
    anchor: float | None,
    severity: str,
    highest: Iterable[list[Any]] = (),
    lowest: Iterable[list[Any]] = (),
) -> Watch:
    return Watch(since_ms, opened_ms, anchor, severity, _points(highest), _points(lowest))


def _metric(
    event_time_ms: int,
    sequence: int,
    value: float,
    unit: str,
    newest_ms: int,
    interval_ms: int,
    gaps: int,
    held: list[list[Any]],
    samples: Iterable[list[Any]] = (),
    trend_per_hour: float | None = None,
) -> MetricMemory:
    waiting = [Held(*one) for one in held]
    return MetricMemory(
        event_time_ms, sequence, value, unit, newest_ms, interval_ms, gaps, waiting, _points(samples), trend_per_hour
    )


def _points(read: Iterable[list[Any]]) -> list[Point]:
    return [(at_ms, value) for at_ms, value in read]
