"""The process: connectors in, observations kept, records out, and an orderly end."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

import isotherm.schemas
from isotherm.coap_ingest.coap.client import Client
from isotherm.coap_ingest.connectors.desired_state import Wishes
from isotherm.coap_ingest.ingest import json_values
from isotherm.coap_ingest.ingest.bounded_queue import Intake
from isotherm.coap_ingest.ingest.forwarder import Forwarder, ProducerFailedError
from isotherm.coap_ingest.ingest.routes import (
    SERVICE,
    Encode,
    Target,
    Values,
)
from isotherm.coap_ingest.listener.listener import Listener
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.observe.observers import Observers
from isotherm.coap_ingest.observe.resource_observer import Arrived
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.errors import dead_letters
from isotherm.connector.state.status import State
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.delivery import LoopProducer
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.producer_health import ProducerHealth

_log = logs.logger(__name__)

_BEAT_S = 1.0
_ADMIN_TIMEOUT_MS = 5_000
_DRAIN_MARGIN_MS = 2_000
"""Before the deadline that ends the process: time to say what is lost."""

T = TypeVar("T")


class Worker:
    """Runs connectors in one process, all their resources: those of its files, or a distributed worker's one."""

    def __init__(self, settings: CoapIngestSettings, wishes: Wishes) -> None:
        self._settings = settings
        self._wishes = wishes
        self._plans = wishes.plans
        self._registry = CollectorRegistry()
        self._metrics = Metrics(self._registry)
        self._health = Health()
        self.failure: str | None = None
        """Why it ended by itself."""

    async def run(self, stop: Stop) -> int:
        """Work until the stop is asked for; returns the exit code."""
        monitoring = MonitoringServer(self._settings.http, self._health, self._registry)
        monitoring.start()
        _log.info("monitoring", host=self._settings.http.host, port=monitoring.port)
        stopped = asyncio.create_task(stop.wait_async())
        self._wishes.start(monitoring.port, self._state, self._registry)
        try:
            encoders = await self._until_up("registry", self._encoders, RegistryUnavailableError, stopped)
            if encoders is None:
                return Exit.OK
            if await self._until_up("dead letters", self._ensure_topics, KafkaException, stopped) is None:
                return Exit.OK
            return await self._as_wanted(encoders, stopped)
        except SchemaNotRegisteredError as error:
            self.failure = str(error)
            _log.error("cannot start", reason=str(error))
            return Exit.CONFIGURATION
        finally:
            stopped.cancel()
            await asyncio.to_thread(self._wishes.close, self.failure)
            monitoring.stop()

    def _state(self) -> State:
        return State.UNASSIGNED if "start" in self._health.problems() else State.RUNNING

    async def _as_wanted(self, encoders: dict[str, Encode], stopped: asyncio.Task[None]) -> int:
        """Observe for the connectors that are to run, and begin again when these are others."""
        while not stopped.done():
            self._health.beat()
            wanted = self._wishes.wanted()
            if wanted is None:
                self._health.not_ready("target", "not known yet which connectors are to run")
            elif not wanted.plans:
                # It does what it was told.
                for part in self._health.problems():
                    self._health.ready(part)
            else:
                self._health.ready("target")
                changed = asyncio.create_task(self._wishes.until_other_than(wanted))
                ended = asyncio.create_task(_first_of(stopped, changed))
                self._plans = wanted.plans
                try:
                    code = await self._observe(encoders, ended)
                    if code != Exit.OK or not changed.done():
                        return code
                finally:
                    await _end([ended, changed])
                self._health.ready("stop")
                continue
            await asyncio.wait({stopped}, timeout=_BEAT_S)
        return Exit.OK

    async def _until_up(
        self, part: str, action: Callable[[], T], away: type[Exception], stopped: asyncio.Task[None]
    ) -> T | None:
        """What `action` returns as soon as its server answers; None when the stop is asked for first."""
        backoff = Backoff()
        while not stopped.done():
            try:
                result = await self._beating(asyncio.create_task(asyncio.to_thread(action)))
            except away as error:
                self._health.not_ready(part, str(error))
                _log.warning("waiting", part=part, reason=str(error))
                await asyncio.wait({stopped}, timeout=backoff.next_ms() / 1000)
            else:
                self._health.ready(part)
                return result
        return None

    async def _beating(self, task: asyncio.Task[T]) -> T:
        while not task.done():
            self._health.beat()
            await asyncio.wait({task}, timeout=_BEAT_S)
        return task.result()

    def _encoders(self) -> dict[str, Encode]:
        registry = SchemaRegistry(self._settings.registry)
        topics = {rule.topic.name: rule.topic for plan in self._wishes.plans for rule in plan.rules}
        return {
            name: registry.encoder(name, _schema(topic)) if topic.values is Values.AVRO else _json_encoder(topic)
            for name, topic in topics.items()
        }

    def _ensure_topics(self) -> bool:
        # The default, a minute, is longer than a stop may take.
        admin = AdminClient(kafka.client_config(self._settings.kafka, SERVICE, socket_timeout_ms=_ADMIN_TIMEOUT_MS))
        for topic in sorted({plan.dead_letter_topic for plan in self._wishes.plans}):
            dead_letters.ensure_topic(admin, topic)
        return True

    async def _observe(self, encoders: dict[str, Encode], stopped: asyncio.Task[None]) -> int:
        settings = self._settings
        intake: Intake[Arrived] = Intake(settings.queue_limit, settings.queue_limit_bytes)
        incurable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Without end: what is lost by giving up here is lost for good, and the queue behind it is bounded.
        producer, cured = self._producer("producer", 0, incurable)
        cures = [cured]
        clients = await self._clients()
        observers = Observers(self._plans, clients, settings, intake, encoders, self._metrics, self._health)
        letters = {plan.name: plan.dead_letter_topic for plan in self._plans}
        policies = {plan.name: plan.errors for plan in self._plans}
        forwarder = Forwarder(intake, producer, observers.outlets, letters, self._metrics, policies)
        listeners = self._listeners(encoders, cures, incurable)
        observing = asyncio.create_task(observers.run())
        forwarding = asyncio.create_task(forwarder.run())
        watching = asyncio.create_task(self._watch(forwarder, intake, producer, listeners, cures))
        try:
            await self._listen(listeners)
            self._health.ready()
            halted = forwarder.halted
            ends: set[asyncio.Future[Any]] = {stopped, halted, incurable, forwarding, watching, observing}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done() and not halted.done():
                return self._broken(incurable, forwarding, watching, observing)
            if halted.done():
                self.failure = halted.result()
            self._health.not_ready("stop", halted.result() if halted.done() else "stopping")
            await _end([observing])
            timeout_s = self._settings.shutdown_timeout_ms / 2000
            await asyncio.gather(observers.close(), *(listener.close(timeout_s) for listener in listeners))
            drained = await self._drain(forwarder, forwarding)
            return Exit.FAILED if halted.done() and drained is Exit.OK else drained
        finally:
            incurable.cancel()
            await _end([observing, forwarding, watching])
            await asyncio.gather(*(cure.close() for cure in cures))
            await asyncio.gather(*(listener.close(0) for listener in listeners))
            await asyncio.gather(*(client.close() for client in set(clients.values())))

    def _producer(
        self, part: str, delivery_timeout_ms: int, incurable: asyncio.Future[None]
    ) -> tuple[LoopProducer, ProducerHealth]:
        """A producer that gets a successor when it breaks; `incurable` ends the process when that breaks, too."""
        settings = self._settings
        make = partial(
            kafka.producer,
            settings.kafka,
            SERVICE,
            delivery_timeout_ms=delivery_timeout_ms,
            queue_buffering_max_kbytes=max(1, settings.queue_limit_bytes // 1024),
        )

        def give_up(error: KafkaError) -> None:
            if not incurable.done():
                incurable.set_exception(ProducerFailedError(f"{part}: new producers break as well: {error.str()}"))

        producer = LoopProducer(make(), max_outstanding=settings.max_outstanding)
        return producer, ProducerHealth(producer, make, self._health, on_incurable=give_up, part=part)

    def _listeners(
        self, encoders: dict[str, Encode], cures: list[ProducerHealth], incurable: asyncio.Future[None]
    ) -> list[Listener]:
        """Each with a producer of its own, whose deliveries end in time for an answer."""
        listeners = []
        for plan in self._plans:
            if plan.listen is None:
                continue
            producer, cure = self._producer(f"{plan.name}: producer", plan.listen.timeout_ms, incurable)
            cures.append(cure)
            listeners.append(
                Listener(
                    plan,
                    plan.listen,
                    encoders,
                    producer,
                    self._settings.limits(),
                    self._metrics,
                    remembered_requests=self._settings.remembered_requests,
                )
            )
        return listeners

    async def _listen(self, listeners: Sequence[Listener]) -> None:
        for listener in listeners:
            await listener.open(self._settings.receive_buffer_bytes)

    async def _clients(self) -> dict[str, Client]:
        """One endpoint for all connectors, but one of its own for each that has a key to show."""
        limit, buffer = self._settings.max_payload_bytes, self._settings.receive_buffer_bytes
        servers = [server for plan in self._plans if plan.psk is None for server in plan.servers]
        shared = await Client.open(limit, servers, receive_buffer_bytes=buffer)
        own = {
            plan.name: await Client.open(limit, plan.servers, plan.psk, receive_buffer_bytes=buffer)
            for plan in self._plans
            if plan.psk is not None
        }
        return {plan.name: own.get(plan.name, shared) for plan in self._plans}

    async def _watch(
        self,
        forwarder: Forwarder,
        intake: Intake[Arrived],
        producer: LoopProducer,
        listeners: Sequence[Listener],
        cures: Sequence[ProducerHealth],
    ) -> None:
        limit_ms = self._settings.kafka_stalled_after_ms
        replaced = 0
        while True:
            self._health.beat()
            for cure in cures:
                cure.look()
            before, replaced = replaced, sum(cure.replaced for cure in cures)
            self._metrics.producers_replaced.inc(replaced - before)
            self._metrics.queue_length.set(intake.reserved)
            self._metrics.outstanding.set(producer.outstanding)
            for listener in listeners:
                listener.watch()
            stalled_ms = (time.monotonic() - forwarder.last_progress) * 1000
            if producer.outstanding and stalled_ms > limit_ms:
                self._health.not_ready(
                    "kafka", f"{producer.outstanding} records wait, none acknowledged for {limit_ms} ms"
                )
            else:
                self._health.ready("kafka")
            await asyncio.sleep(_BEAT_S)

    def _broken(self, *ended: asyncio.Future[None]) -> int:
        for future in ended:
            error = future.exception() if future.done() and not future.cancelled() else None
            if error is not None:
                known = isinstance(error, ProducerFailedError)
                self.failure = "".join(traceback.format_exception(error))
                _log.error("cannot go on", reason=str(error), exc_info=None if known else error)
        return Exit.FAILED

    async def _drain(self, forwarder: Forwarder, forwarding: asyncio.Task[None]) -> int:
        timeout_s = max(0.1, (self._settings.shutdown_timeout_ms - _DRAIN_MARGIN_MS) / 1000)
        settled = asyncio.create_task(forwarder.settled())
        await asyncio.wait({settled, forwarding}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if settled.done():
            _log.info("drained")
            return Exit.OK
        settled.cancel()
        if forwarding.done():
            return self._broken(forwarding)
        _log.error("Kafka did not take everything before the deadline", lost=forwarder.unsettled)
        return Exit.DEADLINE


async def _first_of(*tasks: asyncio.Task[None]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _schema(topic: Target) -> dict[str, Any]:
    return isotherm.schemas.schema(topic.record, topic.version)


def _json_encoder(topic: Target) -> Encode:
    return json_values.encoder(_schema(topic), with_schema=topic.values is Values.JSON_WITH_SCHEMA)
