"""`isotherm trace`: the life of one reading. The console finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from isotherm.cli.connect import formats
from isotherm.cli.connect.session import connected, show, time_ms_or_refuse
from isotherm.cli.options import EndpointOption, FormatOption
from isotherm.cli.output import note

_PRECISION = "milliseconds"


def trace(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="The device's id.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="When it was measured, such as 2026-01-31T12:00:00Z, or @ and ms."),
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--sequence", metavar="N", min=0, help="The device's own number of it.")
    ] = None,
    metric: Annotated[str | None, typer.Option("--metric", metavar="NAME", help="Its metric.")] = None,
    record: Annotated[
        str | None, typer.Option("--record", metavar="TOPIC/PARTITION/OFFSET", help="Its record's place in Kafka.")
    ] = None,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Print what became of one reading: the newest one, or one by time, sequence or place. Needs the console."""
    if at is not None:
        time_ms_or_refuse("--at", at)
    asked = {"at": at, "sequence": sequence, "metric": metric, "record": record}
    with connected(endpoint) as connect:
        found = connect.trace(device, {name: str(value) for name, value in asked.items() if value is not None})
    lines = "".join(f"{_plain(one['hop'])}={_line(one)}\n" for one in found["steps"])
    show(found, format_, lines, lambda console: _show(found, console))
    if not found["is_exact"]:
        note("no reading has exactly this time; this is the nearest one")
    for one in found["notes"]:
        note(one)


def _line(step: Mapping[str, Any]) -> str:
    words = (step["state"], formats.time_text(step["at"], _PRECISION), _where(step["record"]), _plain(step["text"]))
    return " ".join(word for word in words if word)


def _show(found: Mapping[str, Any], console: Console) -> None:
    reading = found["reading"]
    console.print(
        Text(
            _plain(
                f"{reading['device_id']} {reading['metric']} {reading['value']} {reading['unit']}, measured "
                f"{formats.time_text(reading['event_time'], _PRECISION)}, sequence {reading['sequence']}"
            )
        )
    )
    table = formats.table("time", "hop", "state", "record", "what")
    for one in found["steps"]:
        table.add_row(
            formats.time_text(one["at"], _PRECISION),
            Text(_plain(one["hop"])),
            one["state"],
            Text(_where(one["record"])),
            Text(_plain(one["text"])),
        )
    console.print(table)


def _where(record: Mapping[str, Any] | None) -> str:
    return "" if record is None else f"{record['topic']}/{record['partition']}/{record['offset']}"


def _plain(text: str) -> str:
    """Replace the control characters of a device's text, which a terminal would obey, and its line breaks."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
