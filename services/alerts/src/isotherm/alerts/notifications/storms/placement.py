"""Storms of a route that tells each alert by itself: which alerts one notification tells instead (ADR 245). Pure."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Mapping

from isotherm.alerts.notifications.grouping import PendingAlert, Storm
from isotherm.alerts.routes.notification import Alert, is_closed

MAX_STORMS = 32
"""Most storms with open alerts: a commit's metadata, which holds them, has at most 4096 bytes."""
_MINUTE_S = 60.0
_CALM_S = 300.0
"""So long after the last time above the limit alerts still belong to a storm."""
_MAX_SINGLE = 20_000
"""Of so many alerts that were told by themselves it is remembered, for repeats of their records."""
_STORED = ";storm="
_PLACED = ";placed="
_STORED_PLACED = re.compile(_PLACED + r"(\d+)(?=;|$)", re.ASCII)
_STORED_STORM = re.compile(_STORED + r"(\d+),(\w+),(\d+),([01]),(\d+),(\d+)(?=;|$)", re.ASCII)


class Storms:
    """The storms of one route. The caller has the clocks.

    A storm of a severity begins when more than `limit` of its alerts open within a minute, and takes every further one
    until it is calm. An alert stays where it was told first: its end, and repeats of its records, are told there too.

    Kafka keeps the spans of the storms with the route's committed offsets (`stored`). The topic of alerts says which
    alerts are open in them (`note_past`). So a restart amid a storm goes on with it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._arrivals: dict[str, deque[float]] = {}
        self._storms: list[Storm] = []
        self._gathering: dict[str, tuple[Storm, float]] = {}
        """By severity: the storm that takes further alerts, and until when."""
        self._storms_of: dict[str, tuple[Storm, ...]] = {}
        """By the id of an open alert; only after a restart there may be several, one of which has told it."""
        self._single: OrderedDict[str, None] = OrderedDict()
        self._unsure: set[str] = set()
        """Open alerts of a storm that an earlier run may have told by themselves."""
        self._placed: dict[int, int] = {}
        """By partition: the offset behind the last record that was placed."""
        self._placed_before: dict[int, int] = {}
        """The same of the earlier run. Before it an opening without a storm was told by itself, if at all."""
        self.is_changed = False
        """Whether `stored` says something else than what Kafka has."""

    def __len__(self) -> int:
        return len(self._storms)

    def arrive(self, pending: PendingAlert, now_s: float, *, is_in_turn: bool = True) -> None:
        """Count an alert before any of those that were read with it is placed; arguments as for `place`."""
        alert = pending.alert
        alert_id, severity = alert["alert_id"], alert["severity"]
        is_known = alert_id in self._storms_of or alert_id in self._single
        if not self._limit or is_closed(alert) or is_known or (is_in_turn and self._was_placed(pending)):
            return
        arrivals = self._arrivals.setdefault(severity, deque(maxlen=self._limit + 1))
        arrivals.append(now_s)

    def place(
        self, pending: PendingAlert, now_s: float, now_ms: int, *, is_in_turn: bool = True
    ) -> tuple[Storm | None, ...]:
        """Return the storms that tell a state of an alert; None stands for a notification of its own.

        `is_in_turn`: the state was read just now, and not found again when a silence ended.
        """
        alert = pending.alert
        alert_id = alert["alert_id"]
        was_placed = is_in_turn and self._was_placed(pending)
        if is_in_turn:
            partition, offset = pending.source.partition or 0, pending.source.offset or 0
            self._placed[partition], self.is_changed = offset + 1, True
        if is_closed(alert):
            return self._close(alert_id)
        if (storms := self._storms_of.get(alert_id)) is not None:
            return storms
        storms = self._covering(pending) if was_placed else ()
        if not storms and not was_placed and alert_id not in self._single:
            storm = self._storm_for(alert["severity"], now_s, now_ms)
            if storm is not None:
                storm.last_ms, storm.is_exact = now_ms, storm.is_exact and is_in_turn
                storms = (storm,)
        if not storms:
            self._note_single(alert_id)
            return (None,)
        self._join(storms, pending, is_sure=not was_placed)
        return storms

    def forget(self, alert: Alert) -> None:
        """Note the end of an alert that is not to be told."""
        self._close(alert["alert_id"])

    def holds(self, alert: Alert) -> bool:
        """Return whether an alert is open in a storm."""
        return alert["alert_id"] in self._storms_of

    def may_hold(self, pending: PendingAlert) -> bool:
        """Return whether a storm may have told an alert that was muted when it opened: after the silence ended."""
        return any(not one.is_exact for one in self._covering(pending))

    def drop_ended(self, now_s: float, read_until: Mapping[int, int]) -> None:
        """Forget the storms of which nothing is open or untold, and that take no further alerts.

        `read_until`: the offsets behind what the route has read. What an earlier run has told may come again.
        """
        self._gathering = {name: (one, end_s) for name, (one, end_s) in self._gathering.items() if now_s < end_s}
        gathering = {id(one) for one, _ in self._gathering.values()}
        left = [
            one for one in self._storms if one.open or one.untold or id(one) in gathering or not one.is_read(read_until)
        ]
        if len(left) < len(self._storms):
            self._storms, self.is_changed = left, True

    def stored(self, partition: int) -> str:
        """Return what the metadata of a partition's commit says of the storms."""
        placed = max(self._placed.get(partition, 0), self._placed_before.get(partition, 0))
        return (f"{_PLACED}{placed}" if placed else "") + "".join(
            f"{_STORED}{one.begun_ms},{one.severity},{one.last_ms},{int(one.is_exact)},{first},{end}"
            for one in self._storms
            for first, end in [one.spans.get(partition, (0, 0))]
            if end
        )

    def restore(self, metadata: Mapping[int, str | None], now_s: float, now_ms: int) -> None:
        """Take over the storms in the metadata of the partitions' commits."""
        found: dict[str, Storm] = {}
        for partition, text in metadata.items():
            if (placed := _STORED_PLACED.search(text or "")) is not None:
                self._placed_before[partition] = int(placed[1])
            for begun, severity, last, is_exact, first, end in _STORED_STORM.findall(text or ""):
                made = Storm(int(begun), severity, int(last), is_exact == "1")
                storm = found.setdefault(made.key, made)
                storm.last_ms, storm.is_exact = max(storm.last_ms, made.last_ms), storm.is_exact and made.is_exact
                storm.spans[partition] = int(first), int(end)
        self._storms = sorted(found.values(), key=lambda one: one.begun_ms)
        for storm in self._storms:
            left_s = _CALM_S - (now_ms - storm.last_ms) / 1000
            if left_s > 0:
                self._gathering[storm.severity] = storm, now_s + min(left_s, _CALM_S)

    def starts(self) -> dict[int, int]:
        """Return the offset of the first opening of a storm, by partition."""
        found: dict[int, int] = {}
        for storm in self._storms:
            for partition, (first, _) in storm.spans.items():
                found[partition] = min(first, found.get(partition, first))
        return found

    def note_past(self, pending: PendingAlert) -> None:
        """Note a state of an alert that an earlier run has told, in the order of its partition."""
        alert_id = pending.alert["alert_id"]
        if is_closed(pending.alert):
            self._close(alert_id)
        elif alert_id not in self._storms_of and alert_id not in self._single:
            storms = self._covering(pending)
            if storms:
                self._join(storms, pending, is_sure=False)
            else:
                self._note_single(alert_id)

    def _close(self, alert_id: str) -> tuple[Storm | None, ...]:
        storms, is_unsure = self._storms_of.pop(alert_id, ()), alert_id in self._unsure
        self._single.pop(alert_id, None)
        self._unsure.discard(alert_id)
        for storm in storms:
            storm.open.discard(alert_id)
        return (None, *storms) if is_unsure or not storms else storms

    def _join(self, storms: tuple[Storm, ...], pending: PendingAlert, *, is_sure: bool) -> None:
        alert_id, source = pending.alert["alert_id"], pending.source
        self.is_changed = True
        if not is_sure and not all(one.is_exact for one in storms):
            self._unsure.add(alert_id)
        for storm in storms:
            storm.cover(source.partition or 0, source.offset or 0)
            storm.open.add(alert_id)
        self._storms_of[alert_id] = storms

    def _was_placed(self, pending: PendingAlert) -> bool:
        """Return whether an earlier run has placed a record, so that it must not be placed anew."""
        return (pending.source.offset or 0) < self._placed_before.get(pending.source.partition or 0, 0)

    def _covering(self, pending: PendingAlert) -> tuple[Storm, ...]:
        """Return the storms to which an alert may belong that an earlier run has placed."""
        partition, offset = pending.source.partition or 0, pending.source.offset or 0
        severity = pending.alert["severity"]
        return tuple(one for one in self._storms if one.severity == severity and one.covers(partition, offset))

    def _storm_for(self, severity: str, now_s: float, now_ms: int) -> Storm | None:
        """Return the storm of an alert that opens now; None when it is told by itself."""
        storm, end_s = self._gathering.get(severity, (None, 0.0))
        arrivals = self._arrivals.get(severity, deque())
        is_above = len(arrivals) > self._limit > 0 and now_s - arrivals[0] <= _MINUTE_S
        if storm is not None and now_s < end_s:
            self._gathering[severity] = storm, now_s + _CALM_S if is_above else end_s
            return storm
        if not is_above:
            return None
        storm = self._begin(severity, now_ms)
        self._gathering[severity] = storm, now_s + _CALM_S
        return storm

    def _begin(self, severity: str, now_ms: int) -> Storm:
        former = [one for one in self._storms if one.severity == severity]
        if former and (len(self._storms) >= MAX_STORMS or former[-1].begun_ms >= now_ms):
            # Alerts may have been told by themselves since it was calm.
            former[-1].is_exact = False
            return former[-1]
        storm = Storm(now_ms, severity, now_ms)
        self._storms.append(storm)
        return storm

    def _note_single(self, alert_id: str) -> None:
        self._single[alert_id] = None
        if len(self._single) > _MAX_SINGLE:
            self._single.popitem(last=False)
