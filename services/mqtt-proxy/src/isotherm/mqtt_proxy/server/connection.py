"""One client's socket: bytes to the protocol, its events to their handlers, packets back to the client."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from isotherm.mqtt_proxy.access.authentication import PublishPermissions
from isotherm.mqtt_proxy.access.buffer_charge import BufferCharge
from isotherm.mqtt_proxy.access.tls import common_name
from isotherm.mqtt_proxy.codec.packets import Connect, Publish, Subscribe, Unsubscribe
from isotherm.mqtt_proxy.codec.properties import Properties
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.commands.command_handler import CommandHandler
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.protocol.events import Acknowledgement, ConnectionState, Disconnect, Event, Failure, Release
from isotherm.mqtt_proxy.protocol.held_events import HeldEvents, connect_bytes
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.server.keep_alive import KeepAlive
from isotherm.mqtt_proxy.server.publish_handler import PublishHandler
from isotherm.mqtt_proxy.server.publish_rates import PublishRates
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.server.tcp import is_dead, peer_address, probe_when_silent
from isotherm.mqtt_proxy.sessions.store import Session
from isotherm.servicekit import logs

_log = logs.logger(__name__)


class Connection(asyncio.BufferedProtocol):
    """A client's connection. Everything happens on the event loop.

    `address` is the client's if the connection limits counted the socket before, else None: the peer's is used.
    """

    def __init__(self, server: Server, *, address: str | None = None) -> None:
        self._server = server
        self._is_counted = address is not None
        self._limits = server.limits
        self._pipeline = server.pipeline
        self._metrics = server.pipeline.metrics
        self._loop = asyncio.get_running_loop()
        self.context = IngestContext("")
        self.session: Session | None = None
        self.ended = False
        self.address = address or ""
        self.common_name: str | None = None
        self._connect: Connect | None = None
        self._protocol = ServerProtocol(
            max_packet_bytes=self._limits.packet_bytes,
            max_connect_bytes=self._limits.connect_bytes,
            topic_aliases=server.topic_aliases(),
            allow_control_characters=server.listener.allow_control_characters,
            takes_subscriptions=server.commands is not None,
        )
        self._commands: CommandHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._keep_alive = KeepAlive(self._loop, self._is_reading, self._on_silence)
        meters = server.connection_limits.meters()
        self._rates = PublishRates(server.connection_limits, meters, self._loop, self.pump) if meters else None
        self._paused = False
        self._writing_paused = False
        self._at_eof = False
        self._held = HeldEvents()
        self._connect_bytes = 0
        self._charged = BufferCharge(server, self._limits)
        self._publishes = PublishHandler(
            self._pipeline,
            self._protocol,
            self,
            context=self.context,
            access=server.access,
            rates=self._rates,
            receive_maximum=self._limits.receive_maximum,
            on_sent=self._on_acks_sent,
            plain_ingest=server.plain_ingest,
        )
        self._publish, self._pubacks = self._publishes.publish, self._publishes.pubacks

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has a verified user name."""
        return self._publishes.is_authenticated

    @property
    def was_accepted(self) -> bool:
        """Whether the CONNECT was answered with success."""
        return self._protocol.was_accepted

    @property
    def was_made(self) -> bool:
        """Whether the socket was opened, after its TLS handshake if there is one."""
        return self._transport is not None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the open socket, or abort it when a limit is reached."""
        server = self._server
        self._transport = cast(asyncio.Transport, transport)
        self.address = self.address if self._is_counted else peer_address(transport)
        self.common_name = common_name(transport.get_extra_info("peercert"))
        if (cipher := transport.get_extra_info("cipher")) is not None:
            self._metrics.tls_handshakes[cipher[1], cipher[0]] += 1
        if self.ended or not server.register(self, is_counted=self._is_counted):
            if self._is_counted:
                server.connection_limits.leave(self.address, authenticated=False)
            self.ended = True
            self._transport.abort()
            return
        probe_when_silent(transport, server.listener.tcp_keep_alive_s)
        self._keep_alive.await_connect(self._limits.connect_timeout_ms / 1000, self._on_connect_timeout)
        self.pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes, which all connections share and each one empties at once."""
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle `nbytes` bytes in the shared buffer."""
        self.data_received(bytes(self._server.read_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if not self.ended:
            self._protocol.feed(data)
            self.pump()

    def eof_received(self) -> bool:
        """Keep the socket open while bytes or events wait to be handled, among which a DISCONNECT may be."""
        self._at_eof = (self._paused or bool(self._held)) and not self.ended
        return self._at_eof

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its acknowledgements."""
        self._writing_paused = True
        self._pause()

    def resume_writing(self) -> None:
        """Read again, because the client reads its acknowledgements."""
        self._writing_paused = False
        self.pump()
        if self._commands is not None:
            self._commands.advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, whoever closed its socket."""
        if self._transport is None:
            self.ended = True  # Its TLS handshake has failed.
        elif not self.ended:
            self._end("connection lost", with_will=True)

    # -- reading

    def pump(self) -> None:
        """Handle the received bytes until all are used or as many events are held as allowed.

        A publish that has to wait is held, and behind it what must not overtake it. A PINGREQ is answered meanwhile.
        """
        if self.ended or self._transport is None:
            return
        if self._writing_paused or self._server.is_draining:
            self._pause()
            return
        protocol, plain, held, waiting = self._protocol, self._publishes.plain, self._held, self._held.events
        before = protocol.packets_received
        self.context.ingest_ms = int(time.time() * 1000)
        while True:
            if waiting and not self._handle_held() and self._charged.is_full(self._held):
                self._pause()
                break
            if plain is not None and not waiting:
                if not plain.take():
                    plain = None  # Where one publish is not plain, the next ones probably are not either.
                elif plain.has_taken_all and not self._paused:
                    break
            event = protocol.next_event()
            if event is None:
                if self._has_ended():
                    return
                if self._paused and protocol.state is not ConnectionState.CONNECTING:
                    self._resume_reading()
                break
            if type(event) is Publish:
                if waiting or self._must_wait():
                    held.add(event)
                else:
                    self._publish(event)
            elif type(event) is Acknowledgement and self._commands is not None:
                self._commands.acknowledge(event)
            elif (waiting and type(event) is not Failure) or self._must_hold(event):
                held.add(event)
            else:
                self._handle(event)
        if protocol.packets_received != before:
            self._keep_alive.last_packet_s = self._loop.time()
        self.send_outgoing()
        if self._charged.charged or waiting or protocol.buffered:
            self._charge()
        if self._at_eof and not held and not self._has_ended():
            self._shut("connection lost", with_will=True)

    def _has_ended(self) -> bool:
        return self.ended

    def _handle(self, event: Event) -> None:
        kind = type(event)
        if kind is Publish:
            self._publish(cast(Publish, event))
        elif kind is Release:
            self._publishes.release(cast(Release, event).packet_id)
        elif kind is Connect:
            self._pause()
            self._handle_connect(cast(Connect, event))
        elif kind is Disconnect:
            self._handle_disconnect(cast(Disconnect, event))
        elif self._commands is not None and isinstance(event, Subscribe | Unsubscribe):
            self._commands.decide(event)
        else:
            failure = cast(Failure, event)
            if self._connect is None:
                self._metrics.connection_attempts[failure.reason.words] += 1
            self.close(failure.reason, failure.detail)

    # -- waiting

    def _must_wait(self) -> bool:
        """Return whether the next publish cannot be handled now."""
        if self._rates is not None and self._rates.must_wait():
            return True
        gate = self._pipeline.gate
        if gate.is_congested:
            gate.park(self)
            return True
        return len(self._pubacks) > self._limits.receive_maximum

    def _handle_held(self) -> bool:
        """Handle held events; return False when some still have to wait."""
        held = self._held
        while held:
            first = held.first()
            if self._must_wait() if type(first) is Publish else self._must_hold(first):
                return False
            self._handle(held.take())
            if self.ended:
                return True
        return True

    def _must_hold(self, event: Event) -> bool:
        return self._commands is not None and self._commands.must_wait(event)

    def _charge(self) -> None:
        """Count the buffered bytes. Beyond the bound on all connections, end a connection that would buffer more."""
        if not self._charged.update(self._protocol.buffered + self._held.bytes + self._connect_bytes):
            return
        if not self.was_accepted:
            self._metrics.connection_attempts["too many bytes buffered"] += 1
        if not (self.was_accepted and self._paused):
            self.close(Reason.QUOTA_EXCEEDED, "all connections together buffer too much")

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            if not self._at_eof:
                self._transport.pause_reading()

    def _resume_reading(self) -> None:
        assert self._transport is not None
        self._paused = False
        self._keep_alive.last_packet_s = self._loop.time()
        if not self._at_eof and not self._transport.is_closing():
            self._transport.resume_reading()

    def send_outgoing(self) -> None:
        """Send the packets that wait to be sent."""
        if self._transport is not None and (packets := self._protocol.take_outgoing()):
            self._transport.write(packets)

    # -- ClientPort

    def resume(self) -> None:
        """Handle held publishes within this turn of the event loop."""
        self._server.pump_soon(self)

    def flush(self) -> None:
        """Send the packets that wait to be sent, once for this turn of the event loop."""
        self._server.flush_soon(self)

    def close(self, reason: Reason, detail: str, server_reference: str = "") -> None:
        """End the connection for `reason`, which an MQTT 5 client is told, and with it the server to use instead."""
        if not self.ended:
            _log.info("connection ended", client_id=self.context.client_id, reason=reason.words, detail=detail)
            self._protocol.disconnect(reason, server_reference)
            self._shut(reason.words, with_will=True)

    def _on_acks_sent(self) -> None:
        self._server.flush_soon(self)
        if self._paused or self._held.events:
            self._server.pump_soon(self)

    # -- commands

    @property
    def can_write(self) -> bool:
        """Whether the client reads what is sent to it."""
        return not self._writing_paused and not self.ended

    # -- CONNECT

    def _handle_connect(self, connect: Connect) -> None:
        self._connect = connect
        self._connect_bytes = connect_bytes(connect)
        self._charge()
        if not self.ended:
            self._server.connect(self, connect)

    def authorize(self, permissions: PublishPermissions) -> None:
        """Set what the authenticated client may publish."""
        self._publishes.permissions = permissions

    def attach(self, session: Session) -> None:
        """Use `session`, which this connection owns from now on."""
        self.session = session
        self._publishes.attach(session)

    def accept(self, *, session_present: bool, keep_alive_s: int, properties: Properties) -> None:
        """Answer the CONNECT with success. The connection ends after 1.5 times `keep_alive_s` of silence; 0: never."""
        if not self._protocol.accept(session_present=session_present, properties=properties):
            self.refuse(Reason.PACKET_TOO_LARGE)
            return
        self._metrics.connection_attempts["accepted"] += 1
        if self._connect is not None and self.session is not None:
            connect, permissions = self._connect, self._publishes.permissions
            self._commands = self._server.commands_of(self, self._protocol, connect, permissions)
            self._server.wills.set(self.session, self._connect.will)
            # The connection keeps neither the password nor the will, which belongs to the session now.
            self._connect = self._connect._replace(password=None, will=None)
        self._connect_bytes = 0
        self._keep_alive.start(keep_alive_s)
        self.send_outgoing()
        self.pump()

    def refuse(self, reason: Reason) -> None:
        """Answer the CONNECT with `reason` and end the connection, without publishing a will."""
        if not self.ended:
            self._metrics.connection_attempts[reason.words] += 1
            self._protocol.refuse(reason)
            self._shut(reason.words, with_will=False)

    def _on_connect_timeout(self) -> None:
        if self._connect is None:
            self._metrics.connection_attempts["connect timeout"] += 1
            self.close(Reason.KEEP_ALIVE_TIMEOUT, "no CONNECT came")

    # -- the end

    def _handle_disconnect(self, event: Disconnect) -> None:
        if event.session_expiry_s is not None and self.session is not None:
            self._server.sessions.change_expiry(self.session, event.session_expiry_s)
        self._shut("disconnect", with_will=event.with_will)

    def _shut(self, reason: str, *, with_will: bool) -> None:
        """Send what is left, close the socket and end the connection."""
        self.send_outgoing()
        if self._transport is not None:
            self._transport.close()
        self._end(reason, with_will=with_will)

    def _end(self, reason: str, *, with_will: bool) -> None:
        self.ended = True
        self._protocol.close()
        self._publishes.close()
        if self._commands is not None:
            self._commands.close()
        with_will = with_will and not self._held.ends_with_disconnect
        self._held.clear()
        self._charged.update(0)
        self._connect = None
        self._keep_alive.cancel()
        if self._rates is not None:
            self._rates.cancel()
        if self.was_accepted:
            self._metrics.connections_closed[reason] += 1
        self._server.connection_ended(self, with_will=with_will and self.was_accepted)

    def _is_reading(self) -> bool:
        return not (self._paused or self._at_eof)

    def _on_silence(self, silent_s: float) -> None:
        self.close(Reason.KEEP_ALIVE_TIMEOUT, f"nothing came for {silent_s:.0f} s")

    def check_peer(self) -> None:
        """End the connection when it is not read and TCP found its peer to be gone, which nothing else would notice."""
        if self._paused and not self.ended and self._transport is not None and is_dead(self._transport):
            self._shut("connection lost", with_will=True)
