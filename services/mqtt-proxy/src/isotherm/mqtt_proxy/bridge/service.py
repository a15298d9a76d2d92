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
from isotherm.mqtt_proxy.bridge.subscriber import Bridge
from isotherm.mqtt_proxy.composition import (
    ensure_dead_letter_topic,
    make_producer,
    producer_of,
    router_of,
    rules_of,
)
from isotherm.mqtt_proxy.ingest.routes import Router
from isotherm.mqtt_proxy.ingest.topic_encoders import Catalogue
from isotherm.mqtt_proxy.ingest.translation import Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.processes.desired_state import Wanted
from isotherm.mqtt_proxy.processes.startup import until_possible
from isotherm.mqtt_proxy.processes.worker_process import observed
from isotherm.mqtt_proxy.settings import SERVICE, BridgeSettings, ProxySettings
from isotherm.schemas import schema
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Exit, Stop, run_async
from isotherm.servicekit.producer_health import ProducerHealth
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)

_BEAT_S = 1.0
_CATALOGUE_S = 10.0


def run_bridge(settings: ProxySettings, link_fd: int | None = None) -> int:
    """Run the bridge until it is told to stop; returns the exit code.

    One of several processes has a link to their supervisor. Raises SettingsError for routes, filters or certificates
    that cannot be used.
    """
    # Before anything runs: what is wrong with the settings ends the command.
    make = _maker(settings)
    return run_async(lambda stop: make(stop).run(link_fd), shutdown_timeout_ms=settings.shutdown_timeout_ms)


Report = Callable[[Health, CollectorRegistry], Reporter]


def bridge_service(
    settings: ProxySettings, stop: Stop, *, report: Report, on_port: Callable[[int], None]
) -> BridgeService:
    """A bridge whose status is somebody else's to tell, and its metrics on a port that somebody wants to know.

    Raises SettingsError as `run_bridge`.
    """
    return _maker(settings, report, on_port)(stop)


def _maker(
    settings: ProxySettings, report: Report | None = None, on_port: Callable[[int], None] = lambda _port: None
) -> Callable[[Stop], BridgeService]:
    router = router_of(settings)
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
    """One process: built from its settings, run once."""

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
        """Without `report` it follows its own target, and says itself how it is."""
        self._settings = settings
        self._report, self._on_port = report, on_port
        self._router = router
        self._stop = stop
        self._metrics = Metrics()
        self._health = Health()
        self._wanted = Wanted(settings, self._health, self._metrics)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="kafka")
        self._exit = Exit.OK
        name = f"isotherm-{SERVICE}-bridge-{settings.ordinal}"
        self._admin = kafka.admin(settings.kafka, name)
        self._catalogue = Catalogue(self._admin, SchemaRegistry(settings.registry), schema("SensorReading", 1))
        producer = producer_of(settings, name)
        self._producer_health = ProducerHealth(
            producer, partial(make_producer, settings, name), self._health, on_incurable=self._producer_broken
        )
        self._bridge = Bridge(
            settings.bridge,
            client_id=f"{settings.bridge.client_id}-{settings.ordinal}",
            filters=filters,
            tls=tls,
            translator=Translator(router, self._catalogue.encoders, rules_of(settings)),
            producer=producer,
            metrics=self._metrics,
            health=self._health,
            max_outstanding_bytes=settings.limits.outstanding_bytes,
        )

    async def run(self, link_fd: int | None) -> int:
        """Start, serve until told to stop, drain."""
        registry = CollectorRegistry()
        registry.register(self._metrics)
        loop = asyncio.get_running_loop()
        async with observed(self._settings.http, self._health, registry, link_fd, self._on_port) as member:
            tasks = [loop.create_task(self._beat())]
            try:
                await until_possible(
                    "kafka", self._check_topics, executor=self._executor, health=self._health, stop=self._stop
                )
                self._health.not_ready("broker", "not connected yet")
                self._health.ready()
                if member is not None:
                    member.join(None)
                if self._router.has_dynamic_targets:
                    tasks.append(loop.create_task(self._catalogue.watch(_CATALOGUE_S)))
                with reported(self._reporter(registry)):
                    await self._work()
                _log.info("drained")
            finally:
                for task in tasks:
                    task.cancel()
                self._executor.shutdown(wait=False)
        return self._exit

    def _producer_broken(self, error: KafkaError) -> None:
        """New producers break as well: end, so that another process takes the place."""
        _log.error("the producer is broken for good; ending", code=error.name(), reason=error.str())
        self._exit = Exit.FAILED
        self._stop.set()

    def _reporter(self, registry: CollectorRegistry) -> Reporter:
        if self._report is not None:
            return self._report(self._health, registry)
        return self._wanted.reporter(registry)

    async def _work(self) -> None:
        if self._report is not None:
            await self._subscribed(self._stop)
            return
        self._wanted.start()
        try:
            # While nothing is wanted of it, it needs no broker.
            await self._wanted.run(self._stop, self._subscribed, on_halt=lambda: self._health.ready("broker"))
        finally:
            self._wanted.close()

    async def _subscribed(self, halt: Stop) -> None:
        self._health.not_ready("broker", "not connected yet")
        await self._bridge.run(halt)
        await self._bridge.producer.drain()

    def _check_topics(self) -> None:
        self._catalogue.require(self._router.targets, without_readings=[])
        if self._router.has_dynamic_targets:
            self._catalogue.refresh()
        ensure_dead_letter_topic(self._admin, self._settings)

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            self._producer_health.look()
            self._metrics.producers_replaced = self._producer_health.replaced
            await asyncio.sleep(_BEAT_S)
