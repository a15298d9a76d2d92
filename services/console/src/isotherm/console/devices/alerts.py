"""The newest state of each alert: open alerts, and the ones that were closed last. Bounded; does no IO."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import isotherm.schemas
from isotherm.kcql.dates import epoch_ms

TOPIC = "alerts"
SCHEMA = isotherm.schemas.schema("Alert", 1)
_SEVERITIES = ("critical", "warning", "info")
_CLOSED = "closed"


class Alert(NamedTuple):
    """The newest state of one alert. Times are epoch milliseconds."""

    alert_id: str
    device_id: str
    rule: str
    severity: str
    state: str
    opened_at_ms: int
    updated_at_ms: int
    closed_at_ms: int | None
    metric: str | None
    value: float | None
    threshold: float | None
    message: str | None

    @property
    def is_open(self) -> bool:
        """Whether the alert is open."""
        return self.state != _CLOSED


def alert_of(record: Mapping[str, Any]) -> Alert:
    """Read a decoded Alert record."""
    closed_at = record["closed_at"]
    return Alert(
        record["alert_id"],
        record["device_id"],
        record["rule"],
        record["severity"],
        record["state"],
        epoch_ms(record["opened_at"]),
        epoch_ms(record["updated_at"]),
        None if closed_at is None else epoch_ms(closed_at),
        record["metric"],
        record["value"],
        record["threshold"],
        record["message"],
    )


class Alerts:
    """The alerts that the follower has read. Thread-safe."""

    def __init__(self, max_alerts: int) -> None:
        """Keep at most `max_alerts` open alerts and as many closed ones; the oldest are dropped."""
        self._max_alerts = max_alerts
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Alert] = OrderedDict()
        self._closed: OrderedDict[str, Alert] = OrderedDict()
        self.is_full = False
        """Whether an open alert was dropped."""

    def update(self, alert: Alert) -> None:
        """Store a state of an alert. Its writer repeats states after a crash, which does not reopen closed alerts."""
        with self._lock:
            if alert.alert_id in self._closed:
                return
            if not alert.is_open:
                self._open.pop(alert.alert_id, None)
                self._closed[alert.alert_id] = alert
                if len(self._closed) > self._max_alerts:
                    self._closed.popitem(last=False)
                return
            known = self._open.get(alert.alert_id)
            if known is None or alert.updated_at_ms >= known.updated_at_ms:
                self._open[alert.alert_id] = alert
            if len(self._open) > self._max_alerts:
                self._open.popitem(last=False)
                self.is_full = True

    def open(self, text: str = "") -> list[Alert]:
        """Return open alerts of devices whose id contains `text`: the most severe first, then the newest."""
        found = self._of(self._open, text)
        return sorted(found, key=lambda one: (_rank(one.severity), -one.opened_at_ms, one.alert_id))

    def closed(self, text: str = "") -> list[Alert]:
        """Return closed alerts of devices whose id contains `text`, the last closed one first."""
        found = self._of(self._closed, text)
        return sorted(found, key=lambda one: (-(one.closed_at_ms or 0), one.alert_id))

    def of_device(self, device_id: str) -> list[Alert]:
        """Return all alerts of one device, open ones first."""
        return [one for one in (*self.open(device_id), *self.closed(device_id)) if one.device_id == device_id]

    def _of(self, alerts: Mapping[str, Alert], text: str) -> Iterable[Alert]:
        folded = text.casefold()
        with self._lock:
            return [one for one in alerts.values() if folded in one.device_id.casefold()]


def _rank(severity: str) -> int:
    """Sort key: the most severe first; an unknown severity comes before all, so that it is noticed."""
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else -1
