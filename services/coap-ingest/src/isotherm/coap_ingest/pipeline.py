"""What runs the started connectors until a target state changes: from sockets to producers, and its orderly end."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from isotherm import payloads
from isotherm.coap_ingest.coap.client import Client
from isotherm.coap_ingest.connectors.plan import ConnectorPlan
from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue
from isotherm.coap_ingest.ingest.forwarder import Forwarder, ProducerFailedError
from isotherm.coap_ingest.ingest.outlets import Outlets
from isotherm.coap_ingest.ingest.queued_notification import QueuedNotification
from isotherm.coap_ingest.ingest.routes import SERVICE, Encode
from isotherm.coap_ingest.listener.listener import Listener
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.observe.observers import Observers
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.attestation.attester import Attester
from isotherm.connector.state.status import this_process
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.producer.health import ProducerHealth

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTraces

_log = logs.logger(__name__)

_BEAT_S = 1.0
_DRAIN_MARGIN_MS = 4_000
"""Draining ends this long before the deadline of the process: time for the last attestations and the log."""
_ATTESTED_WITHIN_MS = 10_000
_MOST_ATTESTATIONS, _MOST_ATTESTATIONS_KB = 1_000, 8_192


class Pipeline:
    """Everything that runs until a target state changes: clients, observers, listeners, the queue and the producers."""

    def __init__(
        self,
        settings: CoapIngestSettings,
        plans: Sequence[ConnectorPlan],
        encoders: dict[str, Encode],
        metrics: Metrics,
        health: Health,
        traces: IngestTraces | None = None,
    ) -> None:
        self._traces = traces
        self._settings = settings
        self._plans = plans
        self._encoders = encoders
        self._metrics = metrics
        self._health = health
        self._queue: BoundedQueue[QueuedNotification] = BoundedQueue(settings.queue_limit, settings.queue_limit_bytes)
        self._sequences = payloads.SequenceGenerator()
        self._attester = Attester(
            SchemaRegistry(settings.registry),
            SERVICE,
            this_process(),
            interval_ms=settings.attestations.interval_ms,
            is_attested=encoders.__contains__,
        )
        self._producers: list[LoopProducer] = []
        self._producer_healths: list[ProducerHealth] = []
        self._producer_failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when new producers do not help; the process must then end."""
        self.failure: str | None = None
        """Why the pipeline ended without being asked to."""

    async def run(self, stopped: asyncio.Task[None]) -> int:
        """Run until `stopped` is done or a part fails; return the exit code."""
        # Without a delivery timeout: a record that is given up is lost, and the queue before the producer is bounded.
        producer = self._make_producer("producer", 0)
        coap_clients = await self._open_clients()
        observers = Observers(
            [plan.observe for plan in self._plans],
            coap_clients,
            self._settings.observation.timing(),
            self._queue,
            self._encoders,
            self._metrics,
            self._health,
            max_discovered=self._settings.max_discovered,
        )
        forwarder = self._make_forwarder(producer, observers.outlets)
        listeners = self._make_listeners()
        observing = asyncio.create_task(observers.run())
        forwarding = asyncio.create_task(forwarder.run())
        attestations = self._make_attestations_producer()
        attesting = asyncio.create_task(self._attester.run(attestations))
        watching = asyncio.create_task(self._watch(forwarder, producer, listeners, set(coap_clients.values())))
        parts: list[asyncio.Future[None]] = [self._producer_failed, forwarding, watching, observing]
        try:
            for listener in listeners:
                await listener.open(self._settings.receive_buffer_bytes)
            self._health.ready()
            halted = forwarder.halted
            ends: set[asyncio.Future[Any]] = {stopped, halted, *parts}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done() and not halted.done():
                return self._log_failures(*parts)
            if halted.done():
                self.failure = halted.result()
            self._health.not_ready("stop", halted.result() if halted.done() else "stopping")
            await cancel([observing])
            timeout_s = self._settings.shutdown_timeout_ms / 2000
            await asyncio.gather(observers.close(), *(listener.close(timeout_s) for listener in listeners))
            drained = await self._drain(forwarder, forwarding)
            await cancel([attesting])
            await self._attester.finish(attestations)
            return Exit.FAILED if halted.done() and drained is Exit.OK else drained
        finally:
            self._producer_failed.cancel()
            await cancel([observing, forwarding, watching, attesting])
            await asyncio.gather(*(health.close() for health in self._producer_healths))
            await asyncio.gather(*(listener.close(0) for listener in listeners))
            await asyncio.gather(*(client.close() for client in set(coap_clients.values())))
            for each in self._producers:
                each.close()

    def _make_forwarder(self, producer: LoopProducer, outlets: Outlets) -> Forwarder:
        return Forwarder(
            self._queue,
            producer,
            outlets,
            {plan.name: plan.dead_letter_topic for plan in self._plans},
            self._metrics,
            {plan.name: plan.errors for plan in self._plans},
            self._sequences,
            self._traces,
        )

    def _make_producer(self, part: str, delivery_timeout_ms: int) -> LoopProducer:
        """Return a producer that is replaced when it breaks; `part` names it in readiness."""
        settings = self._settings
        make, make_single = (
            partial(
                producer,
                settings.kafka,
                SERVICE,
                delivery_timeout_ms=delivery_timeout_ms,
                queue_buffering_max_kbytes=max(1, settings.queue_limit_bytes // 1024),
            )
            for producer in (clients.producer, clients.single_record_producer)
        )

        def fail(error: KafkaError) -> None:
            if not self._producer_failed.done():
                text = f"{part}: new producers break as well: {error.str()}"
                self._producer_failed.set_exception(ProducerFailedError(text))

        producer = LoopProducer(make(), max_outstanding=settings.max_outstanding, make_single=make_single)
        producer.on_stored = self._attester.on_stored
        self._producers.append(producer)
        self._producer_healths.append(ProducerHealth(producer, make, self._health, on_incurable=fail, part=part))
        return producer

    def _make_attestations_producer(self) -> LoopProducer:
        """Return a producer of its own, so that no attestation keeps a reading waiting."""
        make = partial(
            clients.producer,
            self._settings.kafka,
            f"{SERVICE}-attestations",
            delivery_timeout_ms=_ATTESTED_WITHIN_MS,
            queue_buffering_max_kbytes=_MOST_ATTESTATIONS_KB,
        )
        producer = LoopProducer(make(), max_outstanding=_MOST_ATTESTATIONS)
        producer.on_fatal = lambda _error: producer.replace(make())
        self._producers.append(producer)
        return producer

    def _make_listeners(self) -> list[Listener]:
        """Return a listener for each plan that has one.

        Each has a producer of its own, because its deliveries must end in time for an answer.
        """
        return [
            Listener(
                plan.listen,
                self._encoders,
                self._make_producer(f"{plan.name}: producer", plan.listen.timeout_ms),
                self._settings.limits(),
                self._metrics,
                message_id_cache_size=self._settings.message_id_cache_size,
                sequences=self._sequences,
                traces=self._traces,
            )
            for plan in self._plans
            if plan.listen is not None
        ]

    async def _open_clients(self) -> dict[str, Client]:
        """Return each connector's client: a client of its own when it has a key, else the shared one."""
        limit, buffer = self._settings.max_payload_bytes, self._settings.receive_buffer_bytes
        servers = [server for plan in self._plans if plan.psk is None for server in plan.observe.servers]
        shared = await Client.open(limit, servers, receive_buffer_bytes=buffer)
        own = {
            plan.name: await Client.open(limit, plan.observe.servers, plan.psk, receive_buffer_bytes=buffer)
            for plan in self._plans
            if plan.psk is not None
        }
        return {plan.name: own.get(plan.name, shared) for plan in self._plans}

    async def _watch(
        self,
        forwarder: Forwarder,
        producer: LoopProducer,
        listeners: Sequence[Listener],
        coap_clients: Collection[Client],
    ) -> None:
        """Once a second update metrics, find broken producers, and report when Kafka acknowledges nothing."""
        limit_ms = self._settings.kafka_stalled_after_ms
        replaced = dropped = unattested = 0
        while True:
            self._health.beat()
            for health in self._producer_healths:
                health.look()
            before, replaced = replaced, sum(health.replaced for health in self._producer_healths)
            self._metrics.producers_replaced.inc(replaced - before)
            before, unattested = unattested, self._attester.dropped
            self._metrics.unattested.inc(unattested - before)
            self._metrics.queue_length.set(self._queue.reserved)
            self._metrics.outstanding.set(producer.outstanding)
            for listener in listeners:
                listener.maintain()
            before, dropped = dropped, sum(client.count_dropped() for client in coap_clients)
            self._metrics.count_dropped_datagrams("observe", dropped - before)
            stalled_ms = (time.monotonic() - forwarder.last_progress) * 1000
            if producer.outstanding and stalled_ms > limit_ms:
                self._health.not_ready(
                    "kafka", f"{producer.outstanding} records wait, none acknowledged for {limit_ms} ms"
                )
            else:
                self._health.ready("kafka")
            await asyncio.sleep(_BEAT_S)

    def _log_failures(self, *parts: asyncio.Future[None]) -> int:
        """Log the exceptions of the parts that failed; return the exit code."""
        for part in parts:
            error = part.exception() if part.done() and not part.cancelled() else None
            if error is not None:
                is_explained = isinstance(error, ProducerFailedError)
                self.failure = "".join(traceback.format_exception(error))
                _log.error("cannot go on", reason=str(error), exc_info=None if is_explained else error)
        return Exit.FAILED

    async def _drain(self, forwarder: Forwarder, forwarding: asyncio.Task[None]) -> int:
        """Wait until Kafka has everything, but not beyond the deadline; return the exit code."""
        timeout_s = max(0.1, (self._settings.shutdown_timeout_ms - _DRAIN_MARGIN_MS) / 1000)
        settled = asyncio.create_task(forwarder.settled())
        await asyncio.wait({settled, forwarding}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if settled.done():
            _log.info("drained")
            return Exit.OK
        settled.cancel()
        if forwarding.done():
            return self._log_failures(forwarding)
        _log.error("Kafka did not acknowledge everything before the deadline", lost=forwarder.unsettled)
        return Exit.DEADLINE


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
