"""The command `isotherm-console`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from isotherm.console import service
from isotherm.console.settings import ConsoleSettings
from isotherm.servicekit import lifecycle
from isotherm.servicekit.command import ServiceCommand

SERVICE = "console"


def _run(settings: ConsoleSettings, _arguments: argparse.Namespace) -> int:
    return lifecycle.run(lambda stop: service.run(settings, stop), shutdown_timeout_ms=settings.shutdown_timeout_ms)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    command = ServiceCommand(
        SERVICE, "Kafka Connect's REST API over the workers, and a web console.", ConsoleSettings, _run
    )
    return command.main(argv)


if __name__ == "__main__":
    sys.exit(main())
