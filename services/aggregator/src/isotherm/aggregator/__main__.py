"""`isotherm-aggregator run` and `isotherm-aggregator recompute`."""

from __future__ import annotations

import argparse
import sys

from isotherm.aggregator.recompute import service as recompute
from isotherm.aggregator.service import Aggregator
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.servicekit import lifecycle
from isotherm.servicekit.command import Job, ServiceCommand


def _run(settings: AggregatorSettings, _arguments: argparse.Namespace) -> int:
    aggregator = Aggregator(settings)
    return lifecycle.run(aggregator.run, shutdown_timeout_ms=settings.shutdown_timeout_ms)


def main() -> int:
    """Entry point."""
    command = ServiceCommand(
        "aggregator",
        "Aggregates readings by windows of event time, with Spark.",
        AggregatorSettings,
        _run,
        jobs=[
            Job(
                "recompute",
                "correct published windows with the readings that came too late for them; safe to repeat",
                recompute.run,
                recompute.add_arguments,
            )
        ],
    )
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
