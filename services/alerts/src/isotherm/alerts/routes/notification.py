"""A notification: the alerts that one message of a route tells of, and the names under which it is recognised."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

ATTRIBUTES = ("home", "region", "model")
"""The attributes of a device by which routes filter and group."""

Alert = Mapping[str, Any]
"""A decoded Alert record, with the attributes of its device under `attributes`."""


@dataclass(frozen=True, slots=True)
class StormState:
    """The storm of which a notification tells, at the time of the notification."""

    name: str
    """Of one route's storms none has the same name."""
    open: int
    """How many alerts of the storm are open, in all of its notifications."""


@dataclass(frozen=True, slots=True)
class Notification:
    """The newest states of one or more alerts of one group, oldest first."""

    route: str
    group: Mapping[str, str]
    """The values that the alerts share, by the names in the route's `group_by`; empty for a single alert."""
    alerts: tuple[Alert, ...]
    storm: StormState | None = None
    """None but for a route that tells each alert by itself, when more open than its `storm_limit`."""

    @property
    def status(self) -> str:
        """`opened` while at least one alert of the notification, or of its storm, is open, else `closed`."""
        if self.storm is not None:
            return "opened" if self.storm.open else "closed"
        return "closed" if all(is_closed(alert) for alert in self.alerts) else "opened"

    @property
    def key(self) -> str:
        """The same text for every repeat of the notification; of an alert by itself its id and state."""
        states = [f"{alert['alert_id']}/{alert['state']}" for alert in self.alerts]
        if self.storm is not None:
            # An alert may be told by itself and by storms: for the receiver these are different notifications.
            states += [f"storm {self.storm.name}", self.status]
        elif len(states) == 1:
            return states[0]
        return hashlib.sha256("\n".join(sorted(states)).encode()).hexdigest()[:32]

    @property
    def severity(self) -> str:
        """The highest severity of the alerts."""
        return max((str(alert["severity"]) for alert in self.alerts), key=_rank)


def with_attributes(record: Mapping[str, Any], present: Mapping[str, str | None]) -> Alert:
    """Return an Alert record with home, region and model of its device as they were when the alert opened.

    With others its end would not be the end of what the target knows. A record of an earlier release does not have
    them: then `present` counts, what the device has now.
    """
    kept = record["attributes"]
    attributes = present if kept is None else {name: kept.get(name) for name in ATTRIBUTES}
    return {**record, "attributes": attributes}


def common_labels(alerts: Sequence[Alert]) -> dict[str, str]:
    """Return what alerts of a storm have in common of rule, severity and region."""
    labels = [
        {"rule": one["rule"], "severity": one["severity"], "region": one["attributes"].get("region")} for one in alerts
    ]
    return {name: value for name, value in labels[0].items() if value and all(other[name] == value for other in labels)}


def is_closed(alert: Alert) -> bool:
    """Return whether this state ends the alert."""
    return bool(alert["state"] == "closed")


def _rank(severity: str) -> int:
    order = ("info", "warning", "critical")
    return order.index(severity) if severity in order else 0


def plain(value: object) -> object:
    """Return a value of an alert for JSON: times in ISO 8601."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def alert_json(alert: Alert) -> bytes:
    """Return an Alert record as JSON, without the attributes of its device."""
    fields = {name: _json(value) for name, value in alert.items() if name != "attributes"}
    return json.dumps(fields, default=plain).encode()


def view(notification: Notification, max_alerts: int) -> dict[str, Any]:
    """Return what a template may use: at most `max_alerts` alerts, the closed ones last, and how many are left out.

    Times are texts in ISO 8601.
    """
    in_order: Sequence[Alert] = sorted(notification.alerts, key=is_closed)
    shown = [_texts(alert) for alert in in_order[:max_alerts]]
    closed = sum(1 for alert in notification.alerts if is_closed(alert))
    return {
        "route": notification.route,
        "key": notification.key,
        "status": notification.status,
        "severity": notification.severity,
        "group": dict(notification.group),
        "count": len(notification.alerts),
        "opened": len(notification.alerts) - closed,
        "closed": closed,
        "omitted": len(notification.alerts) - len(shown),
        "alerts": shown,
        "alert": shown[0],
        "storm": None
        if notification.storm is None
        else {"name": notification.storm.name, "open": notification.storm.open},
    }


def _texts(alert: Alert) -> dict[str, Any]:
    return {name: _json(value) for name, value in alert.items()}


def _json(value: Any) -> Any:
    """Return a value of an alert as JSON can say it: it has no infinite numbers, and receivers refuse them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return plain(value) if isinstance(value, datetime) else value
