"""The state of one device between its readings, and its form in the changelog.

A value in the changelog is a header of two numbers, followed by JSON. The header holds the revision, which tells the
newer of two values of a device whatever their order, and the time at which the device is due without a reading. So the
states can be recovered without parsing every JSON text.

The compiled code writes a quiet device's state in a compact form instead of JSON. Little-endian: the byte COMPACT, the
last sign of life (int64), the number of metrics (uint8), and each metric: its name and unit, six numbers, its trend
(NaN while unknown), the flat rule's key (empty for none) with `since_ms` and anchor, the rate rule's key (empty for
none) with its highest and its lowest points. A text is a length (uint8) and UTF-8, a list of points a length (uint8)
and pairs of int64 and double.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_HEADER = struct.Struct(">qq")
_NEVER = 2**62

COMPACT = 1
"""The first byte after the header in the compact form. JSON begins with `{`."""
_COMPACT_BYTE = bytes([COMPACT])
_COMPACT_DEVICE = struct.Struct("<BqB")
_COMPACT_METRIC = struct.Struct("<qqdqqid")
_TIME_AND_VALUE = struct.Struct("<qd")

MAX_METRICS = 64
"""Default limit of the metrics of one device."""

DEFAULT_SEVERITY = "warning"
"""The severity in the state of a rule without an open alert."""

AlertRecord = dict[str, Any]
"""An Alert record as plain values; times are epoch ms."""


Point = tuple[int, float]
"""An event time (epoch ms) and the value at that time."""


class BufferedReading(NamedTuple):
    """A reading that waits for readings that were measured before it."""

    event_time_ms: int
    sequence: int
    value: float
    unit: str


@dataclass(slots=True)
class RuleState:
    """The state of one rule for a metric or a device."""

    since_ms: int | None = None
    """Event time at which the condition began to hold; None while it does not hold."""
    opened_ms: int | None = None
    """`opened_at` of the open alert; None while none is open."""
    anchor: float | None = None
    """For flat lines: the value that has not moved since `since_ms`."""
    severity: str = DEFAULT_SEVERITY
    """Severity of the open alert. The rule may have been removed when the alert closes."""
    highest: list[Point] = field(default_factory=list)
    """For rates: the values of the window that no later value exceeds, in order of time."""
    lowest: list[Point] = field(default_factory=list)
    """For rates: the values of the window that no later value is below, in order of time."""

    def is_idle(self) -> bool:
        """Return whether the state equals a new one, so that it need not be stored."""
        return self.since_ms is None and self.opened_ms is None and self.anchor is None and not self.highest


@dataclass(slots=True)
class MetricState:
    """The state of one metric of one device."""

    event_time_ms: int = -1
    """With `sequence`: the position. Readings up to the position have been applied or are stale."""
    sequence: int = 0
    value: float = 0.0
    unit: str = ""
    newest_ms: int = -1
    """Event time of the newest reading, including buffered ones."""
    interval_ms: int = 0
    """Usual interval between two readings, learned; 0 until the second reading."""
    intervals_seen: int = 0
    """From how many intervals `interval_ms` was learned."""
    buffered: list[BufferedReading] = field(default_factory=list)
    """Ordered by event time and sequence."""
    samples: list[Point] = field(default_factory=list)
    """Earlier values in a state that an earlier release wrote. The rate rules take them over."""
    trend_per_hour: float | None = None
    """Smoothed change per hour; None while it is not known."""


@dataclass(slots=True)
class DeviceRuleState:
    """The whole state of one device."""

    revision: int = 0
    metrics: dict[str, MetricState] = field(default_factory=dict)
    rules: dict[str, RuleState] = field(default_factory=dict)
    """By the key of the rule."""
    last_seen_ms: int = -1
    """Event time of the newest reading that was applied."""
    outbox: list[AlertRecord] = field(default_factory=list)
    """Decided alerts that Kafka has not acknowledged yet."""

    def open_alerts(self, device_id: str) -> list[str]:
        """Return the sorted ids of the open alerts."""
        return sorted(
            alert_id(device_id, key, rule.opened_ms) for key, rule in self.rules.items() if rule.opened_ms is not None
        )


def alert_id(device_id: str, rule_key: str, opened_ms: int) -> str:
    """Return the id of an incident. A repeated decision gives the same id."""
    metric, _, name = rule_key.rpartition(".")
    return "/".join([device_id, name, *([metric] if metric else []), str(opened_ms)])


def encode(state: DeviceRuleState, due_ms: int | None) -> bytes:
    """Return the value for the changelog; `due_ms` is when the device is due without a reading."""
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
                    one.intervals_seen,
                    one.buffered,
                    one.samples,
                    one.trend_per_hour,
                ]
                for name, one in state.metrics.items()
            },
            "w": {
                key: [
                    rule.since_ms,
                    rule.opened_ms,
                    rule.anchor,
                    rule.severity,
                    *([rule.highest, rule.lowest] if rule.highest else []),
                ]
                for key, rule in state.rules.items()
            },
            "s": state.last_seen_ms,
            "o": state.outbox,
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return _HEADER.pack(state.revision, _NEVER if due_ms is None else min(due_ms, _NEVER)) + text.encode()


def revision_of(value: bytes) -> int:
    """Return the revision in the header. Raises struct.error for bytes that are not a value of the changelog."""
    return int(_HEADER.unpack_from(value)[0])


def due_of(value: bytes) -> int | None:
    """Return when the device is due without a reading, in epoch ms; None for never."""
    due = int(_HEADER.unpack_from(value)[1])
    return None if due == _NEVER else due


def is_compact(value: bytes) -> bool:
    """Return whether a value of the changelog is in the compact form."""
    return value[_HEADER.size : _HEADER.size + 1] == _COMPACT_BYTE


def decode(value: bytes) -> DeviceRuleState:
    """Decode a value of the changelog, also of earlier releases.

    Raises ValueError, LookupError, TypeError or struct.error for any other bytes.
    """
    if is_compact(value):
        return _decode_compact(value)
    read = json.loads(value[_HEADER.size :])
    metrics = {name: _metric_state(*parts) for name, parts in read["m"].items()}
    rules = {key: _rule_state(*parts) for key, parts in read["w"].items()}
    return DeviceRuleState(revision_of(value), metrics, rules, read["s"], read["o"])


def _rule_state(
    since_ms: int | None,
    opened_ms: int | None,
    anchor: float | None,
    severity: str,
    highest: Iterable[list[Any]] = (),
    lowest: Iterable[list[Any]] = (),
) -> RuleState:
    return RuleState(since_ms, opened_ms, anchor, severity, _points(highest), _points(lowest))


def _metric_state(
    event_time_ms: int,
    sequence: int,
    value: float,
    unit: str,
    newest_ms: int,
    interval_ms: int,
    intervals_seen: int,
    buffered: list[list[Any]],
    samples: Iterable[list[Any]] = (),
    trend_per_hour: float | None = None,
) -> MetricState:
    readings = [BufferedReading(*one) for one in buffered]
    return MetricState(
        event_time_ms,
        sequence,
        value,
        unit,
        newest_ms,
        interval_ms,
        intervals_seen,
        readings,
        _points(samples),
        trend_per_hour,
    )


def _points(read: Iterable[list[Any]]) -> list[Point]:
    return [(at_ms, value) for at_ms, value in read]


def _decode_compact(value: bytes) -> DeviceRuleState:
    reader = _CompactReader(value, _HEADER.size)
    _form, last_seen_ms, count = reader.numbers(_COMPACT_DEVICE)
    state = DeviceRuleState(revision_of(value), last_seen_ms=int(last_seen_ms))
    for _ in range(int(count)):
        name, unit = reader.text(), reader.text()
        event_ms, sequence, measured, newest_ms, interval_ms, seen, trend = reader.numbers(_COMPACT_METRIC)
        state.metrics[name] = MetricState(
            int(event_ms),
            int(sequence),
            measured,
            unit,
            int(newest_ms),
            int(interval_ms),
            int(seen),
            trend_per_hour=None if math.isnan(trend) else trend,
        )
        if flat := reader.text():
            since_ms, anchor = reader.numbers(_TIME_AND_VALUE)
            state.rules[flat] = RuleState(since_ms=int(since_ms), anchor=anchor)
        if rate := reader.text():
            state.rules[rate] = RuleState(highest=reader.points(), lowest=reader.points())
    if reader.at != len(value):
        raise ValueError("the compact state does not end with the value")
    return state


class _CompactReader:
    def __init__(self, value: bytes, at: int) -> None:
        self._value, self.at = value, at

    def numbers(self, layout: struct.Struct) -> tuple[float, ...]:
        found = layout.unpack_from(self._value, self.at)
        self.at += layout.size
        return found

    def text(self) -> str:
        begin = self.at + 1
        self.at = begin + self._value[self.at]
        return self._value[begin : self.at].decode()

    def points(self) -> list[Point]:
        length = self._value[self.at]
        self.at += 1
        return [(int(at_ms), value) for at_ms, value in (self.numbers(_TIME_AND_VALUE) for _ in range(length))]
