"""`isotherm dlq` and `isotherm replay`: operations of the console beyond Kafka Connect's REST API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isotherm.cli.connect import formats
from isotherm.cli.connect.session import NameArgument, connected, show
from isotherm.cli.options import EndpointOption, FormatOption
from isotherm.cli.output import note, refuse, write
from isotherm.servicekit.exit_codes import Exit

TopicArgument = Annotated[str, typer.Argument(help="The topic of a dead-letter queue.")]
PositionsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[PARTITION/OFFSET]...", help="The records, as `dlq list` prints them.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All open records.")]

_POSITION = re.compile(r"(\d{1,9})/(\d{1,18})")

dlq_app = typer.Typer(
    help="Handle dead-letter records (only with the console).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@dlq_app.command("list")
def dlq_list(
    topic: Annotated[str | None, typer.Argument(help="The topic of a queue; all queues when left out.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="PARTITION/OFFSET", help="Only records after this one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="The highest number of records.")] = 50,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """List the dead-letter queues, or the open records of one: position, origin and error."""
    if after is not None:
        _position(after)
    with connected(endpoint) as connect:
        if topic is None:
            queues = connect.dead_letter_queues()
            lines = "".join(f"{one['topic']}={one['max_open']}\n" for one in queues)
            show(queues, format_, lines, lambda console: _show_queues(queues, console))
            return
        found = connect.dead_letter_records(topic, after, limit)
    lines = "".join(f"{_position_text(one)}={one['exception']}: {one['message']}\n" for one in found)
    show(found, format_, lines, lambda console: _show_records(found, console))


@dlq_app.command("show")
def dlq_show(
    topic: TopicArgument,
    position: Annotated[str, typer.Argument(metavar="PARTITION/OFFSET", help="The record.")],
    endpoint: EndpointOption = None,
) -> None:
    """Print one record as JSON: its error, and the original record, decoded and raw."""
    partition, offset = _position(position)
    with connected(endpoint) as connect:
        write(formats.as_json(connect.dead_letter_record(topic, partition, offset)))


@dlq_app.command("replay")
def dlq_replay(
    topic: TopicArgument, positions: PositionsArgument = None, all_: AllOption = False, endpoint: EndpointOption = None
) -> None:
    """Write records to the topic of their origin, and mark them as handled. Exit code 1 when some cannot be."""
    _handle("replay", topic, positions or [], all_, endpoint)


@dlq_app.command("discard")
def dlq_discard(
    topic: TopicArgument, positions: PositionsArgument = None, all_: AllOption = False, endpoint: EndpointOption = None
) -> None:
    """Mark records as handled without a replay."""
    _handle("discard", topic, positions or [], all_, endpoint)


def replay(
    name: NameArgument,
    to: Annotated[str, typer.Option("--to", help="earliest, latest, an offset, a time, or @ and epoch milliseconds.")],
    topic: Annotated[str | None, typer.Option("--topic", help="One of its topics.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="One partition.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Let a stopped sink read again from an offset or a time, and print its new offsets. Resume it afterwards."""
    with connected(endpoint) as connect:
        asked = {"to": to, "topic": topic, "partition": partition, "dry_run": dry_run}
        moves = connect.replay(name, asked)
    lines = "".join(f"{one['topic']}-{one['partition']}={one['after']}\n" for one in moves)
    show(moves, format_, lines, lambda console: _show_moves(moves, console))
    note(f"{name} {'would go' if dry_run else 'goes'} on there{'' if dry_run else ' when it is resumed'}")


def _handle(verb: str, topic: str, positions: Sequence[str], is_all: bool, endpoint: str | None) -> None:
    if is_all == bool(positions):
        refuse(f"dlq {verb}: give records as PARTITION/OFFSET, or --all")
    pairs = [_position(position) for position in positions]
    chosen: dict[str, Any] = {"records": [{"partition": partition, "offset": offset} for partition, offset in pairs]}
    with connected(endpoint) as connect:
        handled = connect.handle_dead_letter_records(topic, verb, {"all": True} if is_all else chosen)
    note(f"{handled['done']} {'replayed' if verb == 'replay' else 'discarded'}")
    if handled["not_replayable"]:
        note(f"{handled['not_replayable']} were never in a topic and cannot be replayed; discard them")
        raise typer.Exit(Exit.FAILED)


def _position(text: str) -> tuple[int, int]:
    found = _POSITION.fullmatch(text)
    if found is None:
        refuse(f"{text!r} is not the position of a record; expected PARTITION/OFFSET")
    return int(found.group(1)), int(found.group(2))


def _position_text(record: Mapping[str, Any]) -> str:
    return f"{record['partition']}/{record['offset']}"


def _show_queues(queues: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("topic", "open at most")
    for one in queues:
        table.add_row(Text(one["topic"]), str(one["max_open"]))
    console.print(table)


def _show_records(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    table: Table = formats.table("record", "origin", "error", "value")
    for one in found:
        origin = f"{one['origin_topic']} {one['origin_partition']}/{one['origin_offset']}"
        error = f"{one['exception'].rpartition('.')[2]}: {one['message']}"
        table.add_row(
            _position_text(one),
            Text(origin if one["is_replayable"] else "a device"),
            Text(error),
            Text(str(one["value"])[:200]),
        )
    console.print(table)


def _show_moves(moves: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("topic", "partition", "from", "to", "records to read, at most")
    for one in moves:
        before = "" if one["before"] is None else str(one["before"])
        table.add_row(Text(one["topic"]), str(one["partition"]), before, str(one["after"]), str(one["records_to_read"]))
    console.print(table)
