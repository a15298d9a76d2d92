"""One device's socket: bytes to the protocol, its events to the front door, answers back in their order."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from isotherm.mqtt_proxy.access.authentication import Rights
from isotherm.mqtt_proxy.codec.packets import (
    V5,
    Connect,
    PacketType,
    Publish,
)
from isotherm.mqtt_proxy.codec.properties import Properties
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.qos1 import Delivery
from isotherm.mqtt_proxy.delivery.qos2 import ExactlyOnce
from isotherm.mqtt_proxy.ingest.translation import Arrival
from isotherm.mqtt_proxy.protocol.ack_queue import Answers
from isotherm.mqtt_proxy.protocol.held_events import HeldEvents, connect_bytes
from isotherm.mqtt_proxy.protocol.state_machine import (
    Disconnect,
    Event,
    Failure,
    Release,
    ServerProtocol,
    State,
)
from isotherm.mqtt_proxy.server.server import FrontDoor
from isotherm.mqtt_proxy.server.tcp import is_dead, probe_when_silent
from isotherm.mqtt_proxy.sessions.store import Session
from isotherm.servicekit import logs

_log = logs.logger(__name__)


_SHORTEST_RATE_PAUSE_S = 0.02
"""Thousands that wait for the same rate must not wake up all the time."""


def _common_name(certificate: Any) -> str | None:
    """The subject's CN of a certificate as `ssl.SSLSocket.getpeercert` gives it."""
    subject = (certificate or {}).get("subject", ())
    return next((value for part in subject for name, value in part if name == "commonName"), None)


_FREE_BYTES = 2_048
"""What every connection may buffer, also when the bound on all of them is reached, so that small packets pass."""


class Connection(asyncio.BufferedProtocol):
    """A device's connection. Everything happens on the event loop.

    `is_admitted`: its place among the connections was taken before, when its TLS handshake began.
    """

    def __init__(self, door: FrontDoor, *, is_admitted: bool = False) -> None:
        self.door = door
        self._is_admitted = is_admitted
        self.loop = asyncio.get_running_loop()
        self.arrival = Arrival("")
        self.session: Session | None = None
        self.ended = False
        self.connect: Connect | None = None
        self.address = ""
        self.common_name: str | None = None
        self.rights: Rights | None = None
        self.protocol = ServerProtocol(
            max_packet_bytes=door.limits.packet_bytes,
            max_connect_bytes=door.limits.connect_bytes,
            topic_alias_maximum=door.limits.topic_aliases,
            allow_control_characters=door.allow_control_characters,
        )
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._meters = door.admission.meters()
        self._rate_timer: asyncio.TimerHandle | None = None
        self._keep_alive_s = 0
        self._last_packet_s = self.loop.time()
        self._paused = False
        self._writing_paused = False
        self._at_eof = False
        self._held = HeldEvents()
        self._connect_bytes = 0
        self._charged = 0
        self.pubacks = Answers(self, PacketType.PUBACK)
        self._exactly_once = ExactlyOnce(self)

    @property
    def is_authenticated(self) -> bool:
        """Whether its user name was verified."""
        return self.rights is not None and self.rights.username is not None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        self.common_name = _common_name(transport.get_extra_info("peercert"))
        if (cipher := transport.get_extra_info("cipher")) is not None:
            self.door.metrics.tls_handshakes[cipher[1], cipher[0]] += 1
        if self.ended or not self.door.admit(self, is_counted=self._is_admitted):
            if self._is_admitted:
                self.door.admission.leave(self.address, authenticated=False)
            self.ended = True
            self._transport.abort()
            return
        probe_when_silent(transport, self.door.tcp_keep_alive_s)
        self._timer = self.loop.call_later(self.door.limits.connect_timeout_ms / 1000, self._no_connect)
        self.pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are to be put: a place that all connections share, emptied at once."""
        return self.door.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes were put there."""
        self.data_received(bytes(self.door.read_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self.ended:
            self.protocol.feed(data)
            self.pump()

    def eof_received(self) -> bool:
        """The device says no more; what waits is still handled, a goodbye behind it included."""
        self._at_eof = bool(self._held) and not self.ended
        return self._at_eof

    def pause_writing(self) -> None:
        """The device does not read its answers: do not read its publishes either."""
        self._writing_paused = True
        self._pause()

    def resume_writing(self) -> None:
        """The device reads again."""
        self._writing_paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by whomever."""
        if self._transport is None:
            # In the moment between its TLS handshake and `connection_made`, which ends it.
            self.ended = True
        elif not self.ended:
            self._end("connection lost", with_will=True)

    # -- reading

    def pump(self) -> None:
        """Handle what was received, until it is used up or as much is held as may be.

        A publish that has to wait is held, and what follows is parsed on: a ping is answered meanwhile, what must not
        overtake the publish is held behind it.
        """
        if self.ended or self._transport is None:
            return
        if self._writing_paused or self.door.draining:
            self._pause()
            return
        protocol, held, waiting = self.protocol, self._held, self._held.events
        before = protocol.packets_received
        self.arrival.at(int(time.time() * 1000))
        while True:
            if waiting and not self._release_held() and self._is_full():
                self._pause()
                break
            event = protocol.next_event()
            if event is None:
                if self._is_over():
                    return
                if self._paused and protocol.state is not State.CONNECTING:
                    self._resume()
                break
            if type(event) is Publish:
                if waiting or self._must_wait():
                    held.add(event)
                else:
                    self._publish(event)
            elif waiting and type(event) is not Failure:
                held.add(event)
            else:
                self._handle(event)
        if protocol.packets_received != before:
            self._last_packet_s = self.loop.time()
        self._flush()
        if self._charged or protocol.buffered or held:
            self._charge()
        if self._at_eof and not held and not self._is_over():
            self._close("connection lost", with_will=True)

    def _is_over(self) -> bool:
        return self.ended

    def _handle(self, event: Event) -> None:
        kind = type(event)
        if kind is Publish:
            self._publish(cast(Publish, event))
        elif kind is Release:
            self._exactly_once.release(cast(Release, event).packet_id)
        elif kind is Connect:
            self._pause()
            self._connect(cast(Connect, event))
        elif kind is Disconnect:
            self._disconnect(cast(Disconnect, event))
        else:
            failure = cast(Failure, event)
            if self.connect is None:
                self.door.metrics.connection_attempts[failure.reason.words] += 1
            self.fail(failure.reason, failure.detail)

    # -- waiting

    def _must_wait(self) -> bool:
        """Whether a publish cannot go on now."""
        if self._meters and self._is_too_fast():
            return True
        if self.door.congested:
            self.door.wait_for_room(self)
            return True
        return len(self.pubacks) > self.door.limits.receive_maximum

    def _release_held(self) -> bool:
        """Go on with what is held; False when some of it still has to wait."""
        held = self._held
        while held:
            if type(held.first()) is Publish and self._must_wait():
                return False
            self._handle(held.take())
            if self.ended:
                return True
        return True

    def _is_full(self) -> bool:
        limits = self.door.limits
        return (
            len(self._held) >= limits.receive_maximum
            or self._held.bytes >= limits.packet_bytes
            or self.door.buffered_bytes + self._held.bytes - self._charged >= limits.buffered_bytes
        )

    def _charge(self) -> None:
        """Count what is buffered; beyond the bound on all connections, one that would buffer more ends."""
        size = self.protocol.buffered + self._held.bytes + self._connect_bytes
        self.door.buffered_bytes += size - self._charged
        self._charged = size
        if size <= _FREE_BYTES or self.door.buffered_bytes <= self.door.limits.buffered_bytes:
            return
        if not self.protocol.was_accepted:
            self.door.metrics.connection_attempts["too many bytes buffered"] += 1
            self.fail(Reason.QUOTA_EXCEEDED, "all connections together buffer too much")
        elif not self._paused:
            self.fail(Reason.QUOTA_EXCEEDED, "all connections together buffer too much")

    def _is_too_fast(self) -> bool:
        """Not read while a rate is exceeded: slower is better than lost."""
        if self._rate_timer is not None:
            return True
        now_s = time.monotonic()
        wait_s = max(meter.wait_s(now_s) for meter in self._meters)
        if not wait_s:
            return False
        self.door.admission.paused(now_s)
        self._rate_timer = self.loop.call_later(max(wait_s, _SHORTEST_RATE_PAUSE_S), self._go_on)
        return True

    def _go_on(self) -> None:
        self._rate_timer = None
        self.pump()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            if not self._at_eof:
                self._transport.pause_reading()

    def _resume(self) -> None:
        assert self._transport is not None
        self._paused = False
        self._last_packet_s = self.loop.time()
        if not self._at_eof and not self._transport.is_closing():
            self._transport.resume_reading()

    def _flush(self) -> None:
        if self.protocol.has_outgoing and self._transport is not None:
            self._transport.write(self.protocol.take_outgoing())

    # -- CONNECT and the end

    def _connect(self, connect: Connect) -> None:
        self.connect = connect
        self._connect_bytes = connect_bytes(connect)
        self._charge()
        if not self.ended:
            self.door.connect(self, connect)

    def accept(self, *, session_present: bool, keep_alive_s: int, properties: Properties) -> None:
        """The front door lets the client in; it is closed when nothing comes for 1.5 times its keep-alive."""
        if not self.protocol.accept(session_present=session_present, properties=properties):
            self.refuse(Reason.PACKET_TOO_LARGE)
            return
        self.door.metrics.connection_attempts["accepted"] += 1
        if self.connect is not None and self.session is not None:
            self.door.wills.set(self.session, self.connect.will)
            # Neither its password nor its will, which is the session's now, is held any longer.
            self.connect = self.connect._replace(password=None, will=None)
        self._connect_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last_packet_s = self.loop.time()
        self._keep_alive_s = keep_alive_s
        if keep_alive_s:
            self._timer = self.loop.call_later(keep_alive_s * 1.5, self._check_alive)
        self._flush()
        self.pump()

    def refuse(self, reason: Reason) -> None:
        """The front door does not let the client in; no will is published for it."""
        if not self.ended:
            self.door.metrics.connection_attempts[reason.words] += 1
            self.protocol.refuse(reason)
            self._close(reason.words, with_will=False)

    def _disconnect(self, event: Disconnect) -> None:
        if event.session_expiry_s is not None and self.session is not None:
            self.door.change_expiry(self.session, event.session_expiry_s)
        self._close("disconnect", with_will=event.with_will)

    def fail(self, reason: Reason, detail: str) -> None:
        """End the connection for `reason`; an MQTT 5 client is told."""
        if not self.ended:
            _log.info("connection ended", client_id=self.arrival.client_id, reason=reason.words, detail=detail)
            self.protocol.disconnect(reason)
            self._close(reason.words, with_will=True)

    def _close(self, reason: str, *, with_will: bool) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self._end(reason, with_will=with_will)

    def _end(self, reason: str, *, with_will: bool) -> None:
        self.ended = True
        self.protocol.close()
        with_will = with_will and not self._held.ends_normally
        self._held.clear()
        self.door.buffered_bytes -= self._charged
        self._charged = 0
        for timer in (self._timer, self._rate_timer):
            if timer is not None:
                timer.cancel()
        accepted = self.protocol.was_accepted
        if accepted:
            self.door.metrics.connections_closed[reason] += 1
        self.door.ended(self, with_will=with_will and accepted)

    def _no_connect(self) -> None:
        if self.connect is None:
            self.door.metrics.connection_attempts["connect timeout"] += 1
            self.fail(Reason.KEEP_ALIVE_TIMEOUT, "no CONNECT came")

    def _check_alive(self) -> None:
        limit_s = self._keep_alive_s * 1.5
        # While we do not read, the silence is ours; `check_peer` watches the connection meanwhile.
        is_ours = self._paused or self._at_eof
        left_s = limit_s if is_ours else self._last_packet_s + limit_s - self.loop.time()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check_alive)
        else:
            self.fail(Reason.KEEP_ALIVE_TIMEOUT, f"nothing came for {limit_s:.0f} s")

    def check_peer(self) -> None:
        """End the connection when it is not read and TCP has found its peer to be gone, which nobody else would see."""
        if self._paused and not self.ended and self._transport is not None and is_dead(self._transport):
            self._close("connection lost", with_will=True)

    # -- PUBLISH at QoS 0 and 1

    def _publish(self, publish: Publish) -> None:
        door, qos = self.door, publish.qos
        door.metrics.messages_received[qos] += 1
        door.metrics.payload_bytes += len(publish.payload)
        for meter in self._meters:
            meter.took(len(publish.payload))
        acl = door.access.acl
        if acl is not None and not cast(Rights, self.rights).may_write(acl, publish.topic):
            self._deny(publish)
            return
        if qos == 2:
            self._exactly_once.publish(publish)
            return
        if (
            qos
            and self.protocol.version == V5
            and len(self.pubacks) + self._exactly_once.undecided >= door.limits.receive_maximum
        ):
            self.fail(Reason.RECEIVE_MAXIMUM_EXCEEDED, f"more than {door.limits.receive_maximum} publishes at a time")
            return
        translated = door.translator.translate(publish, self.arrival)
        if translated.misfit and qos and (reason := door.refusal(translated, self.protocol.version)):
            self.pubacks.refuse(publish.packet_id, reason)
            return
        delivery = Delivery(self, publish, translated, self.loop.time())
        if delivery.answer is not None:
            self.pubacks.append(delivery.answer)
        delivery.send(door)

    def _deny(self, publish: Publish) -> None:
        """A publish that the client is not authorized for. A client that cannot be told of it gets an acknowledgement,
        or the end of the connection (MQTT 3.1.1, 3.3.5; MQTT 5, 3.3.4).
        """
        rights = cast(Rights, self.rights)
        self.door.access.denied(
            client_id=self.arrival.client_id, username=rights.username, topic=publish.topic, qos=publish.qos
        )
        can_be_told = self.protocol.version == V5 and publish.qos
        if not can_be_told and self.door.access.closes_on_denial:
            self.fail(Reason.NOT_AUTHORIZED, "a publish to a topic that acl_file does not allow")
        elif publish.qos == 0:
            return
        elif publish.qos == 1:
            self.pubacks.refuse(publish.packet_id, Reason.NOT_AUTHORIZED)
        else:
            self._exactly_once.refuse(publish.packet_id, Reason.NOT_AUTHORIZED)

    def answers_left(self) -> None:
        """Answers were given: send them with this turn of the loop, and read on when they were waited for."""
        self.door.flush_soon(self)
        if self._paused or self._held:
            self.door.pump_soon(self)

    def flush(self) -> None:
        """Send what waits to be sent."""
        if not self.ended:
            self._flush()
