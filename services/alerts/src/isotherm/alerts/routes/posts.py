"""The HTTP request of a notification, by the kind of its route."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, assert_never

from isotherm.alerts.routes.kinds import AlertmanagerRoute, PagerDutyRoute, SlackRoute, WebhookRoute
from isotherm.alerts.routes.notification import Alert, Notification, alert_json, is_closed, view
from isotherm.alerts.routes.templates import render
from isotherm.servicekit.webhooks.signature import header_value, signature, signing_key

HttpRoute = WebhookRoute | AlertmanagerRoute | SlackRoute | PagerDutyRoute

_JSON = "application/json"
_MAX_SUMMARY = 1_024
"""Most letters of an incident's title (PagerDuty's `payload.summary`)."""
_MAX_EVENT_BYTES = 512_000
"""PagerDuty refuses larger events; one with fewer alerts in its details is told."""
_MAX_LISTED = 1_000
"""Most alerts that the default body of a webhook holds; it counts the others."""


@dataclass(frozen=True, slots=True)
class Post:
    """One request. Its address and headers may be secrets, so it does not show them."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def post_of(route: HttpRoute, notification: Notification, now: datetime) -> Post:
    """Return the request that tells of a notification at the time `now` (UTC). Raises TemplateFailedError."""
    if isinstance(route, WebhookRoute):
        return _webhook(route, notification, now)
    if isinstance(route, AlertmanagerRoute):
        return _alertmanager(route, notification, now)
    if isinstance(route, SlackRoute):
        return _slack(route, notification)
    if isinstance(route, PagerDutyRoute):
        return _pagerduty(route, notification)
    assert_never(route)


def is_needed(route: HttpRoute, notification: Notification) -> bool:
    """Return whether the target has to learn of a notification.

    An event for PagerDuty that some alerts of a storm have ended, and others not, would open the incident again when
    somebody has resolved it.
    """
    storm = notification.storm
    return not (isinstance(route, PagerDutyRoute) and storm and storm.open and all(map(is_closed, notification.alerts)))


def _webhook(route: WebhookRoute, notification: Notification, now: datetime) -> Post:
    values = view(notification, route.max_alerts if route.template is not None else _MAX_LISTED)
    if route.template is not None:
        body = render(route.template, values).encode()
    elif route.tells_each and notification.storm is None:
        body = alert_json(notification.alerts[0])
    else:
        left_out = {"alert"} if notification.storm is not None else {"alert", "storm"}
        body = json.dumps({name: value for name, value in values.items() if name not in left_out}).encode()
    headers = {"Content-Type": route.content_type, "Idempotency-Key": header_value(notification.key)}
    headers |= _bearer(route.authorization_token.get_secret_value() if route.authorization_token else None)
    if route.signing_secret is not None:
        headers |= signature(signing_key(route.signing_secret.get_secret_value()), notification.key, now, body)
    return Post(route.url, headers, body)


def _alertmanager(route: AlertmanagerRoute, notification: Notification, now: datetime) -> Post:
    headers = {"Content-Type": _JSON}
    headers |= _bearer(route.authorization_token.get_secret_value() if route.authorization_token else None)
    if route.username is not None:
        user = f"{route.username}:{route.password.get_secret_value() if route.password else ''}"
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    body = json.dumps([_alertmanager_alert(route, alert, now) for alert in notification.alerts]).encode()
    return Post(f"{route.url.rstrip('/')}/api/v2/alerts", headers, body)


def _alertmanager_alert(route: AlertmanagerRoute, alert: Alert, now: datetime) -> dict[str, Any]:
    """Return a `postableAlert` of Alertmanager's API v2.

    An alert without `endsAt` would end by itself after `resolve_timeout`, and one that ends in the past is resolved.
    So an open alert ends in a year, and its closing says when it ended.
    """
    labels = {
        **route.labels,
        "alertname": alert["rule"],
        "severity": alert["severity"],
        "device": alert["device_id"],
        "metric": alert["metric"] or "",
        **{name: value or "" for name, value in alert["attributes"].items()},
    }
    opened: datetime = alert["opened_at"]
    ended = alert["closed_at"] if is_closed(alert) else now + timedelta(days=365)
    # Alertmanager ignores an alert that ends before it starts, and takes one that ends in the future for an open one.
    ends = max(opened, min(ended, now)) if is_closed(alert) else ended
    return {
        # A label without a value is no label (Alertmanager's data model).
        "labels": {name: str(value) for name, value in labels.items() if value},
        "annotations": {"summary": alert["message"] or "", "alert_id": alert["alert_id"]},
        "startsAt": min(opened, ends).isoformat(),
        "endsAt": ends.isoformat(),
    }


def _slack(route: SlackRoute, notification: Notification) -> Post:
    text = render(route.text, _escaped(view(notification, route.max_alerts)))
    body = {"text": text, **({"channel": route.channel} if route.channel else {})}
    return Post(route.secret_url.get_secret_value(), {"Content-Type": _JSON}, json.dumps(body).encode())


def _escaped(value: Any) -> Any:
    """Return values whose texts are no commands of Slack: a device named `<!channel>` would call everybody."""
    if isinstance(value, str):
        return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if isinstance(value, Mapping):
        return {name: _escaped(one) for name, one in value.items()}
    return [_escaped(one) for one in value] if isinstance(value, list) else value


def _pagerduty(route: PagerDutyRoute, notification: Notification) -> Post:
    listed = route.max_alerts
    while len(body := _event(route, notification, listed)) > _MAX_EVENT_BYTES and listed > 1:
        listed //= 2
    return Post(route.url, {"Content-Type": _JSON}, body)


def _event(route: PagerDutyRoute, notification: Notification, listed: int) -> bytes:
    values = view(notification, listed)
    first = notification.alerts[0]
    # All events with one key are one incident; a key has at most 255 letters.
    if notification.storm is not None:
        named = f"storm\n{notification.storm.name}"
    else:
        named = first["alert_id"] if route.tells_each else json.dumps(dict(notification.group), sort_keys=True)
    event: dict[str, Any] = {
        "routing_key": route.secret_routing_key.get_secret_value(),
        "event_action": "resolve" if notification.status == "closed" else "trigger",
        "dedup_key": hashlib.sha256(f"{route.name}\n{named}".encode()).hexdigest()[:32],
        "client": "Isotherm",
        "payload": {
            "summary": render(route.summary, values)[:_MAX_SUMMARY],
            "source": first["device_id"] if len(notification.alerts) == 1 else "Isotherm",
            "severity": notification.severity,
            "timestamp": first["opened_at"].isoformat(),
            "class": first["rule"],
            "custom_details": {name: values[name] for name in ("group", "count", "omitted", "alerts")},
        },
    }
    return json.dumps(event).encode()


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}
