"""Silences, maintenance windows and acknowledgements, and which alerts they keep from being told. Pure."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from isotherm.alerts.routes.matching import RouteFilter
from isotherm.alerts.routes.notification import Alert, is_closed
from isotherm.kcql.dates import epoch_ms

_NEVER_MS = 2**63 - 1
_MAX_REPLACED = 1_000
"""Most replaced silences that are remembered; the ends of older ones are long dealt with."""


@dataclass(frozen=True, slots=True)
class Silence:
    """One record of `isotherm.silences`. Times are epoch ms."""

    scope: RouteFilter
    alert_id: str | None
    """The alert that is acknowledged; None for a silence or a maintenance window."""
    starts_ms: int
    ends_ms: int | None
    """When it ends, or was ended by somebody; None: when the alert closes."""

    def mutes(self, alert: Alert, at_ms: int) -> bool:
        """Return whether a state of an alert that Kafka has stored at `at_ms` is not told."""
        if at_ms < self.starts_ms or (self.ends_ms is not None and at_ms >= self.ends_ms):
            return False
        if self.alert_id is not None:
            # The end of an alert is told: somebody works on it.
            return bool(alert["alert_id"] == self.alert_id) and not is_closed(alert)
        if is_closed(alert) and epoch_ms(alert["opened_at"]) < self.starts_ms:
            # The target knows of the open alert. One that keeps incidents, as PagerDuty does, has to learn of the end.
            return False
        return self.scope.takes(alert)


def silence_of(record: Mapping[str, Any]) -> Silence:
    """Return the silence of a decoded Silence record. Raises ValueError when its scope is not understood."""
    ends = [epoch_ms(record[name]) for name in ("ends_at", "ended_at") if record[name] is not None]
    scope = RouteFilter(rules=record["rules"], devices=record["devices"], groups=record["groups"])
    return Silence(scope, record["alert_id"], epoch_ms(record["starts_at"]), min(ends, default=None))


class SilenceTable:
    """The newest record of each silence. One thread writes it, others read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silences: dict[str, Silence] = {}
        self._acknowledged: dict[str, Silence] = {}
        self._replaced: OrderedDict[tuple[str, int], Silence] = OrderedDict()
        """What newer records have replaced, by id and end: it ended then, at the latest."""
        self._scopes: tuple[Silence, ...] | None = ()
        """The silences that are no acknowledgements, and what they replaced; None after a change, until it is asked."""

    def put(self, silence_id: str, silence: Silence | None, at_ms: int) -> None:
        """Store a silence whose record Kafka has stored at `at_ms`; None forgets it.

        A silence that becomes another one, or is forgotten, has ended: what it muted may be muted no more.
        """
        with self._lock:
            former = self._silences.pop(silence_id, None)
            if former is not None and former.alert_id is not None:
                self._acknowledged.pop(former.alert_id, None)
            if silence is not None:
                self._silences[silence_id] = silence
                if silence.alert_id is not None:
                    self._acknowledged[silence.alert_id] = silence
            if former is not None and former.alert_id is None and not _continues(silence, former):
                ends_ms = at_ms if former.ends_ms is None else min(former.ends_ms, at_ms)
                self._replaced[silence_id, ends_ms] = replace(former, ends_ms=ends_ms)
                if len(self._replaced) > _MAX_REPLACED:
                    self._replaced.popitem(last=False)
            self._scopes = None

    def mutes(self, alert: Alert, at_ms: int) -> bool:
        """Return whether a state of an alert that Kafka has stored at `at_ms` is not told."""
        acknowledged = self._acknowledged.get(alert["alert_id"])
        if acknowledged is not None and acknowledged.mutes(alert, at_ms):
            return True
        return any(silence.mutes(alert, at_ms) for silence in self._of_scopes())

    def is_acknowledged(self, alert: Alert, at_ms: int) -> bool:
        """Return whether somebody works on the alert at a time."""
        found = self._acknowledged.get(alert["alert_id"])
        return found is not None and found.mutes(alert, at_ms)

    def muted_until(self, alert: Alert, at_ms: int) -> int | None:
        """Return when the last of the silences ends that mute a state of an alert from `at_ms` on without a gap.

        None: none mutes it at that time. Acknowledgements do not count.
        """
        until_ms = at_ms
        while True:
            ends = [one.ends_ms for one in self._of_scopes() if one.mutes(alert, until_ms)]
            if not ends:
                return until_ms if until_ms > at_ms else None
            until_ms = max(_NEVER_MS if end_ms is None else end_ms for end_ms in ends)

    def muted_since(self, silences: Iterable[Silence]) -> int:
        """Return the earliest time from which silences without a gap between them lead to one of `silences`.

        An alert that was stored then may be muted until those end, although it is older than they are.
        """
        since_ms = min(silence.starts_ms for silence in silences)
        while True:
            earlier = [
                one.starts_ms
                for one in self._of_scopes()
                if one.starts_ms < since_ms and (one.ends_ms is None or one.ends_ms >= since_ms)
            ]
            if not earlier:
                return since_ms
            since_ms = min(earlier)

    def ended(self, since_ms: int, until_ms: int) -> dict[tuple[str, int], Silence]:
        """Return the silences of alerts that ended after `since_ms`, and at `until_ms` or before, by id and end."""
        with self._lock:
            found = [*self._replaced.items()]
            found += [((silence_id, one.ends_ms or 0), one) for silence_id, one in self._silences.items()]
        return {
            key: one
            for key, one in found
            if one.alert_id is None
            and one.ends_ms is not None
            and since_ms < one.ends_ms <= until_ms
            and one.ends_ms > one.starts_ms
        }

    def _of_scopes(self) -> tuple[Silence, ...]:
        found = self._scopes
        if found is None:
            with self._lock:
                known = [*self._silences.values(), *self._replaced.values()]
                found = self._scopes = tuple(one for one in known if one.alert_id is None)
        return found


def _continues(silence: Silence | None, former: Silence) -> bool:
    """Return whether what the former record has muted is what the newer one mutes, so that it ends with that."""
    return silence is not None and silence.scope == former.scope and silence.starts_ms <= former.starts_ms
