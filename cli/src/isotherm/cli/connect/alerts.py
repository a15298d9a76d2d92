"""`isotherm alerts`: list, acknowledge and silence alerts. The console does it, and knows who asked for it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from isotherm.cli.connect import formats
from isotherm.cli.connect.session import connected, show
from isotherm.cli.options import EndpointOption, FormatOption
from isotherm.cli.output import note, refuse
from isotherm.cli.times import duration_ms_or_refuse, time_ms_or_refuse

AlertArgument = Annotated[str, typer.Argument(metavar="ALERT", help="The alert's id, as `alerts list` prints it.")]
CommentOption = Annotated[str, typer.Option("--comment", "-c", help="Why, for other people.")]

alerts_app = typer.Typer(
    help="List, acknowledge and silence alerts (only with the console).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@alerts_app.command("list")
def alerts_list(
    text: Annotated[str, typer.Argument(help="Text that the device's id contains.")] = "",
    closed: Annotated[bool, typer.Option("--closed", help="Those that were closed last.")] = False,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """List alerts: open ones, the most severe first."""
    with connected(endpoint) as connect:
        found = connect.alerts("closed" if closed else "open", text)
    alerts = found["alerts"]
    lines = "".join(f"{one['alert_id']}={one['severity']} {one['message'] or ''}".rstrip() + "\n" for one in alerts)
    show(alerts, format_, lines, lambda console: _show_alerts(alerts, console))
    if found["problem"]:
        note(f"some alerts may be missing: {found['problem']}")


@alerts_app.command("ack")
def alerts_ack(alert: AlertArgument, comment: CommentOption = "", endpoint: EndpointOption = None) -> None:
    """Acknowledge an alert: somebody works on it. It is told no more, until its end."""
    with connected(endpoint) as connect:
        done = connect.acknowledge(alert, comment)
    note(f"acknowledged by {done['created_by']}")


@alerts_app.command("silence")
def alerts_silence(
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="Such as 30m, 2h or 7d.")],
    device: Annotated[list[str] | None, typer.Option("--device", help="A pattern of device ids; repeatable.")] = None,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="A pattern of rules; repeatable.")] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="NAME=PATTERN", help="home, region or model; repeatable.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="A maintenance window begins then, not now.")
    ] = None,
    name: Annotated[str | None, typer.Option("--id", help="Its id; a second call with it changes the silence.")] = None,
    comment: CommentOption = "",
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Keep alerts of devices, rules or groups from being told for a time, and print the silence's id."""
    asked: dict[str, Any] = {
        "kind": "silence" if start is None else "maintenance",
        "devices": device or [],
        "rules": rule or [],
        "groups": _groups(group or []),
        "starts_at": None if start is None else time_ms_or_refuse("--start", start),
        "duration_ms": duration_ms_or_refuse("--for", duration),
        "comment": comment,
    }
    with connected(endpoint) as connect:
        done = connect.put_silence(name or uuid.uuid4().hex[:12], asked)
    show(done, format_, f"{done['silence_id']}\n", lambda console: _show_silences([done], console))


@alerts_app.command("unsilence")
def alerts_unsilence(
    silence: Annotated[str, typer.Argument(metavar="SILENCE", help="Its id, as `alerts silences` prints it.")],
    endpoint: EndpointOption = None,
) -> None:
    """End a silence, a maintenance window or an acknowledgement. Muted alerts that are open are told then."""
    with connected(endpoint) as connect:
        done = connect.end_silence(silence)
    note(f"{done['silence_id']} is {done['state']}")


@alerts_app.command("silences")
def alerts_silences(
    all_: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """List silences, maintenance windows and acknowledgements, the first to end first."""
    with connected(endpoint) as connect:
        found = connect.silences(with_ended=all_)
    lines = "".join(f"{one['silence_id']}={one['state']} {_scope(one)}\n" for one in found)
    show(found, format_, lines, lambda console: _show_silences(found, console))


def _groups(given: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for one in given:
        name, separator, pattern = one.partition("=")
        if not separator or not pattern:
            refuse(f"--group {one!r} is not allowed; expected NAME=PATTERN, such as region=north")
        groups.setdefault(name, []).append(pattern)
    return groups


def _scope(silence: Mapping[str, Any]) -> str:
    if silence["alert_id"] is not None:
        return str(silence["alert_id"])
    named = {"device": silence["devices"], "rule": silence["rules"], **silence["groups"]}
    return " ".join(f"{name}={pattern}" for name, patterns in named.items() for pattern in patterns)


def _show_alerts(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("severity", "alert", "opened", "message")
    for one in found:
        table.add_row(
            one["severity"], Text(one["alert_id"]), formats.time_text(one["opened_at"]), Text(one["message"] or "")
        )
    console.print(table)


def _show_silences(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("silence", "state", "about", "until", "by", "comment")
    for one in found:
        until = formats.time_text(one["ended_at"] or one["ends_at"])
        scope = Text(_scope(one))
        table.add_row(
            Text(one["silence_id"]), one["state"], scope, until, Text(one["created_by"]), Text(one["comment"])
        )
    console.print(table)
