"""Incidents of the rules `above`, `below` and `rate`.

Computed from `docs/explanation/alerts.md` and `docs/reference/alert-rules.md`.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isotherm.proofs.history.checking.collection import AlertInput
from isotherm.proofs.history.format import AlertRule

MOST_WAITING = 64
"""Readings of one metric that wait for earlier ones."""
_TRUSTED = 32
"""After so many readings of a metric in order none waits, until one comes out of order."""
_REMEMBERED = 4
"""The last event times, which tell a stale reading that comes for the first time from a repeat."""
_MAY_COUNT = 1 / 16
"""A change that took longer than a rate's window by up to this share may count."""


@dataclass(frozen=True)
class Turn:
    """A reading when its turn has come; `certain` unless it may still wait at the end of the history."""

    event_time: int
    value: float
    line: int
    certain: bool = True


@dataclass
class Incident:
    """An incident: when the condition began, and what the rules saw of it."""

    opened_at: int
    decided: Turn
    closed: Turn | None = None


def turns(readings: Sequence[AlertInput], reorder_ms: int) -> list[Turn] | None:
    """Return the readings of one metric of one device in the order in which rules see them.

    None when the order depends on what a history does not tell: how far the service's clock was when a reading came, or
    what follows a reading without a number of its own in a device that numbers others.
    """
    positions = [(one.event_time, one.sequence) for one in readings]
    if all(before < after for before, after in itertools.pairwise(positions)):
        return list(_turns(readings, reorder_ms, by_clock=False, first_waits=True))
    times = {one.sequence: one.event_time for one in readings}
    if times.keys() != {0} and any(not one.sequence or times[one.sequence] != one.event_time for one in readings):
        return None
    orders = [
        list(_turns(readings, reorder_ms, by_clock=by_clock, first_waits=first_waits))
        for by_clock, first_waits in ((False, True), (True, True), (False, False))
    ]
    seen = [[(turn.event_time, turn.line) for turn in order] for order in orders]
    return orders[0] if seen[0] == seen[1] == seen[2] else None


def _turns(readings: Sequence[AlertInput], reorder_ms: int, *, by_clock: bool, first_waits: bool) -> Iterator[Turn]:
    """A reading waits `reorder_ms` of event time for earlier ones, unless it has the next number of its device.

    Nothing waits while the last readings have come in order. A reading at or before the newest one that had its turn is
    stale; one that is no repeat shows disorder. With `by_clock` the broker's time also lets
    readings pass; without `first_waits` the first reading does not wait.
    """
    waiting: list[tuple[int, int, float, int]] = []
    position: tuple[int, int] | None = (
        None if first_waits else (-1, max(readings[0].sequence - 1, 0) if readings else 0)
    )
    newest = in_order = 0
    recent: list[int] = []
    for reading in readings:
        if by_clock:
            while waiting and waiting[0][0] + reorder_ms <= reading.appended:
                position = waiting[0][:2]
                yield _turn(waiting.pop(0))
        entry = (reading.event_time, reading.sequence, reading.value, reading.line)
        is_behind = bool(waiting) and entry[:2] <= waiting[-1][:2]
        is_repeat = is_behind and any(one[:2] == entry[:2] for one in waiting)
        is_stale = position is not None and entry[:2] <= position
        if is_repeat or is_stale:
            if is_stale and recent and entry[0] > recent[0] and entry[0] not in recent:
                recent, in_order = _with_time(recent, entry[0]), 0
            continue
        insort(waiting, entry)
        in_order = in_order + 1 if reading.event_time >= newest else 0
        newest = max(newest, reading.event_time)
        recent = _with_time(recent, reading.event_time)
        while waiting:
            follows = position is not None and waiting[0][1] == position[1] + 1
            may_wait = in_order < _TRUSTED and not follows and len(waiting) <= MOST_WAITING
            if may_wait and waiting[0][0] + reorder_ms > newest:
                break
            position = waiting[0][:2]
            yield _turn(waiting.pop(0))
    for entry in waiting:
        yield Turn(entry[0], entry[2], entry[3], certain=False)


def _with_time(recent: list[int], event_time: int) -> list[int]:
    return recent if event_time in recent else sorted([*recent, event_time])[-_REMEMBERED:]


def _turn(entry: tuple[int, int, float, int]) -> Turn:
    return Turn(entry[0], entry[2], entry[3])


def incidents(order: Sequence[Turn], rule: AlertRule) -> list[Incident] | None:
    """Return the incidents of a rule; the last one may be open. None when the promise allows several outcomes."""
    conditions = list(_conditions(order, rule, rule.window_ms))
    if rule.kind == "rate" and conditions != list(_conditions(order, rule, rule.window_ms * (1 + _MAY_COUNT))):
        return None
    found: list[Incident] = []
    since: int | None = None
    is_open = False
    for turn, (is_beyond, is_back) in zip(order, conditions, strict=True):
        if is_open:
            # An alert closes later than it opened.
            if is_back and turn.event_time > found[-1].opened_at:
                found[-1].closed = turn
                is_open, since = False, None
        elif not is_beyond:
            since = None
        else:
            since = turn.event_time if since is None else since
            if turn.event_time - since >= rule.for_ms:
                found.append(Incident(since, turn))
                is_open = True
    return found


def _conditions(order: Sequence[Turn], rule: AlertRule, window_ms: float) -> Iterator[tuple[bool, bool]]:
    """For each reading: whether the rule is broken, and whether an alert can close."""
    if rule.kind != "rate":
        sign = 1 if rule.kind == "above" else -1
        back = sign * rule.threshold - rule.hysteresis
        for turn in order:
            yield sign * turn.value > sign * rule.threshold, sign * turn.value <= back
        return
    highest: deque[Turn] = deque()
    lowest: deque[Turn] = deque()
    for turn in order:
        for extremes, sign in ((highest, 1), (lowest, -1)):
            while extremes and sign * extremes[-1].value <= sign * turn.value:
                extremes.pop()
            extremes.append(turn)
            while extremes[0].event_time < turn.event_time - window_ms:
                extremes.popleft()
        change = max(highest[0].value - turn.value, turn.value - lowest[0].value)
        yield change > rule.threshold, change <= rule.threshold - rule.hysteresis
