"""The process: runs connectors by their target states, from its start to an orderly end. The only composition root."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaException
from prometheus_client import CollectorRegistry

from isotherm.coap_ingest.connectors.plan import ConnectorPlan, plan_for
from isotherm.coap_ingest.connectors.sources import ConnectorFiles, ConnectorSource, LaunchedTask, StartedConnectors
from isotherm.coap_ingest.ingest.encoders import make_encoders
from isotherm.coap_ingest.ingest.routes import SERVICE, Encode
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.pipeline import Pipeline, cancel
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.distributed.task_launch import TaskLaunch, run_launched_task
from isotherm.connector.errors import dead_letters
from isotherm.connector.standalone.reporting import Reporter
from isotherm.connector.state.status import State, this_process
from isotherm.connector.state.target_follower import TargetFollower
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop, collect_rarely
from isotherm.servicekit.startup import wait_until_up
from isotherm.servicekit.tracing.opening import ingest_traces_of

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    pass

_log = logs.logger(__name__)

_BEAT_S = 1.0
_ADMIN_TIMEOUT_MS = 5_000

T = TypeVar("T")


def run_task(settings: CoapIngestSettings) -> int:
    """Run the task that a distributed worker launched in this process; return the exit code."""

    def work(launch: TaskLaunch, stop: Stop) -> int:
        plan = plan_for(launch.config.resolved(os.environ), settings)
        worker = Worker(settings, LaunchedTask(plan, launch, partial(Reporter, settings.kafka, settings.registry)))
        with asyncio.Runner() as runner:
            return runner.run(worker.run(stop))

    return run_launched_task(work, shutdown_timeout_ms=settings.shutdown_timeout_ms)


def connector_files(
    settings: CoapIngestSettings, plans: Sequence[ConnectorPlan], configs: Sequence[ConnectorConfig]
) -> ConnectorFiles:
    """Return the connectors of files; `configs` are the configurations of `plans` with unresolved references."""
    followers = [TargetFollower(settings.kafka, settings.registry, plan.name) for plan in plans]
    report = partial(Reporter, settings.kafka, settings.registry)
    return ConnectorFiles(plans, configs, followers, report, settings.worker_group)


class Worker:
    """Runs the connectors of one process: those of its files, or the one of a launched task."""

    def __init__(self, settings: CoapIngestSettings, source: ConnectorSource) -> None:
        self._settings = settings
        self._source = source
        self._registry = CollectorRegistry()
        self._metrics = Metrics(self._registry)
        self._health = Health()
        self._traces = ingest_traces_of(settings.tracing, SERVICE, self._registry, instance=this_process())
        self.failure: str | None = None
        """Why the worker ended without being asked to."""

    async def run(self, stop: Stop) -> int:
        """Work until `stop` is set; return the exit code."""
        collect_rarely()
        monitoring = MonitoringServer(self._settings.http, self._health, self._registry)
        monitoring.start()
        _log.info("monitoring", host=self._settings.http.host, port=monitoring.port)
        stopped = asyncio.create_task(stop.wait_async())
        self._source.start(monitoring.port, self._state, self._registry)
        try:
            encoders = await self._until_up("registry", self._make_encoders, RegistryUnavailableError, stop)
            if encoders is None:
                return Exit.OK
            if await self._until_up("dead letters", self._ensure_topics, KafkaException, stop) is None:
                return Exit.OK
            return await self._reconcile(encoders, stopped)
        except SchemaNotRegisteredError as error:
            self.failure = str(error)
            _log.error("cannot start", reason=str(error))
            return Exit.CONFIGURATION
        finally:
            stopped.cancel()
            await asyncio.to_thread(self._source.close, self.failure)
            monitoring.stop()
            if self._traces is not None:
                await asyncio.to_thread(self._traces.close)

    def _state(self) -> State:
        return State.UNASSIGNED if "start" in self._health.problems() else State.RUNNING

    async def _reconcile(self, encoders: dict[str, Encode], stopped: asyncio.Task[None]) -> int:
        """Run the started connectors, and start again whenever a target state changes."""
        while not stopped.done():
            self._health.beat()
            started = self._source.started()
            if started is None:
                self._health.not_ready("target", "the target states of the connectors are not known yet")
            elif not started.plans:
                # All connectors are paused or stopped, as desired.
                for part in self._health.problems():
                    self._health.ready(part)
            else:
                self._health.ready("target")
                changed = asyncio.create_task(self._source.wait_for_change(started))
                ended = asyncio.create_task(_first_of(stopped, changed))
                pipeline = Pipeline(self._settings, started.plans, encoders, self._metrics, self._health, self._traces)
                try:
                    code = await pipeline.run(ended)
                    self.failure = pipeline.failure
                    if code != Exit.OK or not changed.done():
                        return code
                finally:
                    await cancel([ended, changed])
                self._health.ready("stop")
                continue
            await self._wait_for_change(started, stopped)
        return Exit.OK

    async def _wait_for_change(self, started: StartedConnectors | None, stopped: asyncio.Task[None]) -> None:
        """Wait for other started connectors or the stop, at most until the next beat is due."""
        changed = asyncio.create_task(self._source.wait_for_change(started))
        try:
            await asyncio.wait({stopped, changed}, timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel([changed])

    async def _until_up(self, part: str, action: Callable[[], T], away: type[Exception], stop: Stop) -> T | None:
        waiting = partial(wait_until_up, part, action, away, health=self._health, stop=stop)
        task = asyncio.create_task(asyncio.to_thread(waiting))
        while not task.done():
            self._health.beat()
            await asyncio.wait({task}, timeout=_BEAT_S)
        return task.result()

    def _make_encoders(self) -> dict[str, Encode]:
        registry = SchemaRegistry(self._settings.registry)
        return make_encoders(registry, (rule.topic for plan in self._source.plans for rule in plan.rules))

    def _ensure_topics(self) -> bool:
        # The default timeout, a minute, is longer than a stop may take.
        admin = clients.admin(self._settings.kafka, SERVICE, socket_timeout_ms=_ADMIN_TIMEOUT_MS)
        for topic in sorted({plan.dead_letter_topic for plan in self._source.plans}):
            dead_letters.ensure_topic(admin, topic)
        return True


async def _first_of(*tasks: asyncio.Task[None]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
