"""Silences, maintenance windows and acknowledgements, and which alerts they keep from being told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotherm.alerts.routes.matching import RouteFilter
from isotherm.alerts.routes.notification import Alert, is_closed
from isotherm.kcql.dates import epoch_ms


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
        return self.scope.takes(alert)


def silence_of(record: Mapping[str, Any]) -> Silence:
    """Return the silence of a decoded Silence record. Raises ValueError when its scope is not understood."""
    ends = [epoch_ms(record[name]) for name in ("ends_at", "ended_at") if record[name] is not None]
    scope = RouteFilter(rules=record["rules"], devices=record["devices"], groups=record["groups"])
    return Silence(scope, record["alert_id"], epoch_ms(record["starts_at"]), min(ends, default=None))


class SilenceTable:
    """The newest record of each silence. One thread writes it, others read it."""

    def __init__(self) -> None:
        self._silences: dict[str, Silence] = {}
        self._scopes: tuple[Silence, ...] = ()
        self._acknowledged: dict[str, Silence] = {}

    def put(self, silence_id: str, silence: Silence | None) -> None:
        """Store a silence; None forgets it."""
        silences = {key: value for key, value in self._silences.items() if key != silence_id}
        if silence is not None:
            silences[silence_id] = silence
        # Readers see the old tables or the new ones, never one that changes.
        self._silences = silences
        self._scopes = tuple(one for one in silences.values() if one.alert_id is None)
        self._acknowledged = {one.alert_id: one for one in silences.values() if one.alert_id is not None}

    def mutes(self, alert: Alert, at_ms: int) -> bool:
        """Return whether a state of an alert that Kafka has stored at `at_ms` is not told."""
        acknowledged = self._acknowledged.get(alert["alert_id"])
        if acknowledged is not None and acknowledged.mutes(alert, at_ms):
            return True
        return any(silence.mutes(alert, at_ms) for silence in self._scopes)

    def ended(self, since_ms: int, until_ms: int) -> dict[tuple[str, int], Silence]:
        """Return the silences of alerts that ended after `since_ms`, and at `until_ms` or before, by id and end."""
        return {
            (silence_id, one.ends_ms): one
            for silence_id, one in self._silences.items()
            if one.alert_id is None
            and one.ends_ms is not None
            and since_ms < one.ends_ms <= until_ms
            and one.ends_ms > one.starts_ms
        }
