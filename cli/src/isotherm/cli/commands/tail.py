"""`isotherm tail`."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import closing
from typing import Annotated

import typer
from confluent_kafka import KafkaException

from isotherm.cli import records, settings
from isotherm.cli.options import ConfigOption, KafkaOption, RegistryOption, SetOption
from isotherm.cli.output import fail, refuse
from isotherm.cli.record_lines import json_line, where_condition
from isotherm.connector.offsets.replay import time_ms_of
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, SchemaRegistry
from isotherm.servicekit.kafka.errors import reason_of


def tail(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the oldest record.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Begin at this time: ISO 8601, or @ and epoch ms.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after this many records.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only records with this key.")] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="FIELD=VALUE", help="Only records with this value.")
    ] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Print the headers too.")] = False,
    kafka: KafkaOption = None,
    registry: RegistryOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Print the records of a topic as JSON lines, as a read_committed reader sees them.

    Without --from-beginning or --since it waits for new records and prints only those.
    """
    loaded = settings.load(kafka, registry, config, set_)
    decoder = Decoder(SchemaRegistry(loaded.registry))
    try:
        begin_ms = None if since is None else time_ms_of(since)
        matches = where_condition(where or [], decoder)
    except ValueError as error:
        refuse(str(error))
    only_new = begin_ms is None and not from_beginning
    try:
        with closing(
            records.read(
                loaded.kafka, topic, from_beginning=from_beginning, since_ms=begin_ms, follow=follow or only_new
            )
        ) as messages:
            chosen = (
                message for message in messages if (key is None or message.key() == key.encode()) and matches(message)
            )
            for message in itertools.islice(chosen, limit):
                typer.echo(json_line(message, decoder, headers=headers))
    except BrokenPipeError:
        # The reader of our output has ended. Point stdout elsewhere, so that the interpreter's last flush cannot fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return
    except (records.UnknownTopicError, RegistryUnavailableError, KafkaException) as error:
        fail(reason_of(error))
