"""What all connections share: sessions, bounds, the producers, and who may come in."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from isotherm.mqtt_proxy.access.authentication import Access
from isotherm.mqtt_proxy.access.connection_limits import Admission
from isotherm.mqtt_proxy.codec.packets import V5, Connect
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.transaction_batcher import DetachUnit, WipeUnit, nobody_waits
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.translation import Translated, Translator, reason_of
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.server.connect_handler import Accepting
from isotherm.mqtt_proxy.server.wills import Wills, now_ms
from isotherm.mqtt_proxy.sessions.migration import Handover
from isotherm.mqtt_proxy.sessions.store import Session, SessionStore
from isotherm.mqtt_proxy.settings import LimitSettings
from isotherm.servicekit import logs
from isotherm.servicekit.delivery import LoopProducer
from isotherm.servicekit.sparse_log import SparseLog

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.server.connection import Connection

_log = logs.logger(__name__)

_MAX_CLIENT_ID_CHARS = 256


_READ_BYTES = 16_384
"""How much is read of a connection at a time: what is behind a publish that has to wait stays with the kernel."""


class FrontDoor:
    """The process' state, used by the event loop only."""

    def __init__(
        self,
        *,
        limits: LimitSettings,
        session_expiry_s: int,
        translator: Translator,
        producer: LoopProducer,
        transactions: Transactions,
        sessions: SessionStore,
        metrics: Metrics,
        refuse_misfits: bool = False,
        allow_control_characters: bool = False,
        tcp_keep_alive_s: int = 0,
        access: Access,
        handover: Handover | None = None,
    ) -> None:
        self.limits = limits
        self.access = access
        self._refuse_misfits = refuse_misfits
        self.allow_control_characters = allow_control_characters
        self.tcp_keep_alive_s = tcp_keep_alive_s
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.buffered_bytes = 0
        """Of all connections: incomplete packets, CONNECTs that are not answered, publishes that are held."""
        self.admission = Admission(limits, metrics)
        self.translator = translator
        self.producer = producer
        self.transactions = transactions
        self.metrics = metrics
        self.congested = False
        self.draining = False
        self._is_open = False
        self.connections: set[Connection] = set()
        self.outstanding_records = 0
        self.outstanding_bytes = 0
        self._sessions = sessions
        self._handover = handover
        if handover is not None:
            handover.on_leave = self._leave
        self._session_expiry_s = session_expiry_s
        self._accepting = Accepting(self, sessions=sessions, handover=handover, session_expiry_s=session_expiry_s)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Connection, None] = {}
        self._to_flush: dict[Connection, None] = {}
        self._to_pump: dict[Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._not_stored = SparseLog(_log, "publishes were not stored")
        self.wills = Wills(
            limits=limits,
            sessions=sessions,
            translator=translator,
            producer=producer,
            transactions=transactions,
            metrics=metrics,
            on_refused=self.count_refused,
        )
        metrics.gauges |= {
            "connections": lambda: len(self.connections),
            "connections_authenticated": lambda: self.admission.authenticated,
            "sessions": lambda: len(self._sessions),
            "outstanding_records": lambda: self.outstanding_records,
            "outstanding_bytes": lambda: self.outstanding_bytes,
            "connections_waiting": lambda: len(self._waiting),
            "buffered_bytes": lambda: self.buffered_bytes,
            "wills_bytes": lambda: self.wills.bytes,
        }

    # -- bounds

    def admit(self, connection: Connection, *, is_counted: bool = False) -> bool:
        """Take a new socket in, unless a bound is reached; `is_counted` when it has its place already."""
        if self.draining or not (is_counted or self.admission.enter(connection.address)):
            return False
        self.connections.add(connection)
        return True

    def took(self, records: int, payload_bytes: int) -> None:
        """Records go to Kafka."""
        self.outstanding_records += records
        self.outstanding_bytes += payload_bytes
        limits = self.limits
        if self.outstanding_records >= limits.outstanding_records or self.outstanding_bytes >= limits.outstanding_bytes:
            self.metrics.congestions += not self.congested
            self.congested = True

    def finished(self, records: int, payload_bytes: int) -> None:
        """Kafka decided about them; below half of the bounds everybody goes on."""
        self.outstanding_records -= records
        self.outstanding_bytes -= payload_bytes
        if (
            self.congested
            and self.outstanding_records * 2 <= self.limits.outstanding_records
            and self.outstanding_bytes * 2 <= self.limits.outstanding_bytes
        ):
            self.congested = False
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                self.pump_soon(connection)

    def wait_for_room(self, connection: Connection) -> None:
        """`connection` goes on when there is room again."""
        self._waiting[connection] = None

    def pump_soon(self, connection: Connection) -> None:
        """Let `connection` go on with what it has received, in this turn of the loop."""
        if not self._to_pump:
            self._loop.call_soon(self._pump_all)
        self._to_pump[connection] = None

    def _pump_all(self) -> None:
        connections, self._to_pump = self._to_pump, {}
        for connection in connections:
            connection.pump()

    def flush_soon(self, connection: Connection) -> None:
        """Send the answers of `connection` once for this turn of the loop."""
        if not self._to_flush:
            self._loop.call_soon(self._flush_all)
        self._to_flush[connection] = None

    def _flush_all(self) -> None:
        connections, self._to_flush = self._to_flush, {}
        for connection in connections:
            connection.flush()

    def end_dead_connections(self) -> None:
        """End connections that are not read now and whose peer is gone."""
        for connection in list(self.connections):
            connection.check_peer()

    # -- counts

    def refusal(self, translated: Translated, version: int) -> Reason | None:
        """What a client is told of a publish of QoS 1 or 2 that does not fit, when it is told; it is counted then."""
        misfit = translated.misfit
        # What is only counted, because there are too many dead letters, is never acknowledged to who can be told.
        is_told = self._refuse_misfits or not translated.records
        if misfit is None or not is_told or version != V5:
            return None
        self.metrics.misfits_refused[misfit] += 1
        return reason_of(misfit)

    def count_stored(self, translated: Translated, qos: int, seconds: float) -> None:
        """A publish is in Kafka."""
        self.metrics.count_stored(translated, qos, seconds)

    def count_refused(self, qos: int, client_id: str, reason: str) -> None:
        """A publish is not in Kafka, and its device is not told that it were."""
        self.metrics.refused[qos] += 1
        self._not_stored(client_id=client_id, qos=qos, reason=reason)

    # -- CONNECT

    def connect(self, connection: Connection, connect: Connect) -> None:
        """Decide about a CONNECT; the connection is told by `accept` or `refuse`, perhaps later."""
        if self.draining:
            connection.refuse(Reason.SERVER_SHUTTING_DOWN)
        elif not self._is_open:
            connection.refuse(Reason.SERVER_UNAVAILABLE)
        elif len(connect.client_id) > _MAX_CLIENT_ID_CHARS:
            connection.refuse(Reason.CLIENT_IDENTIFIER_NOT_VALID)
        else:
            connection.arrival.client_id = connect.client_id or f"auto-{secrets.token_hex(8)}"
            self._spawn(self._accepting.decide(connection, connect))

    def change_expiry(self, session: Session, expiry_s: int) -> None:
        """An MQTT 5 client ends its connection with another session expiry."""
        session.expiry_s = min(expiry_s, self._session_expiry_s)

    # -- the end of a connection

    def ended(self, connection: Connection, *, with_will: bool) -> None:
        """A connection is over: detach its session, publish its will or remove it."""
        if connection in self.connections:
            self.connections.discard(connection)
            self.admission.leave(connection.address, authenticated=connection.is_authenticated)
        self._waiting.pop(connection, None)
        session = connection.session
        if session is None:
            return
        if connection.protocol.was_accepted and not with_will:
            self.wills.remove(session)
        if session.owner is connection:
            session.owner = None
            self._detach(session)
        elif connection.protocol.was_accepted:
            self.wills.taken_over(session)

    def _detach(self, session: Session) -> None:
        session_ends = not (session.durable and session.expiry_s)
        with_will = self.wills.connection_ended(session, session_ends=session_ends)
        if not session_ends:
            if not with_will:
                self._submit_detach(session)
            return
        if session.durable and not with_will:
            self.transactions.submit(WipeUnit(nobody_waits, session=session))
        if session.undecided:
            session.when_settled.append(partial(self._sessions.forget, session))
        else:
            self._sessions.forget(session)

    def _submit_detach(self, session: Session) -> None:
        at_ms = now_ms()
        self.transactions.submit(
            DetachUnit(
                nobody_waits,
                session=session,
                expiry_s=session.expiry_s,
                now_ms=at_ms,
                will=session.will,
                will_due_ms=self.wills.due_ms(session, at_ms),
            )
        )

    def expire_sessions(self) -> None:
        """Forget what has expired, and detach again what could not be written as detached."""
        self.wills.sweep()
        for session in self._sessions.expired(now_ms()):
            self.transactions.submit(WipeUnit(nobody_waits, session=session))
            session.when_settled.append(partial(self._sessions.forget, session))
        for session in self._sessions.never_detached():
            self._submit_detach(session)

    def _leave(self, client_id: str) -> None:
        session = self._sessions.get(client_id)
        if session is not None:
            self.wills.suspend(session)

    # -- open and shut

    def open(self) -> None:
        """Let clients in, who are refused before."""
        self._is_open = True
        self.wills.start()
        if self._handover is not None:
            self._handover.open()

    async def shut(self) -> None:
        """Drain, and then let nobody in until `open`: whoever comes is told that the server is unavailable."""
        self._is_open = False
        await self.drain(Reason.ADMINISTRATIVE_ACTION, "the proxy is paused or restarted")
        self.draining = False

    async def drain(self, reason: Reason = Reason.SERVER_SHUTTING_DOWN, detail: str = "the proxy stops") -> None:
        """Read no more, finish and acknowledge what is in flight, say goodbye for `reason`, publish the wills.

        Wills with a delay stay with their stored sessions.
        """
        self.draining = True
        self.wills.stop()
        if self._handover is not None:
            self._handover.close()
        await self.producer.drain()
        await self.transactions.drain()
        self._flush_all()
        for connection in list(self.connections):
            connection.fail(reason, detail)
        await self.wills.drain()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.producer.drain()
        await self.transactions.drain()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
