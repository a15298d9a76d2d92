"""`isotherm dlq` and `isotherm replay`: what the console can beyond Kafka Connect's REST API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isotherm.cli.connect import formats
from isotherm.cli.connect.session import (
    EndpointOption,
    FormatOption,
    NameArgument,
    connected,
    note,
    refuse,
    show,
    write,
)
from isotherm.servicekit.lifecycle import Exit

TopicArgument = Annotated[str, typer.Argument(help="A dead-letter topic.")]
PlacesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[PARTITION/OFFSET]...", help="The letters, as `dlq list` shows them.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every letter that is open now.")]

_PLACE = re.compile(r"(\d{1,9})/(\d{1,18})")

dlq_app = typer.Typer(help="Dead letters as a work list (the console's, not Kafka Connect's).", no_args_is_help=True)


@dlq_app.command("list")
def dlq_list(
    topic: Annotated[str | None, typer.Argument(help="A dead-letter topic; without, all of them.")] = None,
    after: Annotated[str | None, typer.Option("--after", metavar="PARTITION/OFFSET", help="Only later ones.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="So many at most.")] = 50,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """List dead-letter topics, or the open letters of one: place, origin and reason."""
    if after is not None:
        _place(after)
    with connected(endpoint) as connect:
        if topic is None:
            boxes = connect.dead_letter_topics()
            lines = "".join(f"{box['topic']}={box['most_open']}\n" for box in boxes)
            show(boxes, format_, lines, lambda console: _show_boxes(boxes, console))
            return
        letters = connect.dead_letters(topic, after, limit)
    lines = "".join(f"{_where(one)}={one['exception']}: {one['message']}\n" for one in letters)
    show(letters, format_, lines, lambda console: _show_letters(letters, console))


@dlq_app.command("show")
def dlq_show(
    topic: TopicArgument,
    place: Annotated[str, typer.Argument(metavar="PARTITION/OFFSET", help="The letter.")],
    endpoint: EndpointOption = None,
) -> None:
    """Print one letter as JSON: why it failed, and the record, decoded and raw."""
    partition, offset = _place(place)
    with connected(endpoint) as connect:
        write(formats.as_json(connect.dead_letter(topic, partition, offset)))


@dlq_app.command("replay")
def dlq_replay(
    topic: TopicArgument, places: PlacesArgument = None, all_: AllOption = False, endpoint: EndpointOption = None
) -> None:
    """Write letters to the topic that they came from, and count them as done. Exit code 1 when some cannot be."""
    _handle("replay", topic, places or [], all_, endpoint)


@dlq_app.command("discard")
def dlq_discard(
    topic: TopicArgument, places: PlacesArgument = None, all_: AllOption = False, endpoint: EndpointOption = None
) -> None:
    """Count letters as done without a replay."""
    _handle("discard", topic, places or [], all_, endpoint)


def replay(
    name: NameArgument,
    to: Annotated[str, typer.Option("--to", help="earliest, latest, an offset, a time, or @ and epoch milliseconds.")],
    topic: Annotated[str | None, typer.Option("--topic", help="One of its topics.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="One partition.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")] = False,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Let a stopped sink read again from an offset or a time, and print its new positions. Resume it afterwards."""
    with connected(endpoint) as connect:
        asked = {"to": to, "topic": topic, "partition": partition, "dry_run": dry_run}
        moves = connect.replay(name, asked)
    lines = "".join(f"{one['topic']}-{one['partition']}={one['after']}\n" for one in moves)
    show(moves, format_, lines, lambda console: _show_moves(moves, console))
    note(f"{name} {'would go' if dry_run else 'goes'} on there{'' if dry_run else ' when it is resumed'}")


def _handle(verb: str, topic: str, places: Sequence[str], is_all: bool, endpoint: str | None) -> None:
    if is_all == bool(places):
        refuse(f"dlq {verb}: name letters as PARTITION/OFFSET, or say --all")
    pairs = [_place(place) for place in places]
    chosen: dict[str, Any] = {"letters": [{"partition": partition, "offset": offset} for partition, offset in pairs]}
    with connected(endpoint) as connect:
        handled = connect.handle_dead_letters(topic, verb, {"all": True} if is_all else chosen)
    note(f"{handled['done']} {'replayed' if verb == 'replay' else 'discarded'}")
    if handled["left"]:
        note(f"{handled['left']} were never in a topic and cannot be replayed; discard them")
        raise typer.Exit(Exit.FAILED)


def _place(text: str) -> tuple[int, int]:
    found = _PLACE.fullmatch(text)
    if found is None:
        refuse(f"{text!r} is no place of a letter; expected PARTITION/OFFSET")
    return int(found.group(1)), int(found.group(2))


def _where(letter: Mapping[str, Any]) -> str:
    return f"{letter['partition']}/{letter['offset']}"


def _show_boxes(boxes: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("topic", "open at most")
    for box in boxes:
        table.add_row(Text(box["topic"]), str(box["most_open"]))
    console.print(table)


def _show_letters(letters: Sequence[Mapping[str, Any]], console: Console) -> None:
    table: Table = formats.table("letter", "from", "why", "value")
    for one in letters:
        origin = f"{one['origin_topic']} {one['origin_partition']}/{one['origin_offset']}"
        why = f"{one['exception'].rpartition('.')[2]}: {one['message']}"
        table.add_row(
            _where(one), Text(origin if one["is_replayable"] else "a device"), Text(why), Text(str(one["value"])[:200])
        )
    console.print(table)


def _show_moves(moves: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("topic", "partition", "from", "to", "places to read")
    for one in moves:
        before = "" if one["before"] is None else str(one["before"])
        table.add_row(Text(one["topic"]), str(one["partition"]), before, str(one["after"]), str(one["records_to_read"]))
    console.print(table)


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands to the `isotherm` command."""
    app.command("replay", rich_help_panel=panel)(replay)
    app.add_typer(dlq_app, name="dlq", rich_help_panel=panel)
