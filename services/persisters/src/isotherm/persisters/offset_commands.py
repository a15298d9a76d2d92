"""`isotherm-persisters offsets FILE` and `replay FILE --to POSITION`: show and set a connector's offsets."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from confluent_kafka import KafkaException

from isotherm.connector.config.files import ConfigError, group_of
from isotherm.connector.config.topic_patterns import matching
from isotherm.connector.offsets.replay import (
    EXPECTED,
    ReplayError,
    parse_position,
    positions,
    reset_offsets,
)
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.configuration import load, subscription
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.plugin import MissingExtraError
from isotherm.servicekit.command import Job
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.errors import reason_of
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.settings import SettingsError


def add_file_arguments(parser: argparse.ArgumentParser, *, needs_file: bool = True) -> None:
    """Add the arguments that name a connector."""
    parser.add_argument(
        "--sink", choices=sorted(installed_sinks()), help="kind of the sink; must fit the file's connector.class"
    )
    parser.add_argument(
        "file", type=Path, nargs=None if needs_file else "?", help="the connector's file: properties, JSON or TOML"
    )


def _add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_arguments(parser)
    parser.add_argument("--to", required=True, metavar="POSITION", help=EXPECTED)
    parser.add_argument("--topic", help="only this one of the connector's topics")
    parser.add_argument("--partition", type=int, help="only this partition")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")


def _offsets(settings: PersistersSettings, arguments: argparse.Namespace) -> int:
    name, topics = _connector(arguments)
    try:
        states = positions(clients.group_admin(settings.kafka, f"{name}-offsets"), group_of(name), topics)
    except (ReplayError, KafkaException) as error:
        return _refused(error)
    for one in states:
        counts = Counts.from_metadata(one.metadata)
        committed = "none" if one.committed is None else one.committed
        sys.stdout.write(
            f"{one.topic}-{one.partition} committed={committed} first={one.low} end={one.high} "
            f"written={counts.written} dead_lettered={counts.dead_lettered.total()} "
            f"skipped={counts.skipped.total()} filtered={counts.filtered.total()}\n"
        )
    return Exit.OK


def _replay(settings: PersistersSettings, arguments: argparse.Namespace) -> int:
    name, topics = _connector(arguments)
    group = group_of(name)
    try:
        moves = reset_offsets(
            clients.group_admin(settings.kafka, f"{name}-replay"),
            group,
            [arguments.topic] if arguments.topic else topics,
            parse_position(arguments.to),
            partition=arguments.partition,
            dry_run=arguments.dry_run,
        )
    except (ReplayError, KafkaException) as error:
        return _refused(error)
    for move in moves:
        before = "none" if move.before is None else move.before
        sys.stdout.write(f"{move.topic}-{move.partition} {before} -> {move.after} end={move.high}\n")
    sys.stderr.write("dry run: nothing was changed\n" if arguments.dry_run else f"group {group} has new positions\n")
    return Exit.OK


def _connector(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Return name and topics of the connector. Raises SettingsError with every problem of its file or of `--topic`."""
    try:
        _, _, config = load(arguments.sink, arguments.file, resolve=False)
    except (ConfigError, MissingExtraError) as error:
        raise SettingsError(getattr(error, "problems", None) or [str(error)]) from None
    topics = subscription(config)
    unresolved = [key for key in ("topics", "topics.regex") if not config.is_resolved(key)]
    if unresolved:
        raise SettingsError([f"{unresolved[0]}: holds a reference, so its topics are not known here"])
    chosen = getattr(arguments, "topic", None)
    try:
        is_matched = chosen and matching(config.text("topics.regex"), [chosen])
    except re.error as error:
        raise SettingsError([f"topics.regex: {error}"]) from error
    if chosen and chosen not in topics and not is_matched:
        raise SettingsError([f"--topic: {chosen!r} is none of the connector's topics ({', '.join(topics)})"])
    return config.name, topics


def _refused(error: Exception) -> int:
    sys.stderr.write(f"error: {reason_of(error)}\n")
    return Exit.FAILED


JOBS = (
    Job("offsets", "show a connector's positions and counts", _offsets, add_file_arguments),
    Job("replay", "set the positions of a stopped connector", _replay, _add_replay_arguments),
)
"""The sub-commands for the service's command line."""
