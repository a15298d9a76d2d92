"""`isotherm-coap-ingest run [FILE...]`: run the connectors of files; without files, be a distributed worker."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from isotherm.coap_ingest.connectors.classes import CoapClasses
from isotherm.coap_ingest.connectors.plan import ConnectorPlan, plan_for
from isotherm.coap_ingest.connectors.sources import ConnectorFiles
from isotherm.coap_ingest.ingest.routes import SERVICE
from isotherm.coap_ingest.service import Worker, connector_files, run_task
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.config import files as config
from isotherm.connector.distributed.hosting import TASK_FLAG, run_worker
from isotherm.servicekit import lifecycle, logs
from isotherm.servicekit.command import ServiceCommand
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)


def load(files: Sequence[Path], settings: CoapIngestSettings) -> ConnectorFiles:
    """Read and check connector files. Raises SettingsError with every problem of all files."""
    plans: dict[str, ConnectorPlan] = {}
    configs: list[config.ConnectorConfig] = []
    problems: list[str] = []
    for file in files:
        try:
            configs.append(config.read(file))
            plan = plan_for(configs[-1].resolved(os.environ), settings)
        except config.ConfigError as error:
            problems += [text if text.startswith(str(file)) else f"{file}: {text}" for text in error.problems]
            continue
        if plan.name in plans:
            problems.append(f"{file}: name: {plan.name!r} is the name of another connector")
        plans[plan.name] = plan
        for notice in plan.notices:
            _log.warning("notice", file=str(file), key=notice.key, text=notice.message)
    if problems:
        raise SettingsError(problems)
    return connector_files(settings, list(plans.values()), configs)


def _run(settings: CoapIngestSettings, arguments: argparse.Namespace, given: list[str]) -> int:
    if arguments.launched_task:
        return run_task(settings)
    if not arguments.connectors:
        return run_worker(SERVICE, settings, CoapClasses(settings), given)
    worker = Worker(settings, load(arguments.connectors, settings))
    return lifecycle.run_async(worker.run, shutdown_timeout_ms=settings.shutdown_timeout_ms)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "connectors", nargs="*", type=Path, metavar="FILE", help="connector file: properties, JSON or TOML"
    )
    parser.add_argument(TASK_FLAG, action="store_true", help=argparse.SUPPRESS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    command = ServiceCommand(
        SERVICE,
        "Observes CoAP resources and accepts POSTed readings; both end in Kafka.",
        CoapIngestSettings,
        lambda settings, arguments: _run(settings, arguments, given),
        _add_arguments,
    )
    return command.main(given)


if __name__ == "__main__":
    sys.exit(main())
