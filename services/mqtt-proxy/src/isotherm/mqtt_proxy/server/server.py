"""The MQTT server of a process: the registry of its connections, and its life cycle."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any, Protocol

from isotherm.mqtt_proxy.access.authentication import AccessControl, PublishPermissions
from isotherm.mqtt_proxy.access.connection_limits import ConnectionLimits
from isotherm.mqtt_proxy.codec.packets import Connect
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.commands.command_handler import NO_MAXIMUM, CommandHandler
from isotherm.mqtt_proxy.commands.dispatcher import CommandDispatcher
from isotherm.mqtt_proxy.commands.grants import Grantee
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.hotpath import compiled_ingest
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.protocol.topic_aliases import AliasMemory, TopicAliases
from isotherm.mqtt_proxy.server.connect_handler import ConnectHandler, ConnectingClient
from isotherm.mqtt_proxy.server.session_manager import SessionManager
from isotherm.mqtt_proxy.server.wills import WillScheduler
from isotherm.mqtt_proxy.sessions.migration import SessionMigration
from isotherm.mqtt_proxy.settings import LimitSettings, ListenerSettings

_MAX_CLIENT_ID_CHARS = 256

_READ_BYTES = 16_384
"""How many bytes a connection reads at once. The bytes behind a publish that has to wait stay with the kernel."""


class ServedConnection(ConnectingClient, Protocol):
    """A connection as the server sees it."""

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has a verified user name."""

    @property
    def was_accepted(self) -> bool:
        """Whether the CONNECT was answered with success."""

    def close(self, reason: Reason, detail: str, server_reference: str = "") -> None:
        """End the connection for `reason`, with the server that an MQTT 5 client is to use instead."""

    @property
    def can_write(self) -> bool:
        """Whether the client reads what is sent to it."""

    def pump(self) -> None:
        """Handle what was received and held."""

    def send_outgoing(self) -> None:
        """Send the packets that wait to be sent."""

    def check_peer(self) -> None:
        """End the connection when TCP found its peer to be gone."""


class Server:
    """The open connections of a process and everything that they share. Only the event loop uses it."""

    def __init__(
        self,
        *,
        limits: LimitSettings,
        listener: ListenerSettings,
        pipeline: IngestPipeline,
        access: AccessControl,
        connection_limits: ConnectionLimits,
        wills: WillScheduler,
        sessions: SessionManager,
        connect_handler: ConnectHandler,
        migration: SessionMigration | None = None,
        commands: CommandDispatcher | None = None,
    ) -> None:
        """Without `migration` the server is a single process. Without `commands` it sends none to devices."""
        self.commands = commands
        self.limits = limits
        self.listener = listener
        self.pipeline = pipeline
        self.plain_ingest = plain = compiled_ingest(pipeline, limits.topic_cache_bytes)
        self.access = access
        self.connection_limits = connection_limits
        self.wills = wills
        self.sessions = sessions
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.buffered_bytes = 0
        """Bytes that all connections buffer: incomplete packets, unanswered CONNECTs, held publishes."""
        self._alias_memory = AliasMemory(limits.topic_alias_bytes)
        self.is_draining = False
        self._is_open = False
        self._connect_handler = connect_handler
        self._migration = migration
        self._connections: dict[ServedConnection, None] = {}
        self._loop = asyncio.get_running_loop()
        self._to_flush: dict[ServedConnection, None] = {}
        self._to_pump: dict[ServedConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        gate = pipeline.gate
        pipeline.metrics.gauges |= {
            "connections": lambda: len(self._connections),
            "connections_authenticated": lambda: connection_limits.authenticated,
            "sessions": lambda: len(sessions),
            "outstanding_records": lambda: gate.records,
            "outstanding_bytes": lambda: gate.bytes,
            "connections_waiting": lambda: gate.parked,
            "buffered_bytes": lambda: self.buffered_bytes,
            "topic_alias_bytes": lambda: self._alias_memory.bytes,
            "wills_bytes": lambda: wills.bytes,
            "topic_cache_bytes": lambda: plain.topic_cache_bytes if plain is not None else 0,
        }

    # -- connections

    def register(self, connection: ServedConnection, *, is_counted: bool) -> bool:
        """Register a new connection and return True, unless a limit is reached.

        `is_counted` means that the connection limits counted its socket before.
        """
        if self.is_draining or not (is_counted or self.connection_limits.enter(connection.address)):
            return False
        self._connections[connection] = None
        return True

    def connect(self, connection: ServedConnection, connect: Connect) -> None:
        """Decide about a CONNECT, perhaps later. The handler calls `accept` or `refuse` of the connection."""
        if self.is_draining:
            connection.refuse(Reason.SERVER_SHUTTING_DOWN)
        elif not self._is_open:
            connection.refuse(Reason.SERVER_UNAVAILABLE)
        elif len(connect.client_id) > _MAX_CLIENT_ID_CHARS:
            connection.refuse(Reason.CLIENT_IDENTIFIER_NOT_VALID)
        else:
            connection.context.client_id = connect.client_id or f"auto-{secrets.token_hex(8)}"
            self._spawn(self._connect_handler.handle(connection, connect))

    def connection_ended(self, connection: ServedConnection, *, with_will: bool) -> None:
        """Remove a connection, detach its session, and publish its will or remove it."""
        if connection in self._connections:
            del self._connections[connection]
            self.connection_limits.leave(connection.address, authenticated=connection.is_authenticated)
        self.pipeline.gate.forget(connection)
        self._connect_handler.connection_ended(connection)
        session = connection.session
        if session is not None:
            self.sessions.connection_ended(
                session, connection, was_accepted=connection.was_accepted, with_will=with_will
            )

    def close_dead_connections(self) -> None:
        """End the connections that are not read now and whose peer is gone."""
        for connection in list(self._connections):
            connection.check_peer()

    def topic_aliases(self) -> TopicAliases:
        """Return the topic aliases of a new connection."""
        return TopicAliases(self.limits.topic_aliases, self._alias_memory)

    def commands_of(
        self,
        connection: ServedConnection,
        protocol: ServerProtocol,
        connect: Connect,
        permissions: PublishPermissions | None,
    ) -> CommandHandler | None:
        """Return what serves the commands of an accepted connection; None where none are sent to devices."""
        session = connection.session
        if self.commands is None or session is None:
            return None
        grantee = Grantee.of(connection.context, permissions)
        receive_maximum = connect.properties.get(Property.RECEIVE_MAXIMUM, NO_MAXIMUM)
        return CommandHandler(self.commands, connection, protocol, session, grantee, receive_maximum)

    # -- work of this turn of the event loop

    def pump_soon(self, connection: ServedConnection) -> None:
        """Let `connection` handle what it received and holds, once for this turn of the loop."""
        if not self._to_pump:
            self._loop.call_soon(self._pump_all)
        self._to_pump[connection] = None

    def _pump_all(self) -> None:
        connections, self._to_pump = self._to_pump, {}
        for connection in connections:
            connection.pump()

    def flush_soon(self, connection: ServedConnection) -> None:
        """Let `connection` send its packets, once for this turn of the loop."""
        if not self._to_flush:
            self._loop.call_soon(self._flush_all)
        self._to_flush[connection] = None

    def _flush_all(self) -> None:
        connections, self._to_flush = self._to_flush, {}
        for connection in connections:
            if not connection.ended:
                connection.send_outgoing()

    # -- life cycle

    def open(self) -> None:
        """Accept clients. Before this every CONNECT is refused."""
        self._is_open = True
        self.wills.start()
        if self._migration is not None:
            self._migration.open()

    async def shut(self) -> None:
        """Drain, and refuse every CONNECT as unavailable until `open`."""
        self._is_open = False
        await self.drain(Reason.ADMINISTRATIVE_ACTION, "the proxy is paused or restarted")
        self.is_draining = False

    async def drain(self, reason: Reason = Reason.SERVER_SHUTTING_DOWN, detail: str = "the proxy stops") -> None:
        """Read no more, store and acknowledge what is in flight, close all connections for `reason`, publish the wills.

        Wills with a delay stay with their stored sessions.
        """
        self.is_draining = True
        self.wills.stop()
        if self._migration is not None:
            self._migration.close()
        await self._drain_producers()
        self._flush_all()
        for connection in list(self._connections):
            connection.close(reason, detail)
        await self.wills.drain()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._drain_producers()

    async def send_away(self, seconds: float, server_reference: str) -> None:
        """Accept nobody any more, and disconnect the clients one after the other over `seconds`.

        Each of them connects to another pod, which claims its session here. MQTT 5 clients are told `server_reference`,
        unless it is empty (5.0 section 4.11).
        """
        self._is_open = False
        reason = Reason.USE_ANOTHER_SERVER if server_reference else Reason.SERVER_SHUTTING_DOWN
        connections = list(self._connections)
        started_s = self._loop.time()
        for number, connection in enumerate(connections):
            await asyncio.sleep(max(0.0, started_s + seconds * number / len(connections) - self._loop.time()))
            if connection in self._connections:
                connection.close(reason, "the pod stops", server_reference)

    async def _drain_producers(self) -> None:
        await self.pipeline.producer.drain()
        await self.pipeline.transactions.drain()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
