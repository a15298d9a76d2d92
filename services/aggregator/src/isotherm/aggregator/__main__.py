"""`isotherm-aggregator run`, `isotherm-aggregator recompute` and `isotherm-aggregator archive-classes`."""

from __future__ import annotations

import argparse
import sys

from isotherm.aggregator.recompute import service as recompute
from isotherm.aggregator.service import Aggregator
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import class_archive, session
from isotherm.servicekit import lifecycle
from isotherm.servicekit.command import Job, ServiceCommand
from isotherm.servicekit.exit_codes import Exit


def _run(settings: AggregatorSettings, _arguments: argparse.Namespace) -> int:
    aggregator = Aggregator(settings)
    return lifecycle.run(
        aggregator.run, shutdown_timeout_ms=settings.shutdown_timeout_ms, end_others=aggregator.kill_spark
    )


def _archive_classes(settings: AggregatorSettings, _arguments: argparse.Namespace) -> int:
    session.verify(settings)
    try:
        archive = class_archive.write(settings)
    except class_archive.ArchiveNotWrittenError as error:
        sys.stderr.write(f"aggregator: {error}\n")
        return Exit.FAILED
    sys.stdout.write(f"{archive}: {archive.stat().st_size / 2**20:.0f} MiB\n")
    return Exit.OK


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
            ),
            Job(
                "archive-classes",
                "write the file that spark.class_archive names, from which Spark starts in half the time; when Java, "
                "Spark or a jar has changed, write it again",
                _archive_classes,
                lambda _parser: None,
            ),
        ],
    )
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
