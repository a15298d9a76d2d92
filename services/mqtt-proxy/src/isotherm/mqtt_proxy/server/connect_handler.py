"""Decides about a CONNECT: whether the client is accepted, which session it gets, and what it is told."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, Protocol

from isotherm.mqtt_proxy.access.authentication import AccessControl, PublishPermissions, Refused
from isotherm.mqtt_proxy.access.connection_limits import ConnectionLimits
from isotherm.mqtt_proxy.codec.packets import V5, Connect
from isotherm.mqtt_proxy.codec.properties import Properties, Property
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.protocol.client_port import ClientPort
from isotherm.mqtt_proxy.protocol.connack import connack_properties
from isotherm.mqtt_proxy.server.connect_order import ConnectOrder
from isotherm.mqtt_proxy.server.wills import WillScheduler, now_ms
from isotherm.mqtt_proxy.sessions.migration import (
    OtherUsersSessionError,
    SessionMigration,
    SessionUnavailableError,
)
from isotherm.mqtt_proxy.sessions.senders import sender_of
from isotherm.mqtt_proxy.sessions.store import Session, SessionStore, TooManySessionsError
from isotherm.mqtt_proxy.sessions.writes import ClaimWrite, Outcome, SessionWriter, WipeWrite, ignore_outcome
from isotherm.mqtt_proxy.settings import LimitSettings
from isotherm.servicekit import logs
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)


class ConnectingClient(ClientPort, Protocol):
    """A connection whose CONNECT is being decided."""

    context: IngestContext
    address: str
    common_name: str | None
    session: Session | None
    ended: bool

    def authorize(self, permissions: PublishPermissions) -> None:
        """Set what the authenticated client may publish."""

    def attach(self, session: Session) -> None:
        """Use `session`, which this connection owns from now on."""

    def accept(self, *, session_present: bool, keep_alive_s: int, properties: Properties) -> None:
        """Answer the CONNECT with success."""

    def refuse(self, reason: Reason) -> None:
        """Answer the CONNECT with `reason` and end the connection. Safe after the end."""


class ConnectHandler:
    """Decides about the CONNECTs of a process. `max_expiry_s` bounds the session expiry, in seconds."""

    def __init__(
        self,
        *,
        limits: LimitSettings,
        access: AccessControl,
        connection_limits: ConnectionLimits,
        sessions: SessionStore,
        writer: SessionWriter,
        wills: WillScheduler,
        max_expiry_s: int,
        migration: SessionMigration | None = None,
        takes_subscriptions: bool = False,
    ) -> None:
        """`migration` is given when the process is one of several."""
        self._takes_subscriptions = takes_subscriptions
        self._limits = limits
        self._access = access
        self._connection_limits = connection_limits
        self._sessions = sessions
        self._writer = writer
        self._wills = wills
        self._max_expiry_s = max_expiry_s
        self._migration = migration
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._log_full = SparseLog(_log, "clients that would leave too many sessions behind were refused")
        self._waits: dict[ConnectingClient, asyncio.Future[None]] = {}
        """The clients that wait until their session is settled."""

    async def handle(self, client: ConnectingClient, connect: Connect) -> None:
        """Accept or refuse a client, and give it its session."""
        order = ConnectOrder(next(self._numbers), self._loop.time(), now_ms())
        if not await self._authenticate(client, connect):
            return
        # What waits for Kafka must not hold 16 KB for each attempt of a device.
        connect = connect._replace(password=None)
        session = await self._find_session(client, connect)
        if session is None:
            return
        expiry_s = self._expiry_s(connect)
        ends_session = connect.clean_start or not expiry_s
        if order.is_overtaken(session, self._loop.time(), now_ms(), ends_session=ends_session):
            self._sessions.forget(session)
            client.refuse(Reason.SERVER_UNAVAILABLE)
            return
        session.newest_connect = order.number
        self._take_over(session, client)
        await self._wait_until_settled(session, client)
        if session.owner is not client:
            self._sessions.forget(session)
            return
        present = session.is_present(now_ms()) and not connect.clean_start
        if not present:
            await self._wills.session_ends(session)
        if session.owner is not client:
            return
        if not await self._store_claim(session, connect, expiry_s, present=present):
            client.refuse(Reason.SERVER_UNAVAILABLE)
            return
        if session.owner is not client:
            return
        session.is_kept = present
        if not present:
            session.subscriptions, session.unacknowledged = (), {}
        client.accept(
            session_present=present,
            keep_alive_s=self._keep_alive_s(connect),
            properties=self._connack_properties(connect, client.context.client_id, expiry_s),
        )

    def connection_ended(self, client: ConnectingClient) -> None:
        """Do not let a client wait that is gone: without Kafka, each attempt of its device would wait for ever."""
        wait = self._waits.get(client)
        if wait is not None and not wait.done():
            wait.set_result(None)

    async def _wait_until_settled(self, session: Session, client: ConnectingClient) -> None:
        """Return when every write for the session is decided, or when the client has gone and owns it no more."""
        if not session.undecided:
            return
        wait = self._waits[client] = self._loop.create_future()

        def wake() -> None:
            if not wait.done():
                wait.set_result(None)

        session.when_settled.append(wake)
        try:
            await wait
        finally:
            del self._waits[client]
            if wake in session.when_settled:
                session.when_settled.remove(wake)

    async def _authenticate(self, client: ConnectingClient, connect: Connect) -> bool:
        """Identify and authorize the client, its will included; return False when it is refused or gone."""
        context, will = client.context, connect.will
        identity = await self._access.authenticate(
            client_id=context.client_id,
            address=client.address,
            username=connect.username,
            password=connect.password,
            common_name=client.common_name,
        )
        if isinstance(identity, Refused):
            client.refuse(identity.reason)
            return False
        if client.ended:
            return False
        permissions = PublishPermissions(context.client_id, identity.username)
        client.authorize(permissions)
        # A required certificate is verified, also where its name is not the user's.
        context.username = identity.username or client.common_name
        self._connection_limits.authenticated += identity.username is not None
        if will is None:
            return True
        acl = self._access.acl
        if acl is not None and not permissions.may_publish(acl, will.topic):
            self._access.count_denied(
                client_id=context.client_id, username=identity.username, topic=will.topic, qos=will.qos
            )
            client.refuse(Reason.NOT_AUTHORIZED)
            return False
        if refusal := self._wills.refusal(will):
            client.refuse(refusal)
            return False
        return True

    async def _find_session(self, client: ConnectingClient, connect: Connect) -> Session | None:
        """Return the session of the client; None when it is refused or gone."""
        client_id, user = client.context.client_id, client.context.username
        try:
            if self._migration is None or not connect.client_id:
                session = self._sessions.get_or_create(client_id)
            else:
                session = await self._migration.obtain(client_id, user, is_bound=self._access.identifies_clients)
        except OtherUsersSessionError:
            self._refuse_session(client)
            return None
        except TooManySessionsError:
            self._connection_limits.count_refused_session("session.maximum")
            client.refuse(Reason.QUOTA_EXCEEDED)
            return None
        except SessionUnavailableError:
            client.refuse(Reason.SERVER_UNAVAILABLE)
            return None
        if client.ended:
            self._sessions.forget(session)
            return None
        if self._access.identifies_clients and session.belongs_to_another(user, now_ms()):
            self._refuse_session(client)
            return None
        return session if self._may_leave(session, client, connect) else None

    def _may_leave(self, session: Session, client: ConnectingClient, connect: Connect) -> bool:
        """Return False when the client is refused because its sender has left too many sessions behind already.

        A session that was stored before is not refused, because its device holds promises.
        """
        user = client.context.username
        if (
            session.durable
            or not self._expiry_s(connect)
            or not self._sessions.is_full_of(sender_of(user, client.address))
        ):
            return True
        self._connection_limits.count_refused_session("session.maximum_per_sender")
        self._log_full(client_id=client.context.client_id, address=client.address, username=user)
        self._sessions.forget(session)
        client.refuse(Reason.QUOTA_EXCEEDED)
        return False

    def _refuse_session(self, client: ConnectingClient) -> None:
        """Refuse a client that names another user's session, whose connection and state stay as they are."""
        context = client.context
        self._access.count_refused_session(
            client_id=context.client_id, address=client.address, username=context.username
        )
        client.refuse(Reason.NOT_AUTHORIZED)

    def _take_over(self, session: Session, client: ConnectingClient) -> None:
        previous = session.owner
        self._sessions.take(session, client, sender_of(client.context.username, client.address))
        session.username = client.context.username
        client.attach(session)
        self._wills.suspend(session)
        if previous is not None:
            previous.close(Reason.SESSION_TAKEN_OVER, "the client connected again")

    async def _store_claim(self, session: Session, connect: Connect, expiry_s: int, *, present: bool) -> bool:
        """Claim, begin or delete the stored session; return False when Kafka did not store that."""
        if not session.durable:
            # The state of a connection that this one took over; it ended with that connection.
            session.stored = None
        if present or expiry_s:
            session.durable = True
            session.expiry_s = expiry_s
            claim = ClaimWrite(
                ignore_outcome,
                session=session,
                expiry_s=expiry_s,
                clean=not present,
                username=session.username,
                will=connect.will,
            )
            return await self._writer.decide(claim) is Outcome.COMMITTED
        if session.durable:
            if await self._writer.decide(WipeWrite(ignore_outcome, session=session)) is not Outcome.COMMITTED:
                return False
            session.durable = False
        return True

    def _expiry_s(self, connect: Connect) -> int:
        if connect.version == V5:
            asked_s: int = connect.properties.get(Property.SESSION_EXPIRY, 0)
            return min(asked_s, self._max_expiry_s)
        return 0 if connect.clean_start else self._max_expiry_s

    def _connack_properties(self, connect: Connect, client_id: str, expiry_s: int) -> dict[Property, Any]:
        if connect.version != V5:
            return {}
        asked_s = connect.properties.get(Property.SESSION_EXPIRY, 0)
        return connack_properties(
            connect,
            client_id=client_id,
            receive_maximum=self._limits.receive_maximum,
            max_packet_bytes=self._limits.packet_bytes,
            topic_alias_maximum=self._limits.topic_aliases,
            takes_subscriptions=self._takes_subscriptions,
            session_expiry=None if asked_s == expiry_s else expiry_s,
            server_keep_alive=self._server_keep_alive_s(connect),
        )

    def _keep_alive_s(self, connect: Connect) -> int:
        """Return the keep-alive of the connection in seconds; 0 for none.

        A 3.1.1 client cannot be told of the setting's bound, but the server may close an inactive client at any time
        (3.1.1 section 3.1.2.10).
        """
        max_s = self._limits.keep_alive_s
        return connect.keep_alive_s if max_s is None else min(connect.keep_alive_s or max_s, max_s)

    def _server_keep_alive_s(self, connect: Connect) -> int | None:
        """Return the keep-alive that an MQTT 5 client must use instead of its own (5.0 section 3.2.2.3.14)."""
        keep_alive_s = self._keep_alive_s(connect)
        return None if keep_alive_s == connect.keep_alive_s else keep_alive_s
