"""`coap-ingest run FILE...`: observe what connector files say, in one process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from coap_ingest.connector_class import Plan, plan
from coap_ingest.routes import SERVICE
from coap_ingest.settings import CoapIngestSettings
from coap_ingest.worker import Worker
from connector import config
from servicekit import lifecycle, logs
from servicekit.command import ServiceCommand
from servicekit.settings import SettingsError

_log = logs.logger(__name__)


def load_plans(files: Sequence[Path], settings: CoapIngestSettings) -> list[Plan]:
    """Read and check connector files. Raises SettingsError with every problem of all of them."""
    plans: dict[str, Plan] = {}
    problems: list[str] = []
    for file in files:
        try:
            made = plan(
                config.read(file).resolved(os.environ),
                units=settings.units,
                limits=settings.limits(),
                dead_letter_topic=settings.dead_letter_topic,
            )
        except config.ConfigError as error:
            problems += [text if text.startswith(str(file)) else f"{file}: {text}" for text in error.problems]
            continue
        if made.name in plans:
            problems.append(f"{file}: name: {made.name!r} is the name of another connector")
        plans[made.name] = made
        for notice in made.notices:
            _log.warning("notice", file=str(file), key=notice.key, text=notice.message)
    if problems:
        raise SettingsError(problems)
    return list(plans.values())


def _run(settings: CoapIngestSettings, arguments: argparse.Namespace) -> int:
    worker = Worker(settings, load_plans(arguments.connectors, settings))
    return lifecycle.run_async(worker.run, shutdown_timeout_ms=settings.shutdown_timeout_ms)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "connectors", nargs="+", type=Path, metavar="FILE", help="connector file: properties, JSON or TOML"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    command = ServiceCommand(
        SERVICE, "Observes CoAP resources; notifications land in Kafka.", CoapIngestSettings, _run, _add_arguments
    )
    return command.main(argv)


if __name__ == "__main__":
    sys.exit(main())
