"""`isotherm trace`: the life of one reading. The console finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from isotherm.cli.connect import formats
from isotherm.cli.connect.rest import Connect
from isotherm.cli.connect.session import connected, show
from isotherm.cli.options import EndpointOption, FormatOption
from isotherm.cli.output import fail, note, refuse
from isotherm.cli.times import time_ms_or_refuse

_PRECISION = "milliseconds"


def trace(
    device: Annotated[str | None, typer.Argument(metavar="DEVICE", help="The device's id.")] = None,
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
    client: Annotated[
        str | None, typer.Option("--client", metavar="ID", help="Instead of DEVICE: the MQTT client that published it.")
    ] = None,
    packet: Annotated[
        int | None,
        typer.Option("--packet", metavar="N", min=1, max=65_535, help="Its packet identifier, of this client."),
    ] = None,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Print what became of one reading: the newest one, or one by time, sequence or place. Needs the console.

    With --client and --at it is the one that was published then.
    """
    if at is not None:
        time_ms_or_refuse("--at", at)
    _verify(device, client, at, packet, others=(sequence, metric, record))
    notes: list[str] = []
    with connected(endpoint) as connect:
        if client is not None and at is not None:
            device, record, notes = _published(connect, client, at, packet)
            at = None
        asked = {"at": at, "sequence": sequence, "metric": metric, "record": record}
        assert device is not None
        found = connect.trace(device, {name: str(value) for name, value in asked.items() if value is not None})
    lines = "".join(f"{_plain(one['hop'])}={_line(one)}\n" for one in found["steps"])
    show(found, format_, lines, lambda console: _show(found, console))
    if not found["is_exact"]:
        note("no reading has exactly this time; this is the nearest one")
    for one in (*notes, *found["notes"]):
        note(one)


def _verify(
    device: str | None, client: str | None, at: str | None, packet: int | None, others: Sequence[object]
) -> None:
    if (device is None) == (client is None):
        refuse("say DEVICE or --client")
    if client is None and packet is not None:
        refuse("--packet is one of a --client")
    if client is not None and (at is None or any(one is not None for one in others)):
        refuse("--client needs --at, and takes no --sequence, --metric or --record")


def _published(connect: Connect, client: str, at: str, packet: int | None) -> tuple[str, str, list[str]]:
    """Return device and place of the record that a client published nearest to a time, and notes."""
    asked = {"client": client, "at": at}
    answer = connect.publishes(asked if packet is None else {**asked, "packet": str(packet)})
    found, notes = answer["publishes"], list(answer["notes"])
    if not found and packet is not None:
        others = connect.publishes(asked)["publishes"]
        if others and not any(one["packet_id"] for one in others):
            fail(
                f"{len(others)} publishes of {client} are stored around this time, and mqtt-proxy wrote no packet "
                "identifiers: leave --packet out, or see its setting headers.packet_id"
            )
    if not found:
        fail("; ".join([f"no publish of {client} is stored around this time", *notes]))
    first = found[0]
    if first["refused"]:
        fail(f"it is the dead letter {_where(first['record'])}: {_plain(first['refused'])}")
    if len(found) > 1:
        notes.append(f"{len(found)} records of {client} are stored around this time; this is the nearest one")
    return first["device_id"], _where(first["record"]), notes


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
