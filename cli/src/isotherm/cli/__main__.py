"""`isotherm`: the command of the suite. Data goes to stdout, notes to stderr, errors into the exit code."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import closing
from typing import Annotated

import typer
from confluent_kafka import KafkaException

from isotherm.cli import apply as applying
from isotherm.cli import (
    devices,
    kcql,
    options,
    recompute,
    records,
    tail,
    topics,
)
from isotherm.cli.connect import commands as connect_commands
from isotherm.cli.connect.session import EndpointOption, FormatBeforeOption, take_before
from isotherm.cli.options import (
    ConfigOption,
    KafkaOption,
    RegistryOption,
    SetOption,
)
from isotherm.cli.plan import Outcome, Step
from isotherm.connector.offsets.replay import time_ms_of
from isotherm.servicekit import logs
from isotherm.servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaNotRegisteredError,
    SchemaRegistry,
)
from isotherm.servicekit.kafka import error_of
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.settings import SettingsError

app = typer.Typer(
    name="isotherm",
    help="Look after an Isotherm installation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


devices_app = typer.Typer(help="What is known of the devices.", no_args_is_help=True)
app.add_typer(devices_app, name="devices")
app.add_typer(kcql.app, name="kcql")
connect_commands.register(app)


@app.callback()
def _isotherm(context: typer.Context, endpoint: EndpointOption = None, format_: FormatBeforeOption = None) -> None:
    """Look after an Isotherm installation."""
    take_before(context, endpoint, format_)


@app.command("apply")
def apply_command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be changed, change nothing.")] = False,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout", metavar="MS", min=0, help="How long to wait for the servers, in ms.")
    ] = None,
    kafka: KafkaOption = None,
    registry: RegistryOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Create the declared topics and subjects, or bring them to their declaration. Safe to repeat.

    One line for each topic and schema version: created, changed config, registered or unchanged. When anything is
    refused (another partition count, an incompatible schema), nothing is changed and the exit code is 1.
    """
    settings = _settings(kafka, registry, config, set_)
    try:
        report = applying.apply(
            settings.kafka,
            settings.registry,
            topics=applying.declared_topics(settings.partitions),
            dry_run=dry_run,
            timeout_ms=settings.timeout_ms if timeout_ms is None else timeout_ms,
            on_step=_print_step,
            on_wait=_note,
        )
    except applying.RefusedError as refused:
        for step in refused.report.refused:
            _note(str(step))
        raise typer.Exit(Exit.FAILED) from None
    except applying.NotReachableError as error:
        _note(str(error))
        raise typer.Exit(Exit.FAILED) from None
    done = "would be changed" if dry_run else "changed"
    _note(f"{len(report.changes)} of {len(report.steps)} {done}")


@app.command("tail")
def tail_command(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the oldest record.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Begin at this time: ISO 8601, or @ and epoch ms.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with records as they come.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after so many records.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only records with this key.")] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="FIELD=VALUE", help="Only records with this value.")
    ] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Show the headers too.")] = False,
    kafka: KafkaOption = None,
    registry: RegistryOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Print the records of a topic as JSON lines, as a read_committed reader sees them.

    Without --from-beginning or --since only new records, so it follows.
    """
    settings = _settings(kafka, registry, config, set_)
    decoder = Decoder(SchemaRegistry(settings.registry))
    try:
        begin_ms = None if since is None else time_ms_of(since)
        holds = tail.condition(where or [], decoder)
    except ValueError as error:
        _note(str(error))
        raise typer.Exit(Exit.CONFIGURATION) from None
    only_new = begin_ms is None and not from_beginning
    try:
        with closing(
            records.read(
                settings.kafka,
                topic,
                from_beginning=from_beginning,
                since_ms=begin_ms,
                follow=follow or only_new,
            )
        ) as messages:
            wanted = (
                message for message in messages if (key is None or message.key() == key.encode()) and holds(message)
            )
            for message in itertools.islice(wanted, limit):
                typer.echo(tail.line(message, decoder, headers=headers))
    except BrokenPipeError:
        # The reader of our output has seen enough; give the interpreter's last flush nowhere to fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return
    except (records.UnknownTopicError, RegistryUnavailableError, KafkaException) as error:
        _note(_reason(error))
        raise typer.Exit(Exit.FAILED) from None


@app.command("topics")
def topics_command(
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """List the topics: name, partitions, records at most, and the record that their values are declared to be."""
    settings = _settings(kafka, None, config, set_)
    try:
        typer.echo(topics.text(topics.listed(settings.kafka)), nl=False)
    except KafkaException as error:
        _note(_reason(error))
        raise typer.Exit(Exit.FAILED) from None


@app.command("recompute", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def recompute_command(context: typer.Context) -> None:
    """Correct published windows with late readings: runs `isotherm-aggregator recompute`, which takes all options.

    For example: isotherm recompute --config aggregator.toml --from 2026-11-20 --to 2026-11-21 --dry-run
    """
    try:
        command = recompute.command(context.args)
    except recompute.AggregatorMissingError as error:
        _note(str(error))
        raise typer.Exit(Exit.CONFIGURATION) from None
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


@devices_app.command("import")
def devices_import_command(
    file: Annotated[typer.FileText, typer.Argument(help="JSON lines, one device each; - is stdin.")],
    kafka: KafkaOption = None,
    registry: RegistryOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Store what is known of devices (home, room, region, model, thresholds) in the compacted topic `devices`."""
    settings = _settings(kafka, registry, config, set_)
    try:
        imported = devices.import_lines(file, settings.kafka, settings.registry)
    except (SchemaNotRegisteredError, RegistryUnavailableError, KafkaException) as error:
        _note(_reason(error))
        raise typer.Exit(Exit.FAILED) from None
    for problem in imported.problems:
        _note(problem)
    _note(f"{imported.stored} devices stored")
    if imported.problems:
        raise typer.Exit(Exit.FAILED)


def _settings(
    kafka: str | None, registry: str | None, config: ConfigOption, overrides: SetOption
) -> options.CliSettings:
    settings = options.read(kafka, registry, config, overrides)
    logs.configure("isotherm", settings.log)
    return settings


def _print_step(step: Step) -> None:
    if step.outcome is not Outcome.REFUSED:
        typer.echo(str(step))


def _reason(error: Exception) -> str:
    kafka_error = error_of(error)
    return str(error) if kafka_error is None else kafka_error.str()


def _note(text: str) -> None:
    typer.echo(f"isotherm: {text}", err=True)


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except SettingsError as error:
        for problem in error.problems:
            _note(problem)
        sys.exit(Exit.CONFIGURATION)


if __name__ == "__main__":
    main()
