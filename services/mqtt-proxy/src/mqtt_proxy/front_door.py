"""What all connections share: sessions, bounds, the producers, and who may come in."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from mqtt_proxy.access import Access
from mqtt_proxy.admission import Admission
from mqtt_proxy.grouping import ClaimUnit, DetachUnit, Outcome, WipeUnit
from mqtt_proxy.handover import Handover, NotHandedOverError, NotItsSessionError, settled
from mqtt_proxy.metrics import Metrics
from mqtt_proxy.packets import V5, Connect
from mqtt_proxy.properties import Property
from mqtt_proxy.protocol import connack_properties
from mqtt_proxy.reasons import Reason
from mqtt_proxy.sessions import Session, SessionStore, TooManySessionsError
from mqtt_proxy.settings import LimitSettings
from mqtt_proxy.sparse_log import SparseLog
from mqtt_proxy.transactions import Transactions
from mqtt_proxy.translate import Translated, Translator, reason_of
from mqtt_proxy.wills import Wills, now_ms
from servicekit import logs
from servicekit.delivery import LoopProducer

if TYPE_CHECKING:
    from mqtt_proxy.connection import Connection

_log = logs.logger(__name__)

_MAX_CLIENT_ID_CHARS = 256


_READ_BYTES = 16_384
"""How much is read of a connection at a time: what is behind a publish that has to wait stays with the kernel."""


def _undecided(_outcome: Outcome) -> None:
    """For units whose outcome nobody waits for."""


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
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Connection, None] = {}
        self._to_flush: dict[Connection, None] = {}
        self._to_pump: dict[Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._not_stored = SparseLog("publishes were not stored")
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
            self._spawn(self._handshake(connection, connect))

    async def _handshake(self, connection: Connection, connect: Connect) -> None:
        if not await self.access.lets_in(connection, connect):
            return
        client_id, user = connection.arrival.client_id, connection.arrival.username
        if connect.will is not None and (refusal := self.wills.refusal(connect.will)):
            connection.refuse(refusal)
            return
        try:
            session = await self._session_of(client_id, user, is_named=bool(connect.client_id))
        except NotItsSessionError:
            self._refuse_session(connection)
            return
        except TooManySessionsError:
            connection.refuse(Reason.QUOTA_EXCEEDED)
            return
        except NotHandedOverError:
            connection.refuse(Reason.SERVER_UNAVAILABLE)
            return
        if connection.ended:
            self._sessions.forget(session)
            return
        if self.access.identifies and session.belongs_to_another(user, now_ms()):
            self._refuse_session(connection)
            return
        self._take_over(session, connection)
        await settled(session)
        if session.owner is not connection:
            self._sessions.forget(session)
            return
        present = session.is_present(now_ms()) and not connect.clean_start
        if not present:
            await self.wills.session_ends(session)
        expiry_s = self._expiry_s(connect)
        if session.owner is not connection:
            return
        if not await self._prepare(session, connect, expiry_s, present=present):
            connection.refuse(Reason.SERVER_UNAVAILABLE)
            return
        if session.owner is not connection:
            return
        connection.accept(
            session_present=present,
            keep_alive_s=self._keep_alive_s(connect),
            properties=self._connack_properties(connect, client_id, expiry_s),
        )

    def _refuse_session(self, connection: Connection) -> None:
        """The session is another user's, whose connection and state stay as they are."""
        self.access.refused_session(connection)
        connection.refuse(Reason.NOT_AUTHORIZED)

    def _take_over(self, session: Session, connection: Connection) -> None:
        previous = session.owner
        session.owner = connection
        session.username = connection.arrival.username
        connection.session = session
        self.wills.suspend(session)
        if previous is not None:
            previous.fail(Reason.SESSION_TAKEN_OVER, "the client connected again")

    async def _session_of(self, client_id: str, user: str | None, *, is_named: bool) -> Session:
        if self._handover is None or not is_named:
            return self._sessions.get_or_create(client_id)
        return await self._handover.session_of(client_id, user, is_bound=self.access.identifies)

    async def _prepare(self, session: Session, connect: Connect, expiry_s: int, *, present: bool) -> bool:
        """Claim, begin or wipe the stored session; False when Kafka did not take it."""
        if not session.durable:
            # Left by a connection that this one took over: it ended with that.
            session.stored = None
        if present or expiry_s:
            session.durable = True
            session.expiry_s = expiry_s
            claim = ClaimUnit(
                _undecided,
                session=session,
                expiry_s=expiry_s,
                clean=not present,
                username=session.username,
                will=connect.will,
            )
            return await self.transactions.decide(claim) is Outcome.COMMITTED
        if session.durable:
            if await self.transactions.decide(WipeUnit(_undecided, session=session)) is not Outcome.COMMITTED:
                return False
            session.durable = False
        return True

    def _expiry_s(self, connect: Connect) -> int:
        if connect.version == V5:
            asked_s: int = connect.properties.get(Property.SESSION_EXPIRY, 0)
            return min(asked_s, self._session_expiry_s)
        return 0 if connect.clean_start else self._session_expiry_s

    def _connack_properties(self, connect: Connect, client_id: str, expiry_s: int) -> dict[Property, Any]:
        if connect.version != V5:
            return {}
        asked_s = connect.properties.get(Property.SESSION_EXPIRY, 0)
        return connack_properties(
            connect,
            client_id=client_id,
            receive_maximum=self.limits.receive_maximum,
            max_packet_bytes=self.limits.packet_bytes,
            topic_alias_maximum=self.limits.topic_aliases,
            session_expiry=None if asked_s == expiry_s else expiry_s,
            server_keep_alive=self._server_keep_alive_s(connect),
        )

    def _keep_alive_s(self, connect: Connect) -> int:
        """After 1.5 times this a silent client is closed; 0 for never. A 3.1.1 client cannot be told a bound, but may
        be closed at any time as inactive (3.1.1 section 3.1.2.10).
        """
        most_s = self.limits.keep_alive_s
        return connect.keep_alive_s if most_s is None else min(connect.keep_alive_s or most_s, most_s)

    def _server_keep_alive_s(self, connect: Connect) -> int | None:
        """The keep-alive that an MQTT 5 client is told to use instead of its own (section 3.2.2.3.14)."""
        keep_alive_s = self._keep_alive_s(connect)
        return None if keep_alive_s == connect.keep_alive_s else keep_alive_s

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
            self.transactions.submit(WipeUnit(_undecided, session=session))
        if session.undecided:
            session.when_settled.append(partial(self._sessions.forget, session))
        else:
            self._sessions.forget(session)

    def _submit_detach(self, session: Session) -> None:
        at_ms = now_ms()
        self.transactions.submit(
            DetachUnit(
                _undecided,
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
            self.transactions.submit(WipeUnit(_undecided, session=session))
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
