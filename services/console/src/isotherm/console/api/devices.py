"""Devices, their windows and their alerts under `/isotherm`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from isotherm.connector.offsets.replay import time_ms_of
from isotherm.console.api.models import ResponseModel, without_unit
from isotherm.console.devices.alerts import Alert
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.devices.device_states import DeviceView
from isotherm.console.devices.windows import Window
from isotherm.console.errors import BadRequestError, NotFoundError

_HOUR_MS = 3_600_000


class LatestResponse(ResponseModel):
    """The newest reading of one metric."""

    value: float
    unit: str
    event_time: int
    sequence: int


class ProvisionedResponse(ResponseModel):
    """A device's metadata in the topic `devices`; null where it says nothing."""

    home: str | None
    room: str | None
    region: str | None
    model: str | None


class DeviceResponse(ResponseModel):
    """A device with its newest state and its metadata. Times are epoch milliseconds."""

    device_id: str
    reported: bool = Field(description="Whether the device has ever sent a reading; if not, there are no times.")
    provisioned: ProvisionedResponse | None = Field(
        description="The metadata that `isotherm devices import` has stored."
    )
    last_seen: int | None
    updated_at: int | None
    latest: dict[str, LatestResponse] = Field(description="The newest reading of each metric.")
    open_alerts: list[str] = Field(description="Ids of the open alerts.")
    error: str | None = Field(description="Why the stored state or metadata cannot be decoded.")


class DevicesResponse(ResponseModel):
    """Devices, sorted by id."""

    devices: list[DeviceResponse]
    problem: str | None = Field(description="Why some devices may be missing.")


class AlertResponse(ResponseModel):
    """The newest state of an alert. Times are epoch milliseconds of event time."""

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


class AlertsResponse(ResponseModel):
    """Alerts: open ones sorted by severity and time, closed ones by the time of closing."""

    alerts: list[AlertResponse]
    problem: str | None = Field(description="Why some alerts may be missing.")


class WindowResponse(ResponseModel):
    """One window of one metric. Times are epoch milliseconds; the end is exclusive."""

    metric: str
    start: int
    end: int
    count: int
    mean: float
    min: float
    max: float
    stddev: float
    revision: int


class WindowsResponse(ResponseModel):
    """The windows of a device that were published in a time range."""

    metrics: dict[str, list[WindowResponse]] = Field(
        description="Sorted by time; of each window only the highest revision."
    )
    published_from: int = Field(description="Epoch milliseconds; how far back the search has read.")
    published_to: int
    is_cut: bool = Field(description="Whether the search ended before it had read the whole time range.")
    unreadable: int = Field(description="Records of the device that could not be decoded.")


def router(browser: DeviceBrowser) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter()

    @routes.get("/devices", summary="Devices with their newest values, sorted by id")
    def devices(
        text: Annotated[str, Query(description="Text that the id contains, case-insensitive.")] = "",
        after: Annotated[str, Query(description="The last id of the previous response.")] = "",
        limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
    ) -> DevicesResponse:
        found = browser.find(text, after, limit)
        return DevicesResponse(devices=[_device(one) for one in found], problem=browser.problem or None)

    # This route stands before the one of a device, because an id may contain slashes.
    @routes.get("/devices/{device_id:path}/windows", summary="A device's window aggregates")
    def windows(
        device_id: str,
        until: Annotated[
            str | None, Query(description="A time, or @ and epoch milliseconds; now when left out.")
        ] = None,
        span_ms: Annotated[int, Query(ge=1, le=30 * 24 * _HOUR_MS)] = _HOUR_MS,
    ) -> WindowsResponse:
        try:
            until_ms = None if until is None else time_ms_of(until)
        except ValueError:
            raise BadRequestError(f"until: {until!r} is not a time") from None
        found = browser.windows(device_id, span_ms, until_ms)
        return WindowsResponse(
            metrics={metric: [_window(one) for one in of] for metric, of in found.metrics.items()},
            published_from=found.from_ms,
            published_to=found.to_ms,
            is_cut=found.is_cut,
            unreadable=found.unreadable,
        )

    @routes.get("/devices/{device_id:path}/alerts", summary="A device's alerts, open ones first")
    def device_alerts(device_id: str) -> AlertsResponse:
        return _alerts(browser, browser.alerts.of_device(device_id))

    @routes.get("/devices/{device_id:path}", summary="One device with its newest values")
    def device(device_id: str) -> DeviceResponse:
        found = browser.device(device_id)
        if found is None:
            raise NotFoundError(f"Device {device_id} is unknown")
        return _device(found)

    @routes.get("/alerts", summary="Alerts of all devices")
    def alerts(
        state: Literal["open", "closed"] = "open",
        text: Annotated[str, Query(description="Text that the device's id contains, case-insensitive.")] = "",
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    ) -> AlertsResponse:
        found = browser.alerts.open(text) if state == "open" else browser.alerts.closed(text)
        return _alerts(browser, found[:limit])

    return routes


def _device(device: DeviceView) -> DeviceResponse:
    return DeviceResponse(
        device_id=device.device_id,
        reported=device.has_reported,
        provisioned=None if device.provisioned is None else ProvisionedResponse(**device.provisioned._asdict()),
        last_seen=device.last_seen_ms if device.has_reported else None,
        updated_at=device.updated_at_ms if device.has_reported else None,
        latest={
            one.metric: LatestResponse(value=one.value, unit=one.unit, event_time=one.at_ms, sequence=one.sequence)
            for one in device.latest
        },
        open_alerts=list(device.open_alerts),
        error=device.problem or None,
    )


def _alerts(browser: DeviceBrowser, alerts: list[Alert]) -> AlertsResponse:
    return AlertsResponse(alerts=[_alert(one) for one in alerts], problem=browser.problem or None)


def _alert(alert: Alert) -> AlertResponse:
    return AlertResponse(**without_unit(alert._asdict()))


def _window(window: Window) -> WindowResponse:
    return WindowResponse(**without_unit(asdict(window)))
