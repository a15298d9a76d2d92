"""Devices, their windows and alerts over REST, under `/isotherm`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from isotherm.connector.offsets.replay import time_ms_of
from isotherm.console.api.models import Answer
from isotherm.console.devices.alerts import Alert
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.devices.device_states import DeviceView
from isotherm.console.devices.windows import Window
from isotherm.console.errors import BadRequestError, NotFoundError

_HOUR_MS = 3_600_000


class LatestAnswer(Answer):
    """The newest reading of one metric."""

    value: float
    unit: str
    event_time: int
    sequence: int


class ProvisionedAnswer(Answer):
    """What the topic `devices` says of a device; null where it says nothing."""

    home: str | None
    room: str | None
    region: str | None
    model: str | None


class DeviceAnswer(Answer):
    """A device as its newest state tells it, and what was known before; times are epoch milliseconds."""

    device_id: str
    reported: bool = Field(description="Whether it has said anything, ever; if not, there are no times.")
    provisioned: ProvisionedAnswer | None = Field(description="What `isotherm devices import` has made known of it.")
    last_seen: int | None
    updated_at: int | None
    latest: dict[str, LatestAnswer] = Field(description="The newest reading of each metric.")
    open_alerts: list[str] = Field(description="Ids of alerts.")
    error: str | None = Field(description="Why what is known of it cannot be read.")


class DevicesAnswer(Answer):
    """Devices by id."""

    devices: list[DeviceAnswer]
    problem: str | None = Field(description="Why not every device may be known yet.")


class AlertAnswer(Answer):
    """The newest state of an alert; times are epoch milliseconds of event time."""

    alert_id: str
    device_id: str
    rule: str
    severity: str
    state: str
    opened_at: int
    updated_at: int
    closed_at: int | None
    metric: str | None
    value: float | None
    threshold: float | None
    message: str | None


class AlertsAnswer(Answer):
    """Alerts: open ones by severity, then time; closed ones by the time of closing."""

    alerts: list[AlertAnswer]
    problem: str | None = Field(description="Why not every alert may be known yet.")


class WindowAnswer(Answer):
    """One window of one metric; times are epoch milliseconds, the end is not in it."""

    metric: str
    start: int
    end: int
    count: int
    mean: float
    min: float
    max: float
    stddev: float
    revision: int


class WindowsAnswer(Answer):
    """The windows of a device that were published in a time."""

    metrics: dict[str, list[WindowAnswer]] = Field(description="By time; of each window the highest revision.")
    published_from: int = Field(description="Epoch milliseconds; as far back as was looked.")
    published_to: int
    is_cut: bool = Field(description="Whether the search was ended before it had come as far back as was asked.")
    unreadable: int = Field(description="Records of the device that are no windows.")


def router(browser: DeviceBrowser) -> APIRouter:
    """The routes; all errors leave as RestError."""
    routes = APIRouter()

    @routes.get("/devices", summary="Devices with their newest values, by id")
    def devices(
        text: Annotated[str, Query(description="What the id contains, upper or lower case.")] = "",
        after: Annotated[str, Query(description="The last id of another answer.")] = "",
        limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
    ) -> DevicesAnswer:
        found = browser.find(text, after, limit)
        return DevicesAnswer(devices=[_device(one) for one in found], problem=browser.problem or None)

    # Before the route of a device: an id may contain anything, slashes among it.
    @routes.get("/devices/{device_id:path}/windows", summary="A device's window aggregates")
    def windows(
        device_id: str,
        until: Annotated[str | None, Query(description="A time, or @ and epoch ms; now when left out.")] = None,
        span_ms: Annotated[int, Query(ge=1, le=30 * 24 * _HOUR_MS)] = _HOUR_MS,
    ) -> WindowsAnswer:
        try:
            until_ms = None if until is None else time_ms_of(until)
        except ValueError:
            raise BadRequestError(f"until: {until!r} is no time") from None
        found = browser.windows(device_id, span_ms, until_ms)
        return WindowsAnswer(
            metrics={metric: [_window(one) for one in of] for metric, of in found.metrics.items()},
            published_from=found.from_ms,
            published_to=found.to_ms,
            is_cut=found.is_cut,
            unreadable=found.unreadable,
        )

    @routes.get("/devices/{device_id:path}/alerts", summary="A device's alerts, open ones first")
    def device_alerts(device_id: str) -> AlertsAnswer:
        return _alerts(browser, browser.alerts.of_device(device_id))

    @routes.get("/devices/{device_id:path}", summary="One device with its newest values")
    def device(device_id: str) -> DeviceAnswer:
        found = browser.device(device_id)
        if found is None:
            raise NotFoundError(f"Nothing is known of a device {device_id}")
        return _device(found)

    @routes.get("/alerts", summary="Alerts of all devices")
    def alerts(
        state: Literal["open", "closed"] = "open",
        text: Annotated[str, Query(description="What the device's id contains, upper or lower case.")] = "",
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    ) -> AlertsAnswer:
        found = browser.alerts.open(text) if state == "open" else browser.alerts.closed(text)
        return _alerts(browser, found[:limit])

    return routes


def _device(device: DeviceView) -> DeviceAnswer:
    return DeviceAnswer(
        device_id=device.device_id,
        reported=device.has_reported,
        provisioned=None if device.provisioned is None else ProvisionedAnswer(**device.provisioned._asdict()),
        last_seen=device.last_seen_ms if device.has_reported else None,
        updated_at=device.updated_at_ms if device.has_reported else None,
        latest={
            one.metric: LatestAnswer(value=one.value, unit=one.unit, event_time=one.at_ms, sequence=one.sequence)
            for one in device.latest
        },
        open_alerts=list(device.open_alerts),
        error=device.problem or None,
    )


def _alerts(browser: DeviceBrowser, alerts: list[Alert]) -> AlertsAnswer:
    return AlertsAnswer(alerts=[_alert(one) for one in alerts], problem=browser.problem or None)


def _alert(alert: Alert) -> AlertAnswer:
    return AlertAnswer(**_told(alert._asdict()))


def _window(window: Window) -> WindowAnswer:
    return WindowAnswer(**_told(asdict(window)))


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields by the names that they have here: all times are epoch milliseconds."""
    return {name.removesuffix("_ms"): value for name, value in fields.items()}
