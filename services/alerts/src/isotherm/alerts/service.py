"""The life of the alerts service: wait for its servers, run Faust, start it anew when it crashes, end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.input.device_table_follower import DeviceTableFollower
from isotherm.alerts.input.reading_converter import ReadingConverter
from isotherm.alerts.metrics import PREFIX, Metrics
from isotherm.alerts.repartition.forwarder import Forwarder
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream import faust_credentials
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.alerts.stream.outputs import Outputs
from isotherm.alerts.stream.outputs import producer as outputs_producer
from isotherm.alerts.stream.processor import Processor
from isotherm.alerts.stream.runner import RunOutcome, StreamRunner
from isotherm.alerts.stream.topic_setup import (
    NotPreparedError,
    UnfitTopicsError,
    has_aggregates,
    prepare,
)
from isotherm.alerts.waiting import is_done_within
from isotherm.alerts.webhook import Webhook
from isotherm.connector.errors.dead_letters import producer_overrides
from isotherm.connector.standalone.reporting import Reporter, counts_of, reported
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import TargetFollower
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.settings import SettingsError

_PASSING = (NotPreparedError, RegistryUnavailableError, SchemaNotRegisteredError)
_POLL_S = 0.1

T = TypeVar("T")

_log = logs.logger(__name__)


class StopRequestedError(Exception):
    """The service is to stop while it waits."""


class StreamFailedError(Exception):
    """Something was refused for good; the log says what."""


class Alerts:
    """One run of the service. Raises SettingsError for what can be told without a server."""

    def __init__(self, settings: AlertsSettings) -> None:
        faust_credentials.credentials(settings.kafka)
        self._settings = settings
        self._health, self._metrics = Health(), Metrics()
        rules = settings.rule_book()
        overrides = {str(attribute): by_value for attribute, by_value in settings.overrides.items()}
        self._known = DeviceTable(rules, overrides)
        self._engine = RuleEngine(rules, self._known.default_bounds, settings.reorder_ms, settings.max_metrics)
        self._target = TargetFollower(settings.kafka, settings.registry, settings.name)
        self._follower = DeviceTableFollower(
            settings.kafka, settings.registry, settings.devices_topic, settings.name, self._known, self._metrics
        )
        self._operation: StreamRunner | None = None

    async def run(self, stop: Stop) -> int:
        """Run until the stop is asked for or something is refused for good; returns the exit code.

        Raises SettingsError.
        """
        monitoring = MonitoringServer(self._settings.http, self._health, self._metrics.registry)
        monitoring.start()
        _log.info("monitoring answers", port=monitoring.port)
        self._target.start()
        self._follower.start()
        webhook = Webhook(self._settings, self._metrics, self._health) if self._settings.webhook.url else None
        try:
            with reported(self._reporter()):
                await self._run(stop, webhook)
        except StopRequestedError:
            _log.info("stopped while it waited for a server")
        except StreamFailedError:
            return Exit.FAILED
        except UnfitTopicsError as error:
            raise SettingsError([str(error)]) from error
        finally:
            # At once: each may wait a while for a Kafka that is away.
            parts = [part for part in (webhook, self._follower, self._target) if part is not None]
            await asyncio.gather(*(asyncio.to_thread(part.close) for part in parts))
            monitoring.stop()
        return Exit.OK

    async def _run(self, stop: Stop, webhook: Webhook | None) -> None:
        settings = self._settings
        registry = SchemaRegistry(settings.registry)
        aggregates = await self._until(stop, "registry", lambda: has_aggregates(settings, registry))
        partitions = await self._until(stop, "kafka", lambda: prepare(settings, repartition=aggregates))
        await self._until(stop, "devices", self._devices_are_known)
        self._follower.changed()  # what was known from the beginning changes nobody's time
        if webhook is not None:
            webhook.start()
        dead = kafka.producer(settings.kafka, f"{settings.name}-dead-letters", **producer_overrides())
        intake = ReadingConverter(registry, dead, settings.dead_letter_topic, settings.name, self._metrics, self._health)
        self._health.ready()
        backoff = Backoff(base_ms=1_000)
        while not stop.is_set():
            # Each run has a fleet and outputs of its own: the changelog is the truth.
            made = outputs_producer(settings)
            outputs = await self._until(stop, "registry", partial(Outputs, settings, registry, self._metrics, made))
            processor = Processor(
                self._engine,
                self._known,
                DeviceStateStore([settings.repartition] if aggregates else settings.input_topics),
                outputs,
                self._metrics,
                max_skew_ms=settings.max_skew_ms,
                read_slack_ms=settings.read_slack_ms,
                records_tell_time=not aggregates,
            )
            self._operation = StreamRunner(
                settings,
                partitions,
                intake,
                processor,
                outputs,
                self._follower,
                self._target,
                self._health,
                self._metrics,
                Forwarder(settings, registry, self._metrics, self._health) if aggregates else None,
            )
            ended = await self._operation.run(stop)
            _log.info("run ended", reason=ended.value)
            if ended is RunOutcome.FAILED:
                raise StreamFailedError
            if ended is RunOutcome.CRASHED:
                await self._pause(stop, backoff.next_ms() / 1000)
            else:
                backoff.reset()

    def _devices_are_known(self) -> None:
        if not self._follower.is_current():
            raise NotPreparedError(f"topic {self._settings.devices_topic} is still being read")

    async def _until(self, stop: Stop, part: str, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` in a thread until the server that it needs is there; `part` is not ready meanwhile."""
        backoff = Backoff(base_ms=200, cap_ms=10_000)
        while True:
            asked = asyncio.ensure_future(asyncio.to_thread(attempt))
            while not await is_done_within(self._health, _POLL_S, asked):
                if stop.is_set():
                    raise StopRequestedError
            try:
                result = await asked
            except _PASSING as error:
                self._health.not_ready(part, str(error))
                _log.warning("waiting", part=part, reason=str(error))
            else:
                self._health.ready(part)
                return result
            await self._pause(stop, backoff.next_ms() / 1000)
            if stop.is_set():
                raise StopRequestedError

    async def _pause(self, stop: Stop, seconds: float) -> None:
        left_s = seconds
        while left_s > 0 and not stop.is_set():
            self._health.beat()
            await asyncio.sleep(min(left_s, _POLL_S))
            left_s -= _POLL_S

    def _state(self) -> State:
        if self._operation is None or not self._operation.is_recovered():
            return State.RESTARTING if self._operation is not None else State.UNASSIGNED
        return State.PAUSED if self._operation.is_paused() else State.RUNNING

    def _reporter(self) -> Reporter:
        return Reporter(
            self._settings.kafka,
            self._settings.registry,
            connector=self._settings.name,
            task=0,
            state=self._state,
            counts=lambda: counts_of(self._metrics.registry, PREFIX),
        )
