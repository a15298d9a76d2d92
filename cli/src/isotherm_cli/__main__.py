"""`isotherm`: the command of the suite. Data goes to stdout, notes to stderr, errors into the exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from isotherm_cli import apply as applying
from isotherm_cli import options
from isotherm_cli.options import ConfigOption, KafkaOption, RegistryOption, SetOption
from isotherm_cli.plan import Outcome, Step
from servicekit import logs
from servicekit.lifecycle import Exit
from servicekit.settings import SettingsError

app = typer.Typer(
    name="isotherm",
    help="Look after an Isotherm installation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _isotherm() -> None:
    """Look after an Isotherm installation."""


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


def _settings(
    kafka: str | None, registry: str | None, config: ConfigOption, overrides: SetOption
) -> options.CliSettings:
    settings = options.read(kafka, registry, config, overrides)
    logs.configure("isotherm", settings.log)
    return settings


def _print_step(step: Step) -> None:
    if step.outcome is not Outcome.REFUSED:
        typer.echo(str(step))


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
