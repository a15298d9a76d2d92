"""Runs a service as a distributed worker: its settings and the command line of its task processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pydantic import Field

from isotherm.connector.distributed.worker import Classes, DistributedWorker, WorkerSettings
from isotherm.servicekit import lifecycle
from isotherm.servicekit.settings import ServiceSettings, SettingsError

TASK_FLAG = "--launched-task"
"""Option that the worker gives to its task processes, which then call `task_launch.run_launched_task`."""

_STOP_MARGIN_MS = 5_000


class HostSettings(ServiceSettings):
    """Settings of a service that can run as a distributed worker."""

    worker_group: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,200}$",
        description="The group whose connectors a distributed worker runs; a standalone one only shows it.",
    )
    session_timeout_ms: int = Field(
        10_000, ge=1_000, description="Time after a kill until another process takes over its partitions or tasks, ms."
    )


def run_worker(
    service: str, settings: HostSettings, classes: Classes, given: Sequence[str], *, passes_readbacks: bool = False
) -> int:
    """Run the connectors of the worker group until told to stop; the exit code.

    `service` is the service's name with dashes (`mqtt-proxy`); its package is `isotherm.mqtt_proxy`. `given` is the
    command line behind the service's name; the task processes get it too. Raises SettingsError without a group.
    """
    if not settings.worker_group:
        raise SettingsError(["worker_group: missing; without a connector file it names the connectors to run"])
    module = f"isotherm.{service.replace('-', '_')}"
    # The worker's /metrics shows every task's metrics, so that a task's own port serves only the worker.
    own = ("--set", "http.host=127.0.0.1", "--set", "http.port=0")
    worker = WorkerSettings(
        service=service,
        group=settings.worker_group,
        command=[sys.executable, "-m", module, *given, TASK_FLAG, *own],
        kafka=settings.kafka,
        registry=settings.registry,
        http=settings.http,
        session_timeout_ms=settings.session_timeout_ms,
        task_stop_timeout_ms=settings.shutdown_timeout_ms,
        passes_readbacks=passes_readbacks,
    )
    return lifecycle.run(
        lambda stop: DistributedWorker(worker, classes, stop).run(),
        # The worker must outlive the stop timeout of its tasks.
        shutdown_timeout_ms=settings.shutdown_timeout_ms + _STOP_MARGIN_MS,
    )
