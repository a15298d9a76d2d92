"""Alerts as their topic tells them: which are open, and which were closed last; bounded. No IO."""

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
    """The newest state of one alert; times are epoch milliseconds."""

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
        """Whether it goes on."""
        return self.state != _CLOSED


def alert_of(record: Mapping[str, Any]) -> Alert:
    """An Alert record, decoded."""
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
    """The alerts that were read; safe to use from any thread."""

    def __init__(self, most: int) -> None:
        """Of more than `most` open alerts, and of as many closed ones, those that came first are left out."""
        self._most = most
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Alert] = OrderedDict()
        self._closed: OrderedDict[str, Alert] = OrderedDict()
        self.is_full = False
        """Whether an open alert was left out."""

    def take(self, alert: Alert) -> None:
        """A state of an alert. Repeats come after a crash of their writer: what is closed is not opened by one."""
        with self._lock:
            if alert.alert_id in self._closed:
                return
            if not alert.is_open:
                self._open.pop(alert.alert_id, None)
                self._closed[alert.alert_id] = alert
                if len(self._closed) > self._most:
                    self._closed.popitem(last=False)
                return
            known = self._open.get(alert.alert_id)
            if known is None or alert.updated_at_ms >= known.updated_at_ms:
                self._open[alert.alert_id] = alert
            if len(self._open) > self._most:
                self._open.popitem(last=False)
                self.is_full = True

    def open(self, text: str = "") -> list[Alert]:
        """Open alerts of devices whose id contains a text: the severest first, and of these the newest."""
        found = self._of(self._open, text)
        return sorted(found, key=lambda one: (_rank(one.severity), -one.opened_at_ms, one.alert_id))

    def closed(self, text: str = "") -> list[Alert]:
        """Closed alerts of devices whose id contains a text, the one that was closed last first."""
        found = self._of(self._closed, text)
        return sorted(found, key=lambda one: (-(one.closed_at_ms or 0), one.alert_id))

    def of_device(self, device_id: str) -> list[Alert]:
        """All alerts of one device, open ones first."""
        return [one for one in (*self.open(device_id), *self.closed(device_id)) if one.device_id == device_id]

    def _of(self, alerts: Mapping[str, Alert], text: str) -> Iterable[Alert]:
        wanted = text.casefold()
        with self._lock:
            return [one for one in alerts.values() if wanted in one.device_id.casefold()]


def _rank(severity: str) -> int:
    """The severest first; one that nobody knows before all, so that it is seen."""
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else -1
