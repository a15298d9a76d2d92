"""The state of one device between its readings, and its form in the changelog.

A value in the changelog is a header of two numbers, followed by JSON. The header holds the revision, which tells the
newer of two values of a device whatever their order, and the time at which the device is due without a reading. So the
states can be recovered without parsing every JSON text.

The compiled code writes a quiet device's state in a compact form instead of JSON. Little-endian: the byte COMPACT, the
last sign of life (int64), the number of metrics (uint8), and each metric: its name and unit, its numbers with the trend
(NaN while unknown), its recent times (a uint8 and so many int64), the flat rule's key (empty for none) with `since_ms`
and anchor, the rate rule's key (empty for none) with its highest and its lowest points. A text is a length (uint8) and
UTF-8, a list of points a length (uint8) and pairs of int64 and double.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_HEADER = struct.Struct(">qq")
_NEVER = 2**62

COMPACT = 1
"""The first byte after the header in the compact form. JSON begins with `{`."""
_COMPACT_BYTE = bytes([COMPACT])
_COMPACT_DEVICE = struct.Struct("<BqB")
_COMPACT_METRIC = struct.Struct("<qqdqdidqqqqdii")
_TIME = struct.Struct("<q")
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
    version: str = ""
    """Of the rule by which an alert is open or a condition holds; empty for a state that an earlier release wrote."""
    attributes: Mapping[str, str | None] | None = None
    """Home, region and model of the device when the open alert opened; None without one, or of an earlier release."""

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
    interval_ms: float = 0.0
    """Usual gap between two readings, learned (`rhythm`); 0 until the second reading."""
    intervals_seen: int = 0
    """From how many gaps `interval_ms` was learned, up to `rhythm.MAX_GAPS`."""
    buffered: list[BufferedReading] = field(default_factory=list)
    """Ordered by event time and sequence."""
    samples: list[Point] = field(default_factory=list)
    """Earlier values in a state that an earlier release wrote. The rate rules take them over."""
    trend_per_hour: float | None = None
    """Smoothed change per hour; None while it is not known."""
    run: int = 0
    """How many gaps in a row were longer than the usual one, or shorter if it is negative."""
    longest_ms: float = 0.0
    """Longest of the last gaps; it fades."""
    pause_ms: int = 0
    """The last gap that was longer than the limit of silence; 0 for none, or one that is forgotten."""
    pause_at_ms: int = 0
    """Event time at which it, or one like it, has ended."""
    accepted_ms: int = 0
    """Shortest limit of silence, because of pauses that come back; 0 without them."""
    lag_ms: int = 0
    """By how much the newest reading was measured before its ingest time: the device's clock, or its way here."""
    in_order: int = 0
    """How many readings have come in order since one did not, up to `reorder.TRUSTED`."""
    recent: list[int] = field(default_factory=list)
    """Event times of the last readings that have come, ascending."""


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
    alive_since_ms: int = -1
    """Event time at which the device came back, until each of its metrics has; else -1."""
    is_forgotten: bool = False
    """The state is removed when Kafka has acknowledged the alerts in its outbox."""

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
                    one.run,
                    one.longest_ms,
                    one.pause_ms,
                    one.pause_at_ms,
                    one.accepted_ms,
                    one.lag_ms,
                    one.in_order,
                    one.recent,
                ]
                for name, one in state.metrics.items()
            },
            "w": {key: _rule_parts(rule) for key, rule in state.rules.items()},
            "s": state.last_seen_ms,
            "o": state.outbox,
            **({"a": state.alive_since_ms} if state.alive_since_ms >= 0 else {}),
            **({"f": True} if state.is_forgotten else {}),
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return _HEADER.pack(state.revision, _NEVER if due_ms is None else min(due_ms, _NEVER)) + text.encode()


def _rule_parts(rule: RuleState) -> list[Any]:
    """Return the state of a rule for JSON, without what is empty at its end."""
    parts: list[Any] = [rule.since_ms, rule.opened_ms, rule.anchor, rule.severity]
    if rule.attributes is not None:
        return [*parts, rule.highest, rule.lowest, rule.version, rule.attributes]
    if rule.highest or rule.version:
        parts += [rule.highest, rule.lowest]
    return [*parts, rule.version] if rule.version else parts


def revision_of(value: bytes) -> int:
    """Return the revision in the header. Raises struct.error for bytes that are not a value of the changelog."""
    return int(_HEADER.unpack_from(value)[0])


def due_of(value: bytes) -> int | None:
    """Return when the device is due without a reading, in epoch ms; None for never."""
    due = int(_HEADER.unpack_from(value)[1])
    return None if due == _NEVER else due


def is_compact(value: bytes) -> bool:
    """Return whether a value has the compact form, in which the state of a quiet device is written."""
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
    return DeviceRuleState(
        revision_of(value), metrics, rules, read["s"], read["o"], read.get("a", -1), read.get("f", False)
    )


def _rule_state(
    since_ms: int | None,
    opened_ms: int | None,
    anchor: float | None,
    severity: str,
    highest: Iterable[list[Any]] = (),
    lowest: Iterable[list[Any]] = (),
    version: str = "",
    attributes: Mapping[str, str | None] | None = None,
) -> RuleState:
    return RuleState(since_ms, opened_ms, anchor, severity, _points(highest), _points(lowest), version, attributes)


def _metric_state(
    event_time_ms: int,
    sequence: int,
    value: float,
    unit: str,
    newest_ms: int,
    interval_ms: float,
    intervals_seen: int,
    buffered: list[list[Any]],
    samples: Iterable[list[Any]] = (),
    trend_per_hour: float | None = None,
    run: int = 0,
    longest_ms: float = 0.0,
    pause_ms: int = 0,
    pause_at_ms: int = 0,
    accepted_ms: int = 0,
    lag_ms: int = 0,
    in_order: int = 0,
    recent: Iterable[int] = (),
) -> MetricState:
    readings = [BufferedReading(*one) for one in buffered]
    return MetricState(
        event_time_ms,
        sequence,
        value,
        unit,
        newest_ms,
        float(interval_ms),
        intervals_seen,
        readings,
        _points(samples),
        trend_per_hour,
        run,
        longest_ms,
        pause_ms,
        pause_at_ms,
        accepted_ms,
        lag_ms,
        in_order,
        list(recent),
    )


def _points(read: Iterable[list[Any]]) -> list[Point]:
    return [(at_ms, value) for at_ms, value in read]


def _decode_compact(value: bytes) -> DeviceRuleState:
    reader = _CompactReader(value, _HEADER.size)
    _form, last_seen_ms, count = reader.numbers(_COMPACT_DEVICE)
    state = DeviceRuleState(revision_of(value), last_seen_ms=int(last_seen_ms))
    for _ in range(int(count)):
        name, unit = reader.text(), reader.text()
        state.metrics[name] = _compact_metric(reader, unit)
        if flat := reader.text():
            since_ms, anchor = reader.numbers(_TIME_AND_VALUE)
            state.rules[flat] = RuleState(since_ms=int(since_ms), anchor=anchor)
        if rate := reader.text():
            state.rules[rate] = RuleState(highest=reader.points(), lowest=reader.points())
    if reader.at != len(value):
        raise ValueError("the compact state does not end with the value")
    return state


def _compact_metric(reader: _CompactReader, unit: str) -> MetricState:
    numbers = reader.numbers(_COMPACT_METRIC)
    event_ms, sequence, measured, newest_ms, interval_ms, seen, trend, *rhythm = numbers
    pause_ms, pause_at_ms, accepted_ms, lag_ms, longest_ms, run, in_order = rhythm
    return MetricState(
        int(event_ms),
        int(sequence),
        measured,
        unit,
        int(newest_ms),
        interval_ms,
        int(seen),
        trend_per_hour=None if math.isnan(trend) else trend,
        run=int(run),
        longest_ms=longest_ms,
        pause_ms=int(pause_ms),
        pause_at_ms=int(pause_at_ms),
        accepted_ms=int(accepted_ms),
        lag_ms=int(lag_ms),
        in_order=int(in_order),
        recent=reader.times(),
    )


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

    def times(self) -> list[int]:
        length = self._value[self.at]
        self.at += 1
        return [int(self.numbers(_TIME)[0]) for _ in range(length)]

    def points(self) -> list[Point]:
        length = self._value[self.at]
        self.at += 1
        return [(int(at_ms), value) for at_ms, value in (self.numbers(_TIME_AND_VALUE) for _ in range(length))]
