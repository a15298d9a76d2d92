"""The forms of the alerts page: acknowledge an alert, silence alerts for a time, end a silence."""

from __future__ import annotations

import uuid

from fastapi import FastAPI, Request, Response

from isotherm.connector.offsets.replay import time_ms_of
from isotherm.console.devices.alerts import Alert
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.devices.silences import ATTRIBUTES, Silence, SilenceControl
from isotherm.console.errors import BadRequestError
from isotherm.console.pages.context import Form, first_value, redirect

_PATH = "/ui/alerts"
_MINUTE_MS = 60_000
DURATIONS_MIN = {"30": "30 minutes", "120": "2 hours", "480": "8 hours", "1440": "a day", "10080": "a week"}


def add(app: FastAPI, control: SilenceControl) -> None:
    """Serve the forms below `/alerts`."""

    @app.post("/alerts/acknowledge")
    def acknowledge(form: Form, request: Request) -> Response:
        alert_id = first_value(form, "alert")
        if not alert_id:
            raise BadRequestError("Choose an alert.")
        control.acknowledge(alert_id, request.state.caller.name)
        return redirect(_PATH)

    @app.post("/alerts/silence")
    def silence(form: Form, request: Request) -> Response:
        control.put(_wanted(form, request.state.caller.name, control.now_ms()))
        return redirect(_PATH)

    @app.post("/alerts/unsilence")
    def unsilence(form: Form, request: Request) -> Response:
        control.end(first_value(form, "silence"), request.state.caller.name)
        return redirect(_PATH)


def _wanted(form: Form, user: str, now_ms: int) -> Silence:
    minutes, start = first_value(form, "minutes"), first_value(form, "start").strip()
    if minutes not in DURATIONS_MIN:
        raise BadRequestError(f"minutes {minutes!r} is not allowed; expected one of {', '.join(DURATIONS_MIN)}")
    try:
        starts_ms = time_ms_of(start) if start else now_ms
    except ValueError:
        raise BadRequestError(f"start {start!r} is not a time; expected one such as 2026-01-31T12:00:00Z") from None
    return Silence(
        uuid.uuid4().hex[:12],
        "maintenance" if start else "silence",
        None,
        _patterns(form, "device"),
        _patterns(form, "rule"),
        {name: patterns for name in ATTRIBUTES if (patterns := _patterns(form, name))},
        starts_ms,
        starts_ms + int(minutes) * _MINUTE_MS,
        first_value(form, "comment").strip(),
        user,
        now_ms,
    )


def _patterns(form: Form, name: str) -> tuple[str, ...]:
    text = first_value(form, name).strip()
    return (text,) if text else ()


def scope_of(silence: Silence) -> str:
    """Return what a silence is about, for a person."""
    if silence.alert_id is not None:
        return f"alert {silence.alert_id}"
    named = {"device": silence.devices, "rule": silence.rules, **silence.groups}
    return ", ".join(f"{name} {pattern}" for name, patterns in named.items() for pattern in patterns)


def notes_of(alerts: list[Alert], control: SilenceControl, devices: DeviceBrowser) -> dict[str, str]:
    """Return who has acknowledged or silenced each of the alerts, by id; nothing for the others."""
    now_ms = control.now_ms()
    active = [one for one in control.silences.listed(now_ms) if one.state(now_ms) == "active"]
    acknowledged = {one.alert_id: one for one in active if one.alert_id is not None}
    scopes = [one for one in active if one.alert_id is None]
    notes = {}
    for alert in alerts:
        found = acknowledged.get(alert.alert_id)
        if found is not None:
            notes[alert.alert_id] = f"acknowledged by {found.created_by}"
        elif scopes and (muting := _muting(alert, scopes, devices)) is not None:
            notes[alert.alert_id] = f"silenced by {muting.created_by}"
    return notes


def _muting(alert: Alert, scopes: list[Silence], devices: DeviceBrowser) -> Silence | None:
    view = devices.device(alert.device_id) if any(one.groups for one in scopes) else None
    provisioned = None if view is None else view.provisioned
    attributes = {} if provisioned is None else {name: getattr(provisioned, name) for name in ATTRIBUTES}
    return next((one for one in scopes if one.covers(alert, attributes)), None)
