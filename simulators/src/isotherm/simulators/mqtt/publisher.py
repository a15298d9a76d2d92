"""One MQTT connection that several devices share; it limits what is in flight and resumes after a reconnect."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MessageState, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from isotherm.simulators.mqtt.access import Access
from isotherm.simulators.mqtt.devices import Reading
from isotherm.simulators.mqtt.network_loop import NetworkLoop

_KEEPALIVE_S = 30
_CLOSE_WITHIN_S = 2.0
_FAILURE = 0x80


class ResumingClient(Client):
    """paho's client with a QoS 2 handshake that survives several attempts to connect.

    paho prepares the messages to resend at every attempt. At the second attempt it treats a message whose PUBREL is to
    be resent as one to publish again. It then sends a PUBLISH that the server has released long ago, which makes a copy
    (MQTT 3.1.1, 4.3.3: after PUBREC the sender must not resend the PUBLISH).
    """

    def _messages_reconnect_reset_out(self) -> None:
        with self._out_message_mutex:
            released = [m for m in self._out_messages.values() if m.state == MessageState.MQTT_MS_RESEND_PUBREL]
            super()._messages_reconnect_reset_out()
            for message in released:
                message.state = MessageState.MQTT_MS_RESEND_PUBREL

    def _handle_pubrec(self) -> MQTTErrorCode:
        """End the handshake at a PUBREC with a failure reason (MQTT 5, 4.3.3), where paho goes on with PUBREL."""
        packet = bytes(self._in_packet["packet"])
        if len(packet) > 2 and packet[2] >= _FAILURE:
            (packet_id,) = struct.unpack_from("!H", packet)
            with self._out_message_mutex:
                if packet_id in self._out_messages:
                    reason = ReasonCode(PacketTypes.PUBREC, identifier=packet[2])
                    return self._do_on_publish(packet_id, reason, Properties(PacketTypes.PUBREC))  # type: ignore[no-untyped-call]  # paho leaves it untyped
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._handle_pubrec()


class Publisher:
    """Publishes readings in the given order with at most `window` unacknowledged ones; the others wait in memory.

    The session is persistent (clean session false): after a lost connection paho resends every unacknowledged QoS 1
    and QoS 2 publish with its packet id, or its PUBREL (MQTT 3.1.1 section 4.4). A publish that an MQTT 5 server
    refuses with a reason is not published again. Everything runs on the thread that runs the `loop`.
    """

    def __init__(
        self,
        client_id: str,
        host: str,
        port: int,
        *,
        window: int,
        max_waiting: int,
        loop: NetworkLoop,
        on_published: Callable[[Reading], None],
        on_acknowledged: Callable[[Reading], None],
        on_refused: Callable[[Reading], None] = lambda _reading: None,
        on_connection_lost: Callable[[], None] = lambda: None,
        access: Access = Access(),  # noqa: B008  # it is frozen
    ) -> None:
        self.client_id = client_id
        self.is_connected = False
        self.connections = 0
        self.dropped = 0
        self._waiting: deque[Reading] = deque(maxlen=max_waiting)
        self._in_flight: dict[int, Reading] = {}
        self._window = window
        self._loop = loop
        self._on_published = on_published
        self._on_acknowledged = on_acknowledged
        self._on_refused = on_refused
        self._on_connection_lost = on_connection_lost
        self._is_ending = False
        self._publish_arguments = access.publish_arguments()
        self._logged_refusals: set[str] = set()
        self._client = ResumingClient(CallbackAPIVersion.VERSION2, client_id, **access.client_arguments())
        if access.username is not None:
            self._client.username_pw_set(access.username, access.password)
        if access.tls is not None:
            self._client.tls_set_context(access.tls)
        # This class limits what is in flight; paho must not queue anything.
        self._client.max_inflight_messages_set(0)
        self._client.on_connect = self._connected
        self._client.on_disconnect = self._disconnected
        self._client.on_publish = self._acknowledged
        self._client.connect_async(host, port, _KEEPALIVE_S, **access.connect_arguments())

    def start(self) -> None:
        """Connect, and reconnect whenever the connection is lost."""
        self._loop.add(self._client)

    def offer(self, reading: Reading) -> None:
        """Publish as soon as there is a connection and room; when too many readings wait, drop the oldest."""
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(reading)
        self._publish_waiting()

    @property
    def unacknowledged(self) -> int:
        """The number of published readings without an acknowledgement."""
        return len(self._in_flight)

    def discard_waiting(self) -> int:
        """Drop the readings that were never published; return their number."""
        discarded = len(self._waiting)
        self._waiting.clear()
        return discarded

    def disconnect(self) -> None:
        """Send DISCONNECT; `join` waits for the end of the connection."""
        self._is_ending = True
        self._loop.release(self._client)
        self._client.disconnect()

    def join(self) -> None:
        """Wait until the connection is closed; the DISCONNECT may wait behind what the socket did not take."""
        deadline = time.monotonic() + _CLOSE_WITHIN_S
        while self._client.socket() is not None and (left_s := deadline - time.monotonic()) > 0:
            self._loop.run_once(left_s)

    def _publish_waiting(self) -> None:
        while self._waiting and self.is_connected and len(self._in_flight) < self._window:
            reading = self._waiting.popleft()
            # Before the bytes leave, because the ledger must hold everything that may have arrived.
            self._on_published(reading)
            payload = json.dumps(reading.payload(), separators=(",", ":"))
            info = self._client.publish(reading.topic, payload, qos=reading.qos, **self._publish_arguments)
            if reading.qos == 0 and info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                # The connection was just lost, and paho keeps no QoS 0 publish for the next one.
                self._waiting.appendleft(reading)
                return
            self._in_flight[info.mid] = reading
        self._loop.watch_output(self._client)

    def _connected(
        self, _client: Client, _data: Any, _flags: ConnectFlags, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        if not reason.is_failure:
            self._loop.post(self._note_connected)
        else:
            self._loop.post(lambda: self._log_refusal(str(reason)))

    def _log_refusal(self, reason: str) -> None:
        if reason not in self._logged_refusals:
            self._logged_refusals.add(reason)
            sys.stderr.write(f"{self.client_id}: the server refuses the connection: {reason}\n")

    def _note_connected(self) -> None:
        self.is_connected = True
        self._loop.accepted(self._client)
        self.connections += 1
        self._publish_waiting()

    def _disconnected(
        self, _client: Client, _data: Any, _flags: DisconnectFlags, _reason: ReasonCode, _properties: Properties | None
    ) -> None:
        self._loop.post(self._note_disconnected)

    def _note_disconnected(self) -> None:
        if self.is_connected and not self._is_ending:
            self._on_connection_lost()
        self.is_connected = False
        # A QoS 0 publish that was not sent over the lost connection is never sent.
        for packet_id in [mid for mid, reading in self._in_flight.items() if reading.qos == 0]:
            del self._in_flight[packet_id]

    def _acknowledged(
        self, _client: Client, _data: Any, packet_id: int, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        # PUBCOMP with "packet identifier not found" answers a PUBREL that was sent twice; the message is released.
        is_refused = reason.is_failure and reason.packetType != PacketTypes.PUBCOMP
        self._loop.post(lambda: self._note_answered(packet_id, is_refused=is_refused))

    def _note_answered(self, packet_id: int, *, is_refused: bool) -> None:
        reading = self._in_flight.pop(packet_id, None)
        if reading is not None:
            (self._on_refused if is_refused else self._on_acknowledged)(reading)
        self._publish_waiting()
