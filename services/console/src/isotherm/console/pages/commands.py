"""Commands on the page of a device: what became of them, and a form that issues one."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import FastAPI, Request, Response

from isotherm.connector.commands.records import ANSWERED, DELIVERED, EXPIRED, UNCONFIRMED
from isotherm.console.access.policy import Caller, Role
from isotherm.console.devices.command_log import CommandView
from isotherm.console.devices.commands import MAX_TIMEOUT_MS, CommandControl, CommandRequest
from isotherm.console.errors import BadRequestError
from isotherm.console.pages.context import Form, first_value, redirect

PAGE_COMMANDS = 50
_MAX_SHOWN = 2_000
"""Characters of a payload or an answer on the page."""
_LIVE_MS = 60_000
"""How long after its deadline the page still looks for a command's outcome."""
_COLOURS = {None: "info", "accepted": "info", DELIVERED: "running", ANSWERED: "running"}
_UNDECIDED = (EXPIRED, UNCONFIRMED)
_MAX_DIGITS = 9


class CommandRow(NamedTuple):
    """A command as the page shows it."""

    view: CommandView
    outcome: str
    colour: str
    """The class of the outcome's style."""
    payload: str
    """Empty where there is none, where it is unknown, and for who may not see it; so is the answer."""
    answer: str


def add(app: FastAPI, control: CommandControl) -> None:
    """Serve the form below `/devices/DEVICE/commands`."""

    @app.post("/devices/{device_id:path}/commands")
    def issue(device_id: str, form: Form, request: Request) -> Response:
        control.issue(device_id, _wanted(form), request.state.caller.name)
        return redirect(f"/ui/devices/{quote(device_id, safe='')}#commands")


def section_of(control: CommandControl, device_id: str, caller: Caller) -> dict[str, Any]:
    """Return the values of the template `device_commands.html`."""
    views = control.log.of_device(device_id)
    may_see = caller.role >= Role.OPERATOR
    return {
        "commands": [_row(one, may_see=may_see) for one in views[:PAGE_COMMANDS]],
        "command_count": len(views),
        "commands_are_live": any(control.is_pending(one, _LIVE_MS) for one in views),
        "commands_incomplete": control.problem,
    }


def _row(view: CommandView, *, may_see: bool) -> CommandRow:
    outcome = None if view.newest is None else view.newest.outcome
    payload = view.command.payload if view.command is not None and may_see else b""
    answer = view.final.answer if view.final is not None and may_see else b""
    colour = _COLOURS.get(outcome) or ("warning" if outcome in _UNDECIDED else "critical")
    return CommandRow(view, outcome or "issued", colour, _shown(payload), _shown(answer))


def _shown(content: bytes) -> str:
    text = content.decode(errors="backslashreplace")
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _wanted(form: dict[str, list[str]]) -> CommandRequest:
    seconds, qos = first_value(form, "timeout").strip(), first_value(form, "qos")
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) <= _MAX_DIGITS):
        raise BadRequestError(f"time-out {seconds[:50]!r} is not allowed: 1 to {MAX_TIMEOUT_MS // 1000} seconds")
    if qos not in ("0", "1", "2"):
        raise BadRequestError(f"qos {qos[:50]!r} is not allowed; expected 0, 1 or 2")
    return CommandRequest(
        first_value(form, "name").strip(),
        # Browsers send line breaks as CR LF.
        first_value(form, "payload").replace("\r\n", "\n").encode(),
        first_value(form, "content_type").strip() or None,
        int(seconds) * 1000,
        int(qos),
        first_value(form, "expects_answer") == "yes",
    )
