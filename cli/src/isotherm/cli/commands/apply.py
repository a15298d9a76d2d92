"""`isotherm apply`."""

from __future__ import annotations

from typing import Annotated

import typer

from isotherm.cli import apply as applying
from isotherm.cli import settings
from isotherm.cli.options import ConfigOption, KafkaOption, RegistryOption, SetOption
from isotherm.cli.output import fail, note
from isotherm.cli.plan import Outcome, Step


def apply(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be changed, and change nothing.")
    ] = False,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout", metavar="MS", min=0, help="How long to wait for the servers, in ms.")
    ] = None,
    kafka: KafkaOption = None,
    registry: RegistryOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Create the declared topics and subjects, or change them to their declaration.

    Safe to repeat. Prints one line for each topic and schema version: created, changed config, registered or
    unchanged. When anything is refused (another partition count, an incompatible schema), nothing is changed and the
    exit code is 1.
    """
    loaded = settings.load(kafka, registry, config, set_)
    try:
        report = applying.apply(
            loaded.kafka,
            loaded.registry,
            topics=applying.declared_topics(loaded.partitions),
            dry_run=dry_run,
            timeout_ms=loaded.timeout_ms if timeout_ms is None else timeout_ms,
            on_step=_print_step,
            on_wait=note,
        )
    except applying.RefusedError as refused:
        fail("\n".join(str(step) for step in refused.report.refused))
    except applying.NotReachableError as error:
        fail(str(error))
    note(f"{len(report.changes)} of {len(report.steps)} {'would be changed' if dry_run else 'changed'}")


def _print_step(step: Step) -> None:
    if step.outcome is not Outcome.REFUSED:
        typer.echo(str(step))
