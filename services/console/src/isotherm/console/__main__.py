"""The command `isotherm-console`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from isotherm.console import service
from isotherm.console.settings import ConsoleSettings
from isotherm.servicekit import lifecycle
from isotherm.servicekit.command import Job, ServiceCommand

SERVICE = "console"


def _run(settings: ConsoleSettings, _arguments: argparse.Namespace) -> int:
    return lifecycle.run(lambda stop: service.run(settings, stop), shutdown_timeout_ms=settings.shutdown_timeout_ms)


def _reconcile(settings: ConsoleSettings, _arguments: argparse.Namespace) -> int:
    # The console itself needs none of this.
    from isotherm.console import reconcile_service

    return lifecycle.run(
        lambda stop: reconcile_service.run(settings, stop), shutdown_timeout_ms=settings.shutdown_timeout_ms
    )


def _commands(settings: ConsoleSettings, _arguments: argparse.Namespace) -> int:
    # The console itself needs none of this.
    from isotherm.console import commands_service

    return lifecycle.run(
        lambda stop: commands_service.run(settings, stop), shutdown_timeout_ms=settings.shutdown_timeout_ms
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    reconcile = Job(
        "reconcile",
        "compare windows with readings, and rows of stores with records, until SIGTERM or Ctrl-C",
        _reconcile,
        lambda _parser: None,
    )
    commands = Job(
        "commands",
        "accept commands to devices, and give each one its final outcome, until SIGTERM or Ctrl-C",
        _commands,
        lambda _parser: None,
    )
    command = ServiceCommand(
        SERVICE,
        "Kafka Connect's REST API over the workers, and a web console.",
        ConsoleSettings,
        _run,
        jobs=[reconcile, commands],
    )
    return command.main(argv)


if __name__ == "__main__":
    sys.exit(main())
