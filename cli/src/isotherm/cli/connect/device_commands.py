"""`isotherm command` and `isotherm commands`: issue a command to a device, follow it, list what became of commands."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from isotherm.cli.connect import formats
from isotherm.cli.connect.rest import Connect, ConnectError, ConnectNotReachableError
from isotherm.cli.connect.session import connected, content_of, show
from isotherm.cli.options import EndpointOption, FormatOption
from isotherm.cli.output import fail, note, refuse
from isotherm.cli.times import duration_ms_or_refuse
from isotherm.connector.commands.records import MAX_PAYLOAD_BYTES
from isotherm.connector.config import files
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.exit_codes import Exit

_WAIT_MS = 20_000
"""How long one request waits for the outcome. A proxy between, or this client, would end a longer one."""
_SETTLING_MS = 60_000
"""How long after the deadline the outcome is waited for: it is decided a little later, from what services have done."""
_RETRY_CAP_MS = 5_000.0
_UNAVAILABLE = 503
_PRECISION = "milliseconds"
_GOOD = ("delivered", "answered")

DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="The device's id.")]


def command(
    device: DeviceArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the device is to do: one level of an MQTT topic.")],
    payload: Annotated[str | None, typer.Option("--payload", metavar="TEXT", help="Its content.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Its content, from a file; - is stdin.")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="The media type of the content.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long the device may get it, such as 30s or 2h.")
    ] = "60s",
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The QoS that is wished.")] = 1,
    expects_answer: Annotated[
        bool, typer.Option("--expects-answer", help="It is done only with the device's answer.")
    ] = False,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Its id; a second call with it issues nothing again.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the final outcome; exit code 1 if it is not delivered or answered.")
    ] = False,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Issue a command to a device, and print its id or with --wait its outcome. Needs the console."""
    timeout_ms = duration_ms_or_refuse("--timeout", timeout)
    asked = {
        "name": name,
        "content_type": content_type,
        "timeout_ms": timeout_ms,
        "qos": qos,
        "expects_answer": expects_answer,
        # It is chosen here, so that a call whose answer was lost can be repeated.
        "command_id": command_id or str(uuid.uuid4()),
        **_content(payload, file),
    }
    with connected(endpoint) as connect:
        found = _issued(connect, device, asked)
        if wait:
            found = _settled(connect, found, timeout_ms + _SETTLING_MS)
    lines = _properties(found) if wait else f"{found['command_id']}\n"
    show(found, format_, lines, lambda console: _show(found, console))
    if wait and not found["is_final"]:
        fail(f"{found['command_id']} has no final outcome yet; does `isotherm-console commands` run?")
    if wait and found["outcome"] not in _GOOD:
        raise typer.Exit(Exit.FAILED)


def commands(
    device: DeviceArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="How many at most.")] = 100,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """List the commands of a device with their newest outcomes, the newest first. Needs the console."""
    with connected(endpoint) as connect:
        found = connect.commands(device, limit)
    listed = found["commands"]
    lines = "".join(f"{one['command_id']}={_outcome(one)} {_plain(one['name'])}\n" for one in listed)
    show(listed, format_, lines, lambda console: _show_list(listed, console))
    if found["problem"]:
        note(f"some commands may be missing: {found['problem']}")


def _content(payload: str | None, file: Path | None) -> dict[str, str]:
    """Return the fields of a content; a file may hold any bytes."""
    if payload is not None and file is not None:
        refuse("give --payload or --file, one of them")
    if file is None:
        return {} if payload is None else {"payload": payload}
    content = content_of(file, MAX_PAYLOAD_BYTES, is_stdin=str(file) == "-")
    return {"payload_base64": base64.b64encode(content).decode()}


def _issued(connect: Connect, device: str, asked: Mapping[str, Any]) -> Any:
    try:
        return connect.issue_command(device, asked)
    except ConnectNotReachableError as error:
        fail(f"{error}; whether the command is issued is not known: repeat it with --id {asked['command_id']}")


def _settled(connect: Connect, found: Any, patience_ms: int) -> Any:
    """Return the command with its final outcome, or as it is when the patience is over.

    A console that does not answer for a while, because it is started again, is asked again. Raises ConnectError.
    """
    device, command_id = found["device_id"], found["command_id"]
    end_s, backoff = time.monotonic() + patience_ms / 1000, Backoff(cap_ms=_RETRY_CAP_MS)
    while not found["is_final"] and (left_ms := int((end_s - time.monotonic()) * 1000)) > 0:
        try:
            found = connect.command(device, command_id, min(_WAIT_MS, left_ms))
            backoff = Backoff(cap_ms=_RETRY_CAP_MS)
        except (ConnectError, ConnectNotReachableError) as error:
            if isinstance(error, ConnectError) and error.status != _UNAVAILABLE:
                raise
            # Nothing tells that the console is back.
            time.sleep(min(backoff.next_ms(), left_ms) / 1000)
    return found


def _outcome(found: Mapping[str, Any]) -> str:
    return str(found["outcome"] or "issued")


_TIMES = ("issued_at", "deadline", "accepted_at", "sent_at", "acknowledged_at", "answered_at")


def _properties(found: Mapping[str, Any]) -> str:
    shown = {
        "command_id": found["command_id"],
        "outcome": _outcome(found),
        "reason": found["reason"],
        **{name: formats.time_text(found[name], _PRECISION) for name in _TIMES},
        "service": found["service"],
        "answer": found["answer"],
        "answer_base64": found["answer_base64"],
    }
    return files.to_properties({key: value for key, value in shown.items() if value not in (None, "")})


def _show(found: Mapping[str, Any], console: Console) -> None:
    shown = formats.table("", "")
    for key, value in (
        ("command", found["command_id"]),
        ("name", _plain(found["name"])),
        ("outcome", _outcome(found)),
        ("reason", _plain(found["reason"] or "")),
        *((name.removesuffix("_at"), formats.time_text(found[name], _PRECISION)) for name in _TIMES),
        ("service", found["service"] or ""),
        ("answer", _plain(found["answer"] or "", keep="\n\t")),
        ("answer as base64", found["answer_base64"] or ""),
    ):
        if value:
            shown.add_row(key, Text(value))
    console.print(shown)


def _show_list(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("issued", "command", "name", "outcome", "reason", "by", "answer")
    for one in found:
        table.add_row(
            formats.time_text(one["issued_at"], _PRECISION),
            Text(_plain(one["command_id"])),
            Text(_plain(one["name"])),
            _outcome(one),
            Text(_plain(one["reason"] or "")),
            Text(_plain(one["issued_by"])),
            Text(_plain(one["answer"] or one["answer_base64"] or "", keep="\n\t")),
        )
    console.print(table)


def _plain(text: str, keep: str = "") -> str:
    """Replace the control characters of a device's text, which a terminal would obey, except those in `keep`."""
    return "".join(one if one.isprintable() or one in keep else "\ufffd" for one in text)
