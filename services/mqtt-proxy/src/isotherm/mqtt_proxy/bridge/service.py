"""The life of the bridge as a service: routes, Kafka, and only then the broker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from confluent_kafka import KafkaError
from prometheus_client import CollectorRegistry

from isotherm.connector.standalone.reporting import Reporter, reported
from isotherm.mqtt_proxy.assembly import build_attester
from isotherm.mqtt_proxy.bridge.subscriber import Bridge
from isotherm.mqtt_proxy.ingest.configuration import build_router, build_rules, ensure_dead_letter_topic
from isotherm.mqtt_proxy.ingest.routes import Router
from isotherm.mqtt_proxy.ingest.topic_encoders import TopicEncoders
from isotherm.mqtt_proxy.ingest.translation import Translator
from isotherm.mqtt_proxy.kafka_clients import build_loop_producer, build_producer, build_target_state
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.processes.startup import retry_until_possible
from isotherm.mqtt_proxy.processes.worker_process import monitored
from isotherm.mqtt_proxy.sections.bridge import BridgeSettings
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.schemas import schema
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop, run_async
from isotherm.servicekit.producer.health import ProducerHealth
from isotherm.servicekit.settings import SettingsError
from isotherm.servicekit.tracing.opening import ingest_traces_of

_log = logs.logger(__name__)

_BEAT_S = 1.0
_REFRESH_TOPICS_S = 10.0


def run_bridge(settings: ProxySettings, link_fd: int | None = None) -> int:
    """Run the bridge until it is told to stop; return the exit code.

    One of several processes has a link to their supervisor. Raises SettingsError for routes, filters or certificates
    that cannot be used.
    """
    # The settings are checked before anything runs, so that a mistake ends the command.
    make_service = _service_factory(settings)
    return run_async(lambda stop: make_service(stop).run(link_fd), shutdown_timeout_ms=settings.shutdown_timeout_ms)


Report = Callable[[Health, CollectorRegistry], Reporter]


def bridge_service(
    settings: ProxySettings, stop: Stop, *, report: Report, on_port: Callable[[int], None]
) -> BridgeService:
    """Return the bridge of a task: `report` makes its reporter, and `on_port` receives the port of its metrics.

    Raises SettingsError as `run_bridge`.
    """
    return _service_factory(settings, report, on_port)(stop)


def _service_factory(
    settings: ProxySettings, report: Report | None = None, on_port: Callable[[int], None] = lambda _port: None
) -> Callable[[Stop], BridgeService]:
    router = build_router(settings)
    filters = settings.bridge.filters or router.sources
    if not filters:
        raise SettingsError(["bridge.filters: empty, and there are no routes to take the filters from"])
    tls = _tls(settings.bridge)
    return lambda stop: BridgeService(settings, router, filters, tls, stop, report, on_port)


def _tls(settings: BridgeSettings) -> ssl.SSLContext | None:
    if settings.cafile is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.cafile)
        if settings.certfile is not None:
            context.load_cert_chain(settings.certfile, settings.keyfile)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError([f"bridge.cafile, bridge.certfile, bridge.keyfile: {error}"]) from None
    return context


class BridgeService:
    """One process: composed from its settings, run once."""

    def __init__(
        self,
        settings: ProxySettings,
        router: Router,
        filters: Sequence[str],
        tls: ssl.SSLContext | None,
        stop: Stop,
        report: Report | None,
        on_port: Callable[[int], None],
    ) -> None:
        """Without `report` the bridge follows its own target state and reports its own status."""
        self._settings = settings
        self._report, self._on_port = report, on_port
        self._router = router
        self._stop = stop
        self._metrics = Metrics()
        self._health = Health()
        connector = f"{SERVICE}-{settings.role}"
        self._target_state = build_target_state(settings, connector, self._health, self._metrics)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="kafka")
        self._exit = Exit.OK
        name = f"isotherm-{SERVICE}-bridge-{settings.ordinal}"
        self._admin = clients.admin(settings.kafka, name)
        schemas = SchemaRegistry(settings.registry)
        self._encoders = TopicEncoders(self._admin, schemas, schema("SensorReading", 1))
        self._attester = build_attester(settings, schemas, self._encoders)
        producer = build_loop_producer(settings, name)
        producer.on_stored = self._attester.on_stored
        self._producer_health = ProducerHealth(
            producer, partial(build_producer, settings, name), self._health, on_incurable=self._on_producer_broken
        )
        self._translator = Translator(router, self._encoders.encoders, build_rules(settings))
        self._name = name
        self._bridge = Bridge(
            settings.bridge,
            client_id=f"{settings.bridge.client_id}-{settings.ordinal}",
            filters=filters,
            tls=tls,
            translator=self._translator,
            producer=producer,
            metrics=self._metrics,
            health=self._health,
            max_outstanding_bytes=settings.limits.outstanding_bytes,
        )

    async def run(self, link_fd: int | None) -> int:
        """Start, serve until told to stop, drain."""
        registry = CollectorRegistry()
        registry.register(self._metrics)
        self._translator.traces = traces = ingest_traces_of(
            self._settings.tracing, SERVICE, registry, instance=self._name
        )
        loop = asyncio.get_running_loop()
        with_exemplars, http = traces is not None, self._settings.http
        async with monitored(
            http, self._health, registry, link_fd, self._on_port, with_exemplars=with_exemplars
        ) as process:
            producer = self._bridge.producer
            tasks = [loop.create_task(self._beat()), loop.create_task(self._attester.run(producer))]
            try:
                await retry_until_possible(
                    "kafka", self._check_topics, executor=self._executor, health=self._health, stop=self._stop
                )
                self._health.not_ready("broker", "not connected yet")
                self._health.ready()
                if process is not None:
                    process.join(None)
                if self._router.has_dynamic_targets:
                    tasks.append(loop.create_task(self._encoders.watch(_REFRESH_TOPICS_S)))
                with reported(self._reporter(registry)):
                    await self._run_bridge()
                await self._attester.finish(producer)
                _log.info("drained")
            finally:
                for task in tasks:
                    task.cancel()
                self._executor.shutdown(wait=False)
                if traces is not None:
                    await loop.run_in_executor(None, traces.close)
        return self._exit

    def _on_producer_broken(self, error: KafkaError) -> None:
        """End this process, because new producers break as well; another process takes its place."""
        _log.error("the producer is broken for good; ending", code=error.name(), reason=error.str())
        self._exit = Exit.FAILED
        self._stop.set()

    def _reporter(self, registry: CollectorRegistry) -> Reporter:
        if self._report is not None:
            return self._report(self._health, registry)
        return self._target_state.reporter(registry)

    async def _run_bridge(self) -> None:
        if self._report is not None:
            await self._subscribe(self._stop)
            return
        self._target_state.start()
        try:
            # A halted bridge needs no broker.
            await self._target_state.run(self._stop, self._subscribe, on_halt=lambda: self._health.ready("broker"))
        finally:
            self._target_state.close()

    async def _subscribe(self, halt: Stop) -> None:
        self._health.not_ready("broker", "not connected yet")
        await self._bridge.run(halt)
        await self._bridge.producer.drain()

    def _check_topics(self) -> None:
        self._encoders.require(self._router.targets, without_readings=[], raw=self._router.raw_targets)
        if self._router.has_dynamic_targets:
            self._encoders.refresh()
        ensure_dead_letter_topic(self._admin, self._settings)

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            self._producer_health.look()
            self._metrics.producers_replaced = self._producer_health.replaced
            self._metrics.unattested = self._attester.dropped
            await asyncio.sleep(_BEAT_S)
