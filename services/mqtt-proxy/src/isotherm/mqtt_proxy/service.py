"""The service's life: routes, Kafka, sessions, and only then the listener; on SIGTERM all of it backwards."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import uvloop
from confluent_kafka import KafkaError, KafkaException
from prometheus_client import CollectorRegistry

from isotherm.connector.standalone.reporting import reported
from isotherm.mqtt_proxy.access.authentication import Access
from isotherm.mqtt_proxy.access.tls import Handshakes, server_context, watch_handshakes
from isotherm.mqtt_proxy.composition import (
    check_properties,
    ensure_dead_letter_topic,
    make_producer,
    producer_limits,
    producer_of,
    router_of,
    rules_of,
)
from isotherm.mqtt_proxy.delivery.transaction_batcher import OutRecord
from isotherm.mqtt_proxy.delivery.transactional_writer import (
    RETRY_BACKOFF_MS,
    FatalTransactionError,
    TransactionalWriter,
)
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.routes import Router
from isotherm.mqtt_proxy.ingest.topic_encoders import Catalogue
from isotherm.mqtt_proxy.ingest.translation import Encode, Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.processes.desired_state import Wanted
from isotherm.mqtt_proxy.processes.name_conflicts import LivingServers
from isotherm.mqtt_proxy.processes.startup import until_possible
from isotherm.mqtt_proxy.processes.worker_process import Member, Place, observed
from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.server.server import FrontDoor
from isotherm.mqtt_proxy.sessions.dormant import DormantSessions
from isotherm.mqtt_proxy.sessions.migration import Handover
from isotherm.mqtt_proxy.sessions.records import from_record, newest, to_record
from isotherm.mqtt_proxy.sessions.recovery import (
    end_offsets,
    fence,
    is_committed,
    read_to_end,
)
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.sessions.store import SessionStore, StoredState
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.schemas import schema
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Exit, Stop, run_async
from isotherm.servicekit.producer_health import ProducerHealth
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)

READING, SESSION = schema("SensorReading", 1), schema("MqttSession", 2)
"""What is written, and for sessions read."""
STATUS = schema("TaskStatus", 1)
"""What is read of other processes."""

_SWEEP_S = 5.0
_CATALOGUE_S = 10.0
_READ_AHEAD_KB = 16_384
"""What the reader of the sessions topic buffers at most."""

T = TypeVar("T")


def run(settings: ProxySettings, place: Place | None = None, link_fd: int | None = None) -> int:
    """Run the proxy until it is told to stop; returns the exit code.

    One of several processes has a `place` among them and a link to their supervisor. Raises SettingsError for routes,
    certificates or properties of Kafka's client that cannot be used.
    """
    check_properties(settings)
    router = router_of(settings)
    tls = server_context(settings.tls)
    return run_async(
        lambda stop: Proxy(settings, router, tls, stop, place, link_fd).run(),
        shutdown_timeout_ms=settings.shutdown_timeout_ms,
        loop_factory=uvloop.new_event_loop,
    )


class Proxy:
    """One process: built from its settings, run once."""

    def __init__(
        self,
        settings: ProxySettings,
        router: Router,
        tls: ssl.SSLContext | None,
        stop: Stop,
        place: Place | None = None,
        link_fd: int | None = None,
    ) -> None:
        self._settings = settings
        self._place = place or Place(first_ordinal=settings.ordinal)
        self._link_fd = link_fd
        self._member: Member | None = None
        self._handover: Handover | None = None
        self._given_away: dict[str, StoredState] = {}
        self._router = router
        self._tls = tls
        self._stop = stop
        self._metrics = Metrics()
        self._access = Access(settings, self._metrics)
        if tls is not None:
            watch_handshakes(tls, self._metrics)
        self._health = Health()
        self._wanted = Wanted(settings, self._health, self._metrics)
        self._exit = Exit.OK
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="transactions")
        self._name = ServerName(settings.name)
        name = self._name.transactional_id(settings.ordinal)
        self._admin = kafka.admin(settings.kafka, name)
        self._registry = SchemaRegistry(settings.registry)
        self._catalogue = Catalogue(self._admin, self._registry, READING)
        self._encode_session: Encode | None = None
        self._living = LivingServers(
            self._admin,
            lambda: kafka.consumer(settings.kafka, f"{name}-name", f"{name}-name", enable_partition_eof=True),
            Decoder(self._registry, STATUS),
            self._name.connector,
        )
        self._producer = producer_of(settings, name)
        self._producer_health = ProducerHealth(
            self._producer, partial(make_producer, settings, name), self._health, on_incurable=self._producer_broken
        )
        self._writer = TransactionalWriter(
            lambda: kafka.producer(
                settings.kafka,
                f"{name}-transactions",
                transactional_id=name,
                transaction_timeout_ms=settings.transactions.timeout_ms,
                retry_backoff_ms=RETRY_BACKOFF_MS,
                retry_backoff_max_ms=RETRY_BACKOFF_MS,
                **producer_limits(settings),
            ),
            timeout_s=settings.transactions.timeout_ms / 1000,
            is_committed=self._is_committed,
            on_replacing=partial(self._health.not_ready, "transactions"),
            on_replaced=self._transactions_go_on,
        )

    async def run(self) -> int:
        """Start, serve until told to stop, drain."""
        registry = CollectorRegistry()
        registry.register(self._metrics)
        self._wanted.start()
        async with observed(self._settings.http, self._health, registry, self._link_fd) as self._member:
            try:
                with reported(self._wanted.reporter(registry)):
                    return await self._serve()
            except FatalTransactionError as failure:
                self._fatal(failure)
                return self._exit
            finally:
                self._wanted.close()
                self._writer.give_up()
                self._executor.shutdown(wait=False)

    async def _serve(self) -> int:
        settings = self._settings
        beats = asyncio.create_task(self._beat())
        await self._until_possible("kafka", self._check_topics)
        await self._until_possible("name", lambda: self._living.hold(settings.ordinal, self._stop.is_set))
        if self._stop.is_set():
            return Exit.OK
        await self._in_thread(lambda: self._writer.open(self._stop))
        restored = await self._until_possible("sessions", self._restore)
        if self._stop.is_set() or restored is None:
            return Exit.OK
        sessions = SessionStore(settings.session.maximum, restored)
        _log.info("sessions restored", sessions=len(sessions))
        await self._wanted.known(self._stop)
        door = self._front_door(sessions)
        if self._member is not None:
            self._member.join(self._handover)
        server = await self._listen(door)
        port = server.sockets[0].getsockname()[1]
        _log.info("listening", host=settings.listener.host, port=port, tls=self._tls is not None)
        self._health.ready()
        tasks = [beats, asyncio.create_task(self._sweep(door))]
        if self._router.has_dynamic_targets:
            tasks.append(asyncio.create_task(self._catalogue.watch(_CATALOGUE_S)))
        await self._wanted.run(self._stop, partial(self._let_in, door))
        self._health.not_ready("start", "stopping")
        server.close()
        if self._exit is Exit.OK:
            await door.drain()
            _log.info("drained")
        for task in tasks:
            task.cancel()
        return self._exit

    async def _let_in(self, door: FrontDoor, halt: Stop) -> None:
        """Let clients in until told to halt; then, unless the end comes first, shut the door."""
        door.open()
        await halt.wait_async()
        if self._stop.is_set():
            return
        stopping, shutting = (asyncio.create_task(work) for work in (self._stop.wait_async(), door.shut()))
        await asyncio.wait([stopping, shutting], return_when=asyncio.FIRST_COMPLETED)
        if shutting.done():
            shutting.result()
        for task in (stopping, shutting):
            task.cancel()

    async def _listen(self, door: FrontDoor) -> asyncio.Server:
        listener = self._settings.listener
        accept: Callable[[], asyncio.BaseProtocol] = partial(Connection, door)
        if self._tls is not None:
            accept = Handshakes(door, self._tls, partial(Connection, door, is_admitted=True)).socket
        try:
            return await asyncio.get_running_loop().create_server(
                accept,
                listener.host,
                listener.port,
                backlog=listener.backlog,
                reuse_port=listener.reuse_port or None,
            )
        except OSError as error:
            raise SettingsError([f"listener.host, listener.port: {listener.host}:{listener.port}: {error}"]) from None

    def _front_door(self, sessions: SessionStore) -> FrontDoor:
        settings = self._settings
        transactions = Transactions(
            self._writer,
            executor=self._executor,
            session_record=self._session_record,
            # No client can have this id, and a null value is no session.
            witness=OutRecord(settings.session.topic, self._name.witness_key(settings.ordinal), None, []),
            max_records=settings.transactions.max_records,
            linger_s=settings.transactions.linger_ms / 1000,
            metrics=self._metrics,
            on_fatal=self._fatal,
        )
        if self._member is not None:
            self._handover = Handover(
                sessions=sessions,
                transactions=transactions,
                send=self._member.send,
                interrupted=self._given_away,
                max_claims=settings.limits.connections,
                metrics=self._metrics,
            )
        return FrontDoor(
            limits=settings.limits,
            session_expiry_s=settings.session.expiry_s,
            translator=Translator(self._router, self._catalogue.encoders, rules_of(settings)),
            producer=self._producer,
            transactions=transactions,
            sessions=sessions,
            metrics=self._metrics,
            handover=self._handover,
            access=self._access,
            refuse_misfits=settings.misfit == "refuse",
            allow_control_characters=settings.listener.allow_control_characters,
            tcp_keep_alive_s=settings.listener.tcp_keep_alive_s,
        )

    def _session_record(self, client_id: str, state: StoredState | None) -> OutRecord:
        assert self._encode_session is not None
        value = None
        if state is not None:
            record = to_record(client_id, state, owner=self._settings.ordinal, now_ms=int(time.time() * 1000))
            value = self._encode_session(record)
        return OutRecord(self._settings.session.topic, self._name.session_key(client_id), value, [])

    def _is_committed(self, topic: str, partition: int, offset: int) -> bool:
        name = f"{self._name.transactional_id(self._settings.ordinal)}-outcome"
        try:
            return is_committed(self._settings.kafka, name, (topic, partition, offset), self._writer.is_given_up)
        except KafkaException as failure:
            message = f"{topic}, partition {partition}, offset {offset}: whether it is committed is unknown: {failure}"
            raise FatalTransactionError(message) from failure

    def _transactions_go_on(self) -> None:
        self._metrics.recoveries += 1
        self._health.ready("transactions")

    def _fatal(self, failure: BaseException) -> None:
        """This process must not go on: its successor reads from Kafka what is true."""
        _log.error(
            "the transactional producer is fenced or broken; ending",
            reason=str(failure),
            transactional_id=self._name.transactional_id(self._settings.ordinal),
        )
        self._health.not_ready("transactions", str(failure))
        self._exit = Exit.FAILED
        self._stop.set()

    def _producer_broken(self, error: KafkaError) -> None:
        """New producers break as well: a new process may find a way, or an operator finds this one in its place."""
        _log.error("the producer is broken for good; ending", code=error.name(), reason=error.str())
        self._exit = Exit.FAILED
        self._stop.set()

    # -- the start, in the thread

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def _until_possible(self, part: str, call: Callable[[], T]) -> T | None:
        return await until_possible(part, call, executor=self._executor, health=self._health, stop=self._stop)

    def _check_topics(self) -> None:
        settings = self._settings
        self._catalogue.require(self._router.targets, without_readings=[settings.session.topic])
        if self._router.has_dynamic_targets:
            self._catalogue.refresh()
        ensure_dead_letter_topic(self._admin, settings)
        self._encode_session = self._registry.encoder(settings.session.topic, SESSION)

    def _restore(self) -> DormantSessions:
        """Our sessions, and our share of those of processes that do not exist any more, which are fenced first."""
        decoder, fenced = Decoder(self._registry, SESSION), set[int]()

        def decode(value: bytes) -> StoredState:
            return from_record(decoder(value).record)

        def takes(state: StoredState) -> bool:
            return self._place.takes(state.owner or 0)

        topic = self._settings.session.topic
        while True:
            values = self._read_sessions(topic)
            try:
                interrupted = self._member.interrupted if self._member else ()
                given_away = {client_id: decode(values[client_id]) for client_id in interrupted if client_id in values}
                restored = DormantSessions(decode, int(time.time() * 1000))
                owners = restored.take_over(values, takes)
            except WireFormatError as error:
                # To go on without a session's state would break the promise made to its device.
                raise FatalTransactionError(f"{topic}: a session cannot be read: {error}") from error
            gone = {owner for owner in owners if self._place.is_gone(owner) and self._place.takes(owner)} - fenced
            if not gone or self._stop.is_set():
                break
            self._living.check(gone, self._stop.is_set)
            for owner in sorted(gone):
                fence(self._settings.kafka, self._name.transactional_id(owner))
            fenced |= gone
        self._given_away = {client_id: state for client_id, state in given_away.items() if not takes(state)}
        return restored

    def _read_sessions(self, topic: str) -> dict[str, bytes]:
        name = f"{self._name.transactional_id(self._settings.ordinal)}-restore"
        consumer = kafka.consumer(
            self._settings.kafka, name, name, enable_partition_eof=True, queued_max_messages_kbytes=_READ_AHEAD_KB
        )
        try:
            ends = end_offsets(self._admin, topic)
            return newest(read_to_end(consumer, topic, ends, self._stop), self._name.client_of)
        finally:
            consumer.close()

    # -- what repeats

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            self._producer_health.look()
            self._metrics.producers_replaced = self._producer_health.replaced
            await asyncio.sleep(1.0)

    async def _sweep(self, door: FrontDoor) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            door.expire_sessions()
            door.end_dead_connections()
            self._access.refresh()
            if door.congested:
                self._health.not_ready("kafka", "records wait for Kafka up to the bound; sockets are not read")
            else:
                self._health.ready("kafka")
