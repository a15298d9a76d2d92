"""Pages of devices: their newest values, their windows as charts, and alerts."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import FastAPI, Request, Response

from isotherm.connector.offsets.replay import time_ms_of
from isotherm.console.devices.browser import DeviceBrowser, WindowsView
from isotherm.console.devices.commands import CommandControl
from isotherm.console.devices.device_states import DeviceView
from isotherm.console.devices.silences import SilenceControl
from isotherm.console.errors import BadRequestError, RestError
from isotherm.console.pages.commands import section_of
from isotherm.console.pages.drawing import chart
from isotherm.console.pages.silences import DURATIONS_MIN, notes_of, scope_of
from isotherm.console.pages.templating import Templates

PAGE_DEVICES = 50
_PAGE_ALERTS = 200
_SPANS_MIN = {"15": "15 minutes", "60": "an hour", "360": "six hours", "1440": "a day"}
_DEFAULT_SPAN_MIN = "60"


def add(
    app: FastAPI, templates: Templates, browser: DeviceBrowser, silences: SilenceControl, commands: CommandControl
) -> None:
    """Serve the pages below `/devices`, and `/alerts`."""
    _add_list(app, templates, browser)
    _add_device(app, templates, browser, commands)
    _add_alerts(app, templates, browser, silences)


def _add_list(app: FastAPI, templates: Templates, browser: DeviceBrowser) -> None:
    @app.get("/devices")
    def devices(text: str = "", after: str = "") -> Response:
        found = browser.find(text.strip(), after, PAGE_DEVICES + 1)
        listed = found[:PAGE_DEVICES]
        following = {"text": text, "after": listed[-1].device_id} if len(found) > PAGE_DEVICES else {}
        return templates.page(
            "devices.html",
            devices=listed,
            text=text,
            after=after,
            more="?" + urlencode(following) if following else "",
            known=browser.known,
            silent=browser.silent,
            is_full=browser.is_full,
            incomplete=browser.problem,
        )


def _add_device(app: FastAPI, templates: Templates, browser: DeviceBrowser, commands: CommandControl) -> None:
    @app.get("/devices/{device_id:path}")
    def device(device_id: str, request: Request, minutes: str = _DEFAULT_SPAN_MIN, until: str = "") -> Response:
        known = browser.device(device_id)
        alerts = browser.alerts.of_device(device_id)
        section = section_of(commands, device_id, request.state.caller)
        windows, problem = None, ""
        try:
            windows = _windows(browser, device_id, minutes, until.strip())
        except RestError as error:
            problem = str(error)
        has_windows = windows is not None and bool(windows.metrics)
        is_found = known is not None or bool(alerts) or bool(section["commands"]) or has_windows
        return templates.page(
            "device.html",
            200 if is_found else 404,
            device=known or DeviceView(device_id),
            is_known=known is not None,
            open_alerts=[one for one in alerts if one.is_open],
            closed_alerts=[one for one in alerts if not one.is_open][:_PAGE_ALERTS],
            windows=windows,
            charts={metric: chart.draw(of) for metric, of in windows.metrics.items()} if windows else {},
            frame=chart,
            problem=problem,
            minutes=minutes,
            until=until,
            spans=_SPANS_MIN,
            earlier="?" + urlencode({"minutes": minutes, "until": f"@{windows.from_ms}"}) if windows else "",
            incomplete=browser.problem,
            **section,
        )


def _add_alerts(app: FastAPI, templates: Templates, browser: DeviceBrowser, silences: SilenceControl) -> None:
    @app.get("/alerts")
    def alerts(text: str = "") -> Response:
        now_ms = silences.now_ms()
        listed = silences.silences.listed(now_ms)
        still_open, closed = browser.alerts.open(text.strip()), browser.alerts.closed(text.strip())
        return templates.page(
            "alerts.html",
            text=text,
            open_alerts=still_open[:_PAGE_ALERTS],
            notes=notes_of(still_open[:_PAGE_ALERTS], silences, browser),
            silences=[(one, one.state(now_ms), scope_of(one)) for one in listed[:_PAGE_ALERTS]],
            silence_count=len(listed),
            durations=DURATIONS_MIN,
            open_count=len(still_open),
            closed_alerts=closed[:_PAGE_ALERTS],
            closed_count=len(closed),
            is_full=browser.alerts.is_full,
            incomplete=browser.problem,
        )


def _windows(browser: DeviceBrowser, device_id: str, minutes: str, until: str) -> WindowsView:
    if minutes not in _SPANS_MIN:
        raise BadRequestError(f"minutes {minutes!r} is not allowed; expected one of {', '.join(_SPANS_MIN)}")
    try:
        until_ms = time_ms_of(until) if until else None
    except ValueError:
        raise BadRequestError(f"until {until!r} is not a time; expected one such as 2026-01-31T12:00:00Z") from None
    return browser.windows(device_id, int(minutes) * 60_000, until_ms)
