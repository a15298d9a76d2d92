"""The CoAP source as the connector class of a distributed worker: `isotherm-coap-ingest run` without files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from isotherm.coap_ingest.connectors.connector_class import Plan, plan
from isotherm.coap_ingest.connectors.connector_keys import DEFINITION
from isotherm.coap_ingest.connectors.desired_state import VERSION, HandedOver
from isotherm.coap_ingest.service import Worker
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.config.definitions import Definition
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.validation import validate
from isotherm.connector.distributed.controller import TaskPlan, task_plan
from isotherm.connector.distributed.task_launch import TaskLaunch, run_launched_task
from isotherm.servicekit.lifecycle import Stop


class CoapClasses:
    """The one class of this service; a connector is one task, which keeps all of its resources."""

    definitions: Sequence[Definition] = (DEFINITION,)
    version = VERSION

    def __init__(self, settings: CoapIngestSettings) -> None:
        self._settings = settings

    def check(self, config: ConnectorConfig) -> TaskPlan:
        """Everything that can be said without asking a server. Raises ConfigError."""
        resolved = config.resolved(os.environ)
        planned(resolved, self._settings)
        return task_plan(validate(DEFINITION, resolved), 1)


def planned(config: ConnectorConfig, settings: CoapIngestSettings) -> Plan:
    """The plan of a configuration whose references are resolved. Raises ConfigError."""
    return plan(
        config,
        units=settings.units,
        limits=settings.limits(),
        dead_letter_topic=settings.dead_letter_topic,
        allow_anonymous=settings.allow_anonymous,
    )


def run_task(settings: CoapIngestSettings) -> int:
    """In a task's process: run what the worker hands over."""

    def work(handover: TaskLaunch, stop: Stop) -> int:
        made = planned(handover.config.resolved(os.environ), settings)
        worker = Worker(settings, HandedOver(settings, made, handover))
        with asyncio.Runner() as runner:
            return runner.run(worker.run(stop))

    return run_launched_task(work, shutdown_timeout_ms=settings.shutdown_timeout_ms)
