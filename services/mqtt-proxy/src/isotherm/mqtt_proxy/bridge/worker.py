"""Runs bridges as the tasks of a distributed worker: `isotherm-mqtt-proxy run --set role=worker`."""

from __future__ import annotations

import asyncio
import os

from prometheus_client import CollectorRegistry

from isotherm.connector.config.files import ConfigError
from isotherm.connector.config.masking import mask_of
from isotherm.connector.distributed.task_launch import TaskLaunch, report_to_worker, run_launched_task
from isotherm.connector.standalone.reporting import Reporter, counts_of
from isotherm.mqtt_proxy.bridge.connector_class import bridge_settings
from isotherm.mqtt_proxy.bridge.service import bridge_service
from isotherm.mqtt_proxy.metrics import PREFIX
from isotherm.mqtt_proxy.processes.target_state import health_state
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)


def run_task(settings: ProxySettings) -> int:
    """Run the bridge of the task that the worker launched in this process; return the exit code."""

    def work(launch: TaskLaunch, stop: Stop) -> int:
        validated, merged = bridge_settings(launch.config.resolved(os.environ), settings)
        for notice in validated.notices:
            _log.warning("configuration", key=notice.key, notice=notice.message)
        task_settings = merged.model_copy(update={"ordinal": launch.task})

        def report(health: Health, registry: CollectorRegistry) -> Reporter:
            return Reporter(
                task_settings.kafka,
                task_settings.registry,
                connector=launch.config.name,
                task=launch.task,
                worker=launch.worker,
                worker_group=launch.worker_group,
                state=lambda: health_state(health),
                counts=lambda: counts_of(registry, f"{PREFIX}_"),
                mask=mask_of(launch.config, os.environ),
            )

        try:
            service = bridge_service(
                task_settings, stop, report=report, on_port=lambda port: report_to_worker(http_port=port)
            )
        except SettingsError as error:
            raise ConfigError(error.problems) from None
        with asyncio.Runner() as runner:
            return runner.run(service.run(None))

    return run_launched_task(work, shutdown_timeout_ms=settings.shutdown_timeout_ms)
