"""A CONNECT: whether the client is let in, which session it has, and what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isotherm.mqtt_proxy.codec.packets import V5, Connect
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.transaction_batcher import (
    ClaimUnit,
    Outcome,
    WipeUnit,
    nobody_waits,
)
from isotherm.mqtt_proxy.protocol.state_machine import connack_properties
from isotherm.mqtt_proxy.server.wills import now_ms
from isotherm.mqtt_proxy.sessions.migration import (
    Handover,
    NotHandedOverError,
    NotItsSessionError,
    settled,
)
from isotherm.mqtt_proxy.sessions.store import Session, SessionStore, TooManySessionsError

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.server.connection import Connection
    from isotherm.mqtt_proxy.server.server import FrontDoor


class Accepting:
    """Decides about the CONNECTs of a process; `handover` is there when it is one of several."""

    def __init__(
        self, door: FrontDoor, *, sessions: SessionStore, handover: Handover | None, session_expiry_s: int
    ) -> None:
        self._door = door
        self._sessions = sessions
        self._handover = handover
        self._session_expiry_s = session_expiry_s

    async def decide(self, connection: Connection, connect: Connect) -> None:
        """Let the client in, or not; it is told."""
        if not await self._door.access.lets_in(connection, connect):
            return
        client_id, user = connection.arrival.client_id, connection.arrival.username
        if connect.will is not None and (refusal := self._door.wills.refusal(connect.will)):
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
        if self._door.access.identifies and session.belongs_to_another(user, now_ms()):
            self._refuse_session(connection)
            return
        self._take_over(session, connection)
        await settled(session)
        if session.owner is not connection:
            self._sessions.forget(session)
            return
        present = session.is_present(now_ms()) and not connect.clean_start
        if not present:
            await self._door.wills.session_ends(session)
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
        self._door.access.refused_session(connection)
        connection.refuse(Reason.NOT_AUTHORIZED)

    def _take_over(self, session: Session, connection: Connection) -> None:
        previous = session.owner
        session.owner = connection
        session.username = connection.arrival.username
        connection.session = session
        self._door.wills.suspend(session)
        if previous is not None:
            previous.fail(Reason.SESSION_TAKEN_OVER, "the client connected again")

    async def _session_of(self, client_id: str, user: str | None, *, is_named: bool) -> Session:
        if self._handover is None or not is_named:
            return self._sessions.get_or_create(client_id)
        return await self._handover.session_of(client_id, user, is_bound=self._door.access.identifies)

    async def _prepare(self, session: Session, connect: Connect, expiry_s: int, *, present: bool) -> bool:
        """Claim, begin or wipe the stored session; False when Kafka did not take it."""
        if not session.durable:
            # Left by a connection that this one took over: it ended with that.
            session.stored = None
        if present or expiry_s:
            session.durable = True
            session.expiry_s = expiry_s
            claim = ClaimUnit(
                nobody_waits,
                session=session,
                expiry_s=expiry_s,
                clean=not present,
                username=session.username,
                will=connect.will,
            )
            return await self._door.transactions.decide(claim) is Outcome.COMMITTED
        if session.durable:
            if await self._door.transactions.decide(WipeUnit(nobody_waits, session=session)) is not Outcome.COMMITTED:
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
            receive_maximum=self._door.limits.receive_maximum,
            max_packet_bytes=self._door.limits.packet_bytes,
            topic_alias_maximum=self._door.limits.topic_aliases,
            session_expiry=None if asked_s == expiry_s else expiry_s,
            server_keep_alive=self._server_keep_alive_s(connect),
        )

    def _keep_alive_s(self, connect: Connect) -> int:
        """After 1.5 times this a silent client is closed; 0 for never. A 3.1.1 client cannot be told a bound, but may
        be closed at any time as inactive (3.1.1 section 3.1.2.10).
        """
        most_s = self._door.limits.keep_alive_s
        return connect.keep_alive_s if most_s is None else min(connect.keep_alive_s or most_s, most_s)

    def _server_keep_alive_s(self, connect: Connect) -> int | None:
        """The keep-alive that an MQTT 5 client is told to use instead of its own (section 3.2.2.3.14)."""
        keep_alive_s = self._keep_alive_s(connect)
        return None if keep_alive_s == connect.keep_alive_s else keep_alive_s
