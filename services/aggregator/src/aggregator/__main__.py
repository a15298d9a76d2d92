"""`aggregator run`."""

from __future__ import annotations

import argparse
import sys

from aggregator.service import Aggregator
from aggregator.settings import AggregatorSettings
from servicekit import lifecycle
from servicekit.command import ServiceCommand


def _run(settings: AggregatorSettings, _arguments: argparse.Namespace) -> int:
    aggregator = Aggregator(settings)
    return lifecycle.run(aggregator.run, shutdown_timeout_ms=settings.shutdown_timeout_ms)


def main() -> int:
    """Entry point."""
    command = ServiceCommand(
        "aggregator", "Aggregates readings by windows of event time, with Spark.", AggregatorSettings, _run
    )
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
