"""The composition root of the alerts service: wait for servers, run Faust, restart it after a crash, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

from aiokafka.partitioner import murmur2
from confluent_kafka import Producer

from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.hotpath import quiet_devices
from isotherm.alerts.input.device_table_follower import DeviceTableFollower
from isotherm.alerts.input.reading_converter import ReadingConverter
from isotherm.alerts.input.reading_traces import ReadingTraces
from isotherm.alerts.live_rules.live_rules import LiveRules, RuleClients, sources_of
from isotherm.alerts.liveness import is_done_within
from isotherm.alerts.metrics import PREFIX, Metrics
from isotherm.alerts.notifications.route_runner import RouteClients, RouteRunner
from isotherm.alerts.notifications.silence_follower import SilenceFollower
from isotherm.alerts.notifications.target_kinds import target_of
from isotherm.alerts.repartition.forwarder import Forwarder, ForwarderClients
from isotherm.alerts.routes.kinds import Route
from isotherm.alerts.routes.silences import SilenceTable
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.group_means import GroupMeans
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream import faust_credentials
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.alerts.stream.end_offsets import EndOffsets
from isotherm.alerts.stream.outputs import Outputs
from isotherm.alerts.stream.processor import Processor
from isotherm.alerts.stream.runner import RunOutcome, StreamRunner
from isotherm.alerts.stream.topic_setup import (
    NotPreparedError,
    UnfitTopicsError,
    has_aggregates,
    prepare,
)
from isotherm.connector.errors.dead_letters import DeadLetterQueue, producer_overrides
from isotherm.connector.standalone.reporting import Reporter, counts_of, reported
from isotherm.connector.state.status import State, this_process
from isotherm.connector.state.target_follower import TargetFollower
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop, collect_rarely
from isotherm.servicekit.settings import SettingsError
from isotherm.servicekit.startup import wait_until_up
from isotherm.servicekit.tracing.opening import consumed_traces_of

_RETRIABLE = (NotPreparedError, RegistryUnavailableError, SchemaNotRegisteredError)
_POLL_S = 0.1
_ROUTE_POLL_MS = 600_000
"""How long a route may send, or wait for dead letters, before Kafka takes its partitions away from it."""
_QUEUED_KIB = 8_192
"""Most KiB of aggregates that the forwarder's consumer fetches in advance."""
_DEVICES_FETCH_WAIT_MS = 5_000
"""How long Kafka may hold a fetch of devices back: the topic changes seldom, and a new record is answered at once."""
_OUTCOME_TIMEOUT_MS = 8_000
"""How long an outcome of a rule waits for Kafka before it is written anew."""

T = TypeVar("T")

_log = logs.logger(__name__)


class StopRequestedError(Exception):
    """The service was asked to stop while it waited."""


class StreamFailedError(Exception):
    """Kafka has refused a record permanently; the log says why."""


class Alerts:
    """One run of the service. Raises SettingsError for mistakes that are visible without a server."""

    def __init__(self, settings: AlertsSettings) -> None:
        faust_credentials.credentials(settings.kafka)
        self._settings = settings
        self._health, self._metrics = Health(), Metrics()
        sources = sources_of(settings)
        self._devices = DeviceTable(sources.book, settings.overrides_by_name)
        self._means = GroupMeans()
        self._rules = LiveRules(
            settings,
            sources,
            self._devices,
            self._means,
            SchemaRegistry(settings.registry),
            _rule_clients(settings),
            lambda: self._runner is not None and self._runner.is_in_charge(),
            self._metrics,
        )
        self._target = TargetFollower(settings.kafka, settings.registry, settings.name)
        devices = f"{settings.name}-devices"
        self._follower = DeviceTableFollower(
            settings.devices_topic,
            lambda: clients.consumer(
                settings.kafka, devices, devices, enable_partition_eof=True, fetch_wait_max_ms=_DEVICES_FETCH_WAIT_MS
            ),
            SchemaRegistry(settings.registry),
            self._devices,
            self._metrics,
        )
        self._silences = SilenceTable()
        self._silence_follower = SilenceFollower(
            settings.silences_topic,
            lambda: clients.consumer_to_the_end(
                settings.kafka, f"{settings.name}-silences", fetch_wait_max_ms=_DEVICES_FETCH_WAIT_MS
            ),
            SchemaRegistry(settings.registry),
            self._silences,
            self._metrics,
        )
        self._runner: StreamRunner | None = None
        self._traces: ReadingTraces | None = None

    async def run(self, stop: Stop) -> int:
        """Run until a stop is requested or a record is refused permanently; return the exit code.

        Raises SettingsError.
        """
        traces = consumed_traces_of(
            self._settings.tracing, "alerts", self._metrics.registry, instance=this_process(), attributes={}
        )
        self._traces = None if traces is None else ReadingTraces(traces)
        monitoring = MonitoringServer(
            self._settings.http, self._health, self._metrics.registry, with_exemplars=traces is not None
        )
        monitoring.start()
        _log.info("monitoring server started", port=monitoring.port)
        self._target.start()
        self._follower.start()
        routes = [self._make_route(route) for route in self._settings.all_routes()]
        try:
            with reported(self._reporter()):
                await self._run(stop, routes)
        except StopRequestedError:
            _log.info("stopped while waiting for a server")
        except StreamFailedError:
            return Exit.FAILED
        except UnfitTopicsError as error:
            raise SettingsError([str(error)]) from error
        finally:
            # Close all parts at once: each may wait a while for an unavailable Kafka.
            parts = [
                *self._rules.parts_to_close(),
                self._silence_follower.close,
                self._follower.close,
                self._target.close,
            ]
            ends = [*(route.close for route in routes), *parts]
            await asyncio.gather(*(asyncio.to_thread(end) for end in ends))
            monitoring.stop()
            if traces is not None:
                await asyncio.to_thread(traces.close)
        return Exit.OK

    async def _run(self, stop: Stop, routes: list[RouteRunner]) -> None:
        settings = self._settings
        registry = SchemaRegistry(settings.registry)
        aggregates = await self._until(stop, "registry", lambda: has_aggregates(settings, registry))
        partitions = await self._until(stop, "kafka", lambda: self._prepare_topics(repartition=aggregates))
        await self._until(stop, "devices", self._verify_devices_are_read)
        self._follower.changed()  # The metadata from before the start reschedules no device.
        self._rules.start()
        await self._until(stop, "rules", self._verify_rules_are_read)
        if routes:
            self._silence_follower.start()
            await self._until(stop, "silences", self._verify_silences_are_read)
        for route in routes:
            route.start()
        # The devices' metadata is read: the collector would walk a million of them, and stop everything meanwhile.
        collect_rarely()
        dead = _dead_letter_producer(settings, settings.name)
        converter = ReadingConverter(
            registry, dead, settings.dead_letter_topic, settings.name, self._metrics, self._health
        )
        self._health.ready()
        backoff = Backoff(base_ms=1_000)
        while not stop.is_set():
            # Each run has a store and outputs of its own, because only the changelog survives a run.
            producer = outputs_producer(settings)
            make_outputs = partial(Outputs, settings, registry, self._metrics, producer, self._traces)
            outputs = await self._until(stop, "registry", make_outputs)
            processor = self._make_processor(
                await asyncio.to_thread(self._engine), outputs, partitions, aggregates=aggregates
            )
            self._runner = StreamRunner(
                settings,
                partitions,
                converter,
                processor,
                outputs,
                EndOffsets(lambda: clients.admin(settings.kafka, f"{settings.name}-ends")),
                self._follower,
                self._target,
                self._health,
                self._metrics,
                self._make_forwarder(registry) if aggregates else None,
                self._rules.current,
                self._traces,
            )
            outcome = await self._runner.run(stop)
            _log.info("run ended", reason=outcome.value)
            if outcome is RunOutcome.FAILED:
                raise StreamFailedError
            if outcome is RunOutcome.CRASHED:
                await self._pause(stop, backoff.next_ms() / 1000)
            else:
                backoff.reset()

    def _make_processor(self, engine: RuleEngine, outputs: Outputs, partitions: int, *, aggregates: bool) -> Processor:
        settings = self._settings
        # Aggregates come too seldom for batches of them to matter, and in another schema.
        table = None if aggregates else quiet_devices()
        topics = [settings.repartition] if aggregates else settings.input_topics
        new_table = table and (lambda: table(settings.reorder_ms, processor.quiet_bounds))
        processor: Processor = Processor(
            engine,
            self._devices,
            DeviceStateStore(topics, new_table),
            outputs,
            self._metrics,
            max_skew_ms=settings.max_skew_ms,
            max_publish_delay_ms=settings.max_publish_delay_ms,
            records_show_time=not aggregates,
            checkpoint_ms=settings.checkpoint_ms,
            partition_of=partial(partition_of, partitions),
        )
        return processor

    def _prepare_topics(self, *, repartition: bool) -> int:
        settings = self._settings
        return prepare(settings, clients.admin(settings.kafka, f"{settings.name}-admin"), repartition=repartition)

    def _make_route(self, route: Route) -> RouteRunner:
        settings = self._settings
        return RouteRunner(
            route,
            settings.route_group(route.name),
            settings.alerts_topic,
            SchemaRegistry(settings.registry),
            _route_clients(settings, route),
            self._devices.attributes,
            self._silences,
            self._metrics,
            self._health,
        )

    def _make_forwarder(self, registry: SchemaRegistry) -> Forwarder:
        settings = self._settings
        return Forwarder(settings, registry, _forwarder_clients(settings), self._metrics, self._health)

    def _verify_devices_are_read(self) -> None:
        if not self._follower.is_current():
            raise NotPreparedError(f"topic {self._settings.devices_topic} is still being read")

    def _verify_rules_are_read(self) -> None:
        if not self._rules.is_current():
            raise NotPreparedError(f"topic {self._settings.rules_topic} is still being read")

    def _engine(self) -> RuleEngine:
        """Return the engine for a run, with the rules that are in force at its start."""
        rules, settings = self._rules.current(), self._settings
        self._devices.reload(rules)
        bounds = self._devices.default_bounds
        return RuleEngine(
            rules, bounds, settings.reorder_ms, settings.max_metrics, settings.forget_after_ms, self._means
        )

    def _verify_silences_are_read(self) -> None:
        if not self._silence_follower.is_current():
            raise NotPreparedError(f"topic {self._settings.silences_topic} is still being read")

    async def _until(self, stop: Stop, part: str, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` in a thread until the server that it needs answers; `part` is not ready meanwhile.

        Raises StopRequestedError, and every exception that does not mean that a server is unavailable.
        """
        backoff = Backoff(base_ms=200, cap_ms=10_000)
        waiting = asyncio.ensure_future(
            asyncio.to_thread(wait_until_up, part, attempt, _RETRIABLE, health=self._health, stop=stop, backoff=backoff)
        )
        while not await is_done_within(self._health, _POLL_S, waiting):
            if stop.is_set():
                raise StopRequestedError
        result = await waiting
        if stop.is_set():
            raise StopRequestedError
        return cast(T, result)  # None stands for a stop only

    async def _pause(self, stop: Stop, seconds: float) -> None:
        left_s = seconds
        while left_s > 0 and not stop.is_set():
            self._health.beat()
            await asyncio.sleep(min(left_s, _POLL_S))
            left_s -= _POLL_S

    def _state(self) -> State:
        if self._runner is None or not self._runner.is_recovered():
            return State.RESTARTING if self._runner is not None else State.UNASSIGNED
        return State.PAUSED if self._runner.is_paused() else State.RUNNING

    def _reporter(self) -> Reporter:
        return Reporter(
            self._settings.kafka,
            self._settings.registry,
            connector=self._settings.name,
            task=0,
            state=self._state,
            counts=lambda: counts_of(self._metrics.registry, PREFIX),
        )


def outputs_producer(settings: AlertsSettings) -> Producer:
    """Return a producer that never gives a record up, because a lost record would have to end the process."""
    return clients.producer(settings.kafka, f"{settings.name}-outputs", delivery_timeout_ms=0, linger_ms=2)


def partition_of(partitions: int, device_id: str) -> int:
    """Return the partition on which every producer puts the readings of a device: murmur2 of the key, as in Java."""
    return int(murmur2(device_id.encode()) & 0x7FFFFFFF) % partitions


def _rule_clients(settings: AlertsSettings) -> RuleClients:
    name = f"{settings.name}-rules"
    return RuleClients(
        partial(clients.consumer_to_the_end, settings.kafka, name, fetch_wait_max_ms=_DEVICES_FETCH_WAIT_MS),
        partial(
            clients.consumer_to_the_end,
            settings.kafka,
            f"{settings.name}-group-means",
            fetch_wait_max_ms=_DEVICES_FETCH_WAIT_MS,
        ),
        partial(clients.consumer_to_the_end, settings.kafka, f"{name}-trial"),
        partial(clients.producer, settings.kafka, name, delivery_timeout_ms=_OUTCOME_TIMEOUT_MS),
    )


def _dead_letter_producer(settings: AlertsSettings, name: str) -> Producer:
    return clients.producer(settings.kafka, f"{name}-dead-letters", **producer_overrides())


def _route_clients(settings: AlertsSettings, route: Route) -> RouteClients:
    group = settings.route_group(route.name)
    return RouteClients(
        lambda: clients.consumer(
            settings.kafka,
            group,
            group,
            max_poll_interval_ms=_ROUTE_POLL_MS,
            # Eager: the member that reads everything must have stopped before another one begins.
            partition_assignment_strategy="range",
        ),
        partial(clients.consumer_to_the_end, settings.kafka, f"{group}-history"),
        lambda: DeadLetterQueue(_dead_letter_producer(settings, group), settings.dead_letter_topic),
        partial(target_of, route),
    )


def _forwarder_clients(settings: AlertsSettings) -> ForwarderClients:
    name = settings.repartition
    return ForwarderClients(
        clients.consumer(
            settings.kafka,
            name,
            name,
            enable_partition_eof=True,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.session_timeout_ms // 10,
            queued_max_messages_kbytes=_QUEUED_KIB,
        ),
        clients.consumer(settings.kafka, f"{name}-watch", name, isolation_level="read_uncommitted"),
        clients.producer(settings.kafka, name, delivery_timeout_ms=0),
        DeadLetterQueue(_dead_letter_producer(settings, name), settings.dead_letter_topic),
    )
