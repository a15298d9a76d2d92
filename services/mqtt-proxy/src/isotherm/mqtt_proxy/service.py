"""The life of the MQTT server: routes, Kafka, sessions, and only then the listener; on SIGTERM the same backwards."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import uvloop
from confluent_kafka import KafkaError, KafkaException
from prometheus_client import CollectorRegistry

from isotherm.connector.standalone.reporting import reported
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.access.tls import server_context
from isotherm.mqtt_proxy.assembly import build_attester, build_server
from isotherm.mqtt_proxy.command_delivery import CommandDelivery
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.transactional_writer import FatalTransactionError, TransactionalWriter
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.configuration import build_router, build_rules, ensure_dead_letter_topic
from isotherm.mqtt_proxy.ingest.inflight_gate import InflightGate
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.routes import Router
from isotherm.mqtt_proxy.ingest.topic_encoders import TopicEncoders
from isotherm.mqtt_proxy.ingest.translation import Translator
from isotherm.mqtt_proxy.kafka_clients import (
    build_loop_producer,
    build_open_commands_consumer,
    build_outcome_consumer,
    build_producer,
    build_target_state,
    build_transactional_producer,
    check_properties,
)
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.pods.ownership import Estates
from isotherm.mqtt_proxy.processes.adoption import SessionAdoption
from isotherm.mqtt_proxy.processes.startup import retry_until_possible
from isotherm.mqtt_proxy.processes.worker_process import PodStart, WorkerProcess, monitored
from isotherm.mqtt_proxy.server.listeners import open_listeners
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.session_source import SessionSource
from isotherm.mqtt_proxy.sessions.dormant import DormantSessions
from isotherm.mqtt_proxy.sessions.migration import SessionMigration
from isotherm.mqtt_proxy.sessions.records import EncodeSession
from isotherm.mqtt_proxy.sessions.recovery import is_committed
from isotherm.mqtt_proxy.sessions.restoration import UnreadableSessionError
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.sessions.store import SessionStore, StoredState
from isotherm.mqtt_proxy.sessions.worker_slot import WorkerSlot
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.schemas import schema
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop, run_async
from isotherm.servicekit.producer.health import ProducerHealth
from isotherm.servicekit.tracing.opening import ingest_traces_of

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTraces

_log = logs.logger(__name__)

READING = schema("SensorReading", 1)
"""The schema of readings, which the service writes."""

_SWEEP_S, _REFRESH_TOPICS_S = 5.0, 10.0

T = TypeVar("T")


def run(settings: ProxySettings, slot: WorkerSlot | None = None, link_fd: int | None = None) -> int:
    """Run the proxy until it is told to stop; return the exit code.

    One of several processes has a `slot` and a link to their supervisor. Raises SettingsError for routes, certificates
    or Kafka client properties that cannot be used.
    """
    check_properties(settings)
    router = build_router(settings)
    tls = server_context(settings.tls)
    return run_async(
        lambda stop: Proxy(settings, router, tls, stop, slot, link_fd).run(),
        shutdown_timeout_ms=settings.shutdown_timeout_ms,
        loop_factory=uvloop.new_event_loop,
    )


class Proxy:
    """One process: composed from its settings, run once."""

    def __init__(
        self,
        settings: ProxySettings,
        router: Router,
        tls: ssl.SSLContext | None,
        stop: Stop,
        slot: WorkerSlot | None = None,
        link_fd: int | None = None,
    ) -> None:
        self._settings = settings
        self._link_fd = link_fd
        self._process: WorkerProcess | None = None
        self._router = router
        self._tls = tls
        self._stop = stop
        self._metrics = Metrics()
        self._access = AccessControl(settings, self._metrics)
        self._health = Health()
        self._exit = Exit.OK
        self._traces: IngestTraces | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="transactions")
        self._name = ServerName(settings.name)
        self._target_state = build_target_state(settings, self._name.connector, self._health, self._metrics)
        self._client_id = self._name.transactional_id(settings.ordinal)
        self._admin = clients.admin(settings.kafka, self._client_id)
        self._registry = SchemaRegistry(settings.registry)
        self._encoders = TopicEncoders(self._admin, self._registry, READING)
        self._encode_session: EncodeSession | None = None
        self._slot = slot or WorkerSlot(first_ordinal=settings.ordinal)
        self._source = SessionSource(settings, self._client_id, admin=self._admin, registry=self._registry, stop=stop)
        self._restoration = self._source.of(self._slot)
        self._estates = Estates()
        self._adoption: SessionAdoption | None = None
        self._producer = build_loop_producer(settings, self._client_id)
        self._producer_health = ProducerHealth(
            self._producer,
            partial(build_producer, settings, self._client_id),
            self._health,
            on_incurable=self._on_producer_broken,
        )
        self._commands = CommandDelivery(
            settings,
            make_consumer=partial(build_open_commands_consumer, settings, self._client_id),
            registry=self._registry,
            producer=self._producer,
            access=self._access,
            metrics=self._metrics,
            health=self._health,
        )
        self._attester = build_attester(settings, self._registry, self._encoders)
        self._producer.on_stored = self._attester.on_stored
        self._writer = TransactionalWriter(
            partial(build_transactional_producer, settings, self._client_id),
            timeout_s=settings.transactions.timeout_ms / 1000,
            is_committed=self._is_committed,
            on_replacing=partial(self._health.not_ready, "transactions"),
            on_replaced=self._on_producer_replaced,
            find_successor=lambda: self._source.find_successor(self._writer.is_given_up),
            confirm=self._confirm_membership,
        )

    async def run(self) -> int:
        """Start, serve until told to stop, drain."""
        registry = CollectorRegistry()
        registry.register(self._metrics)
        self._target_state.start()
        self._traces = ingest_traces_of(self._settings.tracing, SERVICE, registry, instance=self._client_id)
        with_exemplars = self._traces is not None
        async with monitored(
            self._settings.http, self._health, registry, self._link_fd, with_exemplars=with_exemplars
        ) as self._process:
            try:
                with reported(self._target_state.reporter(registry)):
                    return await self._serve()
            except (FatalTransactionError, UnreadableSessionError) as failure:
                self._on_fatal(failure)
                return self._exit
            finally:
                self._target_state.close()
                self._writer.give_up()
                self._executor.shutdown(wait=False)
                if self._traces is not None:
                    await asyncio.get_running_loop().run_in_executor(None, self._traces.close)

    async def _serve(self) -> int:
        settings = self._settings
        beats = asyncio.create_task(self._beat())
        await self._retry("kafka", self._check_topics)
        if self._pod is None:
            await self._retry("name", self._source.hold_name)
        if self._stop.is_set():
            return Exit.OK
        await asyncio.get_running_loop().run_in_executor(self._executor, self._writer.open, self._stop)
        restored = await self._retry("sessions", self._restore)
        if self._stop.is_set() or restored is None:
            return Exit.OK
        if self._pod is not None and len(restored):
            self._estates.add(restored)
        found, bounds = restored if self._pod is None else self._estates, settings.session
        sessions = SessionStore(bounds.maximum, found, maximum_per_sender=bounds.most_per_sender)
        _log.info("sessions restored", sessions=len(sessions))
        await self._target_state.wait_until_known(self._stop)
        server = self._build_server(sessions)
        listeners = await open_listeners(server, settings, self._tls)
        self._health.ready()
        if self._process is not None:
            self._process.report()
        attesting = asyncio.create_task(self._attester.run(self._producer))
        tasks = [beats, attesting, asyncio.create_task(self._sweep(server))]
        if self._router.has_dynamic_targets:
            tasks.append(asyncio.create_task(self._encoders.watch(_REFRESH_TOPICS_S)))
        await self._target_state.run(self._stop, partial(self._accept_clients, server))
        self._health.not_ready("start", "stopping")
        for listener in listeners:
            listener.close()
        if self._exit is Exit.OK:
            if self._pod is not None:
                await server.send_away(settings.pods.drain_ms / 1000, settings.pods.server_reference)
            await server.drain()
            await self._attester.finish(self._producer)
            _log.info("drained")
        if self._adoption is not None:
            self._adoption.close()
        await self._commands.close()
        for task in tasks:
            task.cancel()
        return self._exit

    async def _accept_clients(self, server: Server, halt: Stop) -> None:
        """Accept clients until told to halt. Then shut the server, unless the process stops first."""
        server.open()
        await halt.wait_async()
        if self._stop.is_set():
            return
        stopping, shutting = (asyncio.create_task(work) for work in (self._stop.wait_async(), server.shut()))
        await asyncio.wait([stopping, shutting], return_when=asyncio.FIRST_COMPLETED)
        if shutting.done():
            shutting.result()
        for task in (stopping, shutting):
            task.cancel()

    def _build_server(self, sessions: SessionStore) -> Server:
        settings, metrics = self._settings, self._metrics
        transactions = Transactions(
            self._writer,
            executor=self._executor,
            session_record=self._session_record,
            # No client can have this id, and a null value is no session.
            witness=ProducerRecord(settings.session.topic, self._name.witness_key(settings.ordinal), None, []),
            max_records=settings.transactions.max_records,
            linger_s=settings.transactions.linger_ms / 1000,
            metrics=metrics,
            on_fatal=self._on_fatal,
            on_stored=self._attester.on_stored,
        )
        migration = None
        if self._process is not None:
            migration = SessionMigration(
                sessions=sessions,
                writer=transactions,
                send=self._process.send,
                interrupted=self._restoration.transferred,
                max_claims=settings.limits.connections,
                metrics=metrics,
            )
        rules, answers = build_rules(settings), self._commands.answers
        translator = Translator(self._router, self._encoders.encoders, rules, traces=self._traces, answers=answers)
        pipeline = IngestPipeline(
            translator=translator,
            producer=self._producer,
            transactions=transactions,
            gate=InflightGate(settings.limits.outstanding_records, settings.limits.outstanding_bytes, metrics),
            metrics=metrics,
            clock=asyncio.get_running_loop().time,
            refuse_invalid=settings.invalid_publish == "refuse",
            runs_of=self._attester.runs_of,
        )
        server = build_server(
            settings,
            pipeline=pipeline,
            sessions=sessions,
            access=self._access,
            migration=migration,
            commands=self._commands.start(transactions),
        )
        if self._process is not None:
            if migration is not None and self._pod is not None:
                self._adoption = self._build_adoption(sessions, migration)
                self._process.on_adopt = self._adoption.begin
            self._process.join(migration)
        return server

    # -- one pod of several

    @property
    def _pod(self) -> PodStart | None:
        """What this process must know as one of a pod; None where the server is one supervisor."""
        return None if self._process is None else self._process.start_in_pod

    def _confirm_membership(self, is_over: Callable[[], bool]) -> None:
        if self._process is not None and self._pod is not None:
            self._process.confirm_membership(is_over)

    def _build_adoption(self, sessions: SessionStore, migration: SessionMigration) -> SessionAdoption:
        assert self._process is not None
        return SessionAdoption(
            ordinal=self._settings.ordinal,
            first_ordinal=self._slot.first_ordinal,
            fence=self._source.fence,
            make_restoration=self._source.of,
            sessions=sessions,
            estates=self._estates,
            migration=migration,
            send=self._process.send,
            health=self._health,
            stop=self._stop,
            on_fatal=self._on_fatal,
        )

    # -- Kafka

    def _session_record(self, client_id: str, state: StoredState | None) -> ProducerRecord:
        assert self._encode_session is not None
        value = None
        if state is not None:
            value = self._encode_session(client_id, state, self._settings.ordinal, int(time.time() * 1000))
        return ProducerRecord(self._settings.session.topic, self._name.session_key(client_id), value, [])

    def _is_committed(self, topic: str, partition: int, offset: int) -> bool:
        make_consumer = partial(build_outcome_consumer, self._settings.kafka, f"{self._client_id}-outcome")
        try:
            return is_committed(make_consumer, (topic, partition, offset), self._writer.is_given_up)
        except KafkaException as failure:
            message = f"{topic}, partition {partition}, offset {offset}: whether it is committed is unknown: {failure}"
            raise FatalTransactionError(message) from failure

    def _on_producer_replaced(self) -> None:
        self._metrics.recoveries += 1
        self._health.ready("transactions")

    def _on_fatal(self, failure: BaseException) -> None:
        """End this process; its successor reads the true state from Kafka."""
        _log.error(
            "the transactional producer is fenced or broken; ending",
            reason=str(failure),
            transactional_id=self._client_id,
        )
        self._health.not_ready("transactions", str(failure))
        self._exit = Exit.FAILED
        self._stop.set()

    def _on_producer_broken(self, error: KafkaError) -> None:
        """End this process, because new producers break as well; a new process or an operator may find a way."""
        _log.error("the producer is broken for good; ending", code=error.name(), reason=error.str())
        self._exit = Exit.FAILED
        self._stop.set()

    # -- the start, in the thread

    async def _retry(self, part: str, call: Callable[[], T]) -> T | None:
        return await retry_until_possible(part, call, executor=self._executor, health=self._health, stop=self._stop)

    def _check_topics(self) -> None:
        settings, own = self._settings, [self._settings.session.topic, *self._commands.topics]
        self._encoders.require(self._router.targets, without_readings=own, raw=self._router.raw_targets)
        if self._router.has_dynamic_targets:
            self._encoders.refresh()
        ensure_dead_letter_topic(self._admin, settings)
        self._encode_session = self._source.encoder()
        self._commands.prepare()

    def _restore(self) -> DormantSessions:
        pod = self._pod
        if pod is not None:
            if pod.is_new:
                # It owns nothing: all that is stored belongs to other pods, or is adopted by their heir.
                return DormantSessions(lambda _value: StoredState(), 0)
            self._restoration = self._source.of_pod(pod, self._slot.first_ordinal)
        return self._restoration.restore(self._process.interrupted if self._process else ())

    # -- periodic work

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            self._producer_health.look()
            self._metrics.producers_replaced = self._producer_health.replaced
            self._metrics.unattested = self._attester.dropped
            self._access.refresh()
            await asyncio.sleep(1.0)

    async def _sweep(self, server: Server) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            server.sessions.expire()
            server.close_dead_connections()
            if server.pipeline.gate.is_congested:
                self._health.not_ready("kafka", "records wait for Kafka up to the bound; sockets are not read")
            else:
                self._health.ready("kafka")
