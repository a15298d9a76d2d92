"""One client's connection as a state machine without IO: bytes in, events out, and bytes to send.

It checks the order of packets and the limits, for MQTT 3.1.1 and 5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from isotherm.mqtt_proxy.codec import packets
from isotherm.mqtt_proxy.codec.errors import PacketError
from isotherm.mqtt_proxy.codec.fields import (
    Reader,
    check_no_control_characters,
    decode_any_topic,
    decode_topic,
)
from isotherm.mqtt_proxy.codec.packets import V5, V311, Connect, PacketType, Publish
from isotherm.mqtt_proxy.codec.properties import Properties, Property
from isotherm.mqtt_proxy.codec.reasons import Reason, return_code
from isotherm.mqtt_proxy.protocol.events import Acknowledgement, ConnectionState, Disconnect, Event, Failure, Release
from isotherm.mqtt_proxy.protocol.topic_aliases import TopicAliases

_SMALLEST_MAXIMUM = 5
"""Bytes of a CONNACK without properties and of an acknowledgement with a reason code.

A client with a smaller Maximum Packet Size cannot be answered.
"""

_OPTIONAL_PROPERTIES = (
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE,
    Property.SUBSCRIPTION_IDS_AVAILABLE,
    Property.SHARED_SUBSCRIPTION_AVAILABLE,
)
"""Properties that a CONNACK leaves out when it is too large. A SUBSCRIBE that is not allowed is refused anyway."""

# In Python 3.11 the access to an enum member is a function call, which slows the path of every publish.
_NEW, _CONNECTED = ConnectionState.NEW, ConnectionState.CONNECTED


class ServerProtocol:
    """The server's side of the protocol.

    `feed` accepts bytes. Then `next_event` returns one event at a time, and None at the end. A caller that stops early
    leaves the rest as bytes. `take_outgoing` returns the bytes to send. `max_packet_bytes` bounds a packet before it is
    buffered, `max_connect_bytes` a CONNECT. Without `topic_aliases` a client may set none. Unless the server
    `takes_subscriptions`, each one is refused here and the server publishes nothing.
    """

    def __init__(
        self,
        *,
        max_packet_bytes: int,
        max_connect_bytes: int | None = None,
        topic_aliases: TopicAliases | None = None,
        allow_control_characters: bool = False,
        takes_subscriptions: bool = False,
    ) -> None:
        self.state = ConnectionState.NEW
        self.version = V311
        self.packets_received = 0
        self.was_accepted = False
        self._max_packet_bytes = max_packet_bytes
        self._max_bytes_now = min(max_connect_bytes or max_packet_bytes, max_packet_bytes)
        self._client_max_bytes: int | None = None
        self._takes_subscriptions = takes_subscriptions
        self._allow_control_characters = allow_control_characters
        self.topic_of = decode_any_topic if allow_control_characters else decode_topic
        self._aliases = topic_aliases or TopicAliases(0)
        self._data = b""
        self._at = 0
        # An incomplete packet, and how many bytes it needs at least before it can be decoded.
        self._partial = bytearray()
        self._needed = 0
        self._outgoing: list[bytes] = []
        self._session_expiry_s = 0

    @property
    def buffered(self) -> int:
        """How many bytes wait to be decoded."""
        return len(self._partial) + len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Add bytes from the client."""
        if self.state is ConnectionState.CLOSED:
            return
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data = bytes(self._partial)
            self._partial = bytearray()
        elif self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def unread(self) -> tuple[bytes, int, int] | None:
        """Return the received bytes, where the next packet begins in them, and the maximum size of a packet.

        None while no publish may be read. For `hotpath`, which tells with `skip` what it has handled.
        """
        return (self._data, self._at, self._max_bytes_now) if self.state is _CONNECTED else None

    def skip(self, at: int, packets_handled: int) -> None:
        """Continue at `at` in the bytes of `unread`; the packets before it were handled."""
        self._at = at
        self.packets_received += packets_handled

    def send(self, encoded: bytes) -> None:
        """Send encoded packets."""
        if self.state is _CONNECTED:
            self._outgoing.append(encoded)

    def take_outgoing(self) -> bytes:
        """Remove and return the bytes to send to the client."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def next_event(self) -> Event | None:
        """Return the next event; None when more bytes are needed or the CONNECT is not answered yet."""
        try:
            while self.state is _CONNECTED or self.state is _NEW:
                data, at = self._data, self._at
                left = len(data) - at
                if not left:
                    return None
                if left < 2:
                    # An invalid first byte must not wait for the rest of its packet, here and below.
                    self._check_first_byte(data[at])
                    self._wait_for(2)
                    return None
                length, body = data[at + 1], at + 2
                if length & 0x80:
                    known = self._long_length(data, at)
                    if known is None:
                        self._check_first_byte(data[at])
                        self._wait_for(left + 1)
                        return None
                    length, body = known
                end = body + length
                if end - at > self._max_bytes_now:
                    # First, so that the reason does not depend on how the network cuts the bytes.
                    self._check_first_byte(data[at])
                    raise PacketError(
                        Reason.PACKET_TOO_LARGE, f"{end - at} bytes, at most {self._max_bytes_now} are allowed"
                    )
                if end > len(data):
                    self._check_first_byte(data[at])
                    self._wait_for(end - at)
                    return None
                self._at = end
                event = self._packet(data[at], data, body, end)
                self.packets_received += 1
                if event is not None:
                    return event
        except PacketError as error:
            return self._fail(error)
        return None

    def _wait_for(self, needed: int) -> None:
        self._partial += self._data[self._at :]
        self._needed = needed
        self._data, self._at = b"", 0

    def _long_length(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Return a remaining length of several bytes and the start of the body; None when bytes are missing."""
        value = shift = 0
        for index in range(at + 1, min(at + 5, len(data))):
            byte = data[index]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value, index + 1
            shift += 7
        if len(data) - at >= 5:
            self._check_first_byte(data[at])
            raise PacketError(Reason.MALFORMED_PACKET, "the remaining length has more than four bytes")
        return None

    def _check_first_byte(self, first: int) -> PacketType:
        number = first >> 4
        if self.state is ConnectionState.NEW:
            if number != PacketType.CONNECT:
                raise PacketError(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT")
        elif number == PacketType.CONNECT:
            raise PacketError(Reason.PROTOCOL_ERROR, "a second CONNECT")
        if number == PacketType.PUBLISH:
            if first & 0b0110 == 0b0110 or first & 0b1110 == 0b1000:
                raise PacketError(Reason.MALFORMED_PACKET, "QoS 3, or DUP at QoS 0")
            return PacketType.PUBLISH
        flags = packets.FLAGS.get(number)  # type: ignore[call-overload]  # an IntEnum key is found by its integer
        if flags is None or (number == PacketType.AUTH and self.version != V5):
            raise PacketError(Reason.PROTOCOL_ERROR, f"packet type {number} is not a client's")
        if first & 0x0F != flags:
            raise PacketError(Reason.MALFORMED_PACKET, "wrong flags in the fixed header")
        return PacketType(number)

    def _packet(self, first: int, data: bytes, body: int, end: int) -> Event | None:
        if first >> 4 == 3 and self.state is _CONNECTED:
            publish = packets.decode_publish(first, data, body, end, self.version, self.topic_of)
            return publish if self.version != V5 else self._resolve_alias(publish)
        packet_type = self._check_first_byte(first)
        reader = Reader(data, body, end)
        if packet_type is PacketType.PUBREL:
            return Release(packets.decode_acknowledgement(reader, self.version, packet_type)[0])
        if packet_type is PacketType.CONNECT:
            return self._connect(reader)
        if packet_type is PacketType.PINGREQ:
            reader.finish()
            self._answer_pings(data, end)
        elif packet_type is PacketType.DISCONNECT:
            return self._disconnect(reader)
        elif packet_type is PacketType.SUBSCRIBE:
            subscribe = packets.decode_subscribe(
                reader, self.version, allow_control_characters=self._allow_control_characters
            )
            if self._takes_subscriptions:
                return subscribe
            self._answer_subscribe(subscribe.packet_id, [Reason.NOT_AUTHORIZED] * len(subscribe.filters))
        elif packet_type is PacketType.UNSUBSCRIBE:
            unsubscribe = packets.decode_unsubscribe(
                reader, self.version, allow_control_characters=self._allow_control_characters
            )
            if self._takes_subscriptions:
                return unsubscribe
            self._answer_unsubscribe(unsubscribe.packet_id, [Reason.NO_SUBSCRIPTION_EXISTED] * len(unsubscribe.filters))
        elif packet_type is PacketType.AUTH:
            raise PacketError(Reason.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
        else:
            packet_id, reason = packets.decode_acknowledgement(reader, self.version, packet_type)
            if self._takes_subscriptions:
                return Acknowledgement(packet_type, packet_id, reason)
            self.answer_stray(packet_type, packet_id, reason)
        return None

    def _answer_pings(self, data: bytes, end: int) -> None:
        """Answer the PINGREQ that ends at `end` and all directly behind it together, so that a flood costs little."""
        while data.startswith(packets.PINGREQ, self._at):
            self._at += 2
        more = (self._at - end) // 2
        self.packets_received += more
        self._outgoing.append(packets.PINGRESP * (1 + more))

    def answer_stray(self, packet_type: PacketType, packet_id: int, reason: int) -> None:
        """Answer the acknowledgement of a publish that is not this server's: PUBREC needs an answer (4.3.3)."""
        if packet_type is PacketType.PUBREC and reason < Reason.UNSPECIFIED_ERROR:
            answer = Reason.PACKET_IDENTIFIER_NOT_FOUND if self.version == V5 else 0
            self._outgoing.append(packets.encode_acknowledgement(PacketType.PUBREL, packet_id, answer))

    def answer_subscribe(self, packet_id: int, reasons: Sequence[int]) -> bool:
        """Answer a SUBSCRIBE with a reason for each filter, the granted QoS or why it is refused.

        MQTT 3.1.1 has one code for all refusals. Returns False when the answer exceeds the client's Maximum Packet
        Size: the caller must end the connection.
        """
        return self._is_answered(partial(self._answer_subscribe, packet_id, reasons))

    def answer_unsubscribe(self, packet_id: int, reasons: Sequence[int]) -> bool:
        """Answer an UNSUBSCRIBE; returns what `answer_subscribe` returns."""
        return self._is_answered(partial(self._answer_unsubscribe, packet_id, reasons))

    def _is_answered(self, answer: Callable[[], None]) -> bool:
        if self.state is _CONNECTED:
            try:
                answer()
            except PacketError:
                return False
        return True

    def _answer_subscribe(self, packet_id: int, reasons: Sequence[int]) -> None:
        refusal = Reason.UNSPECIFIED_ERROR
        codes = bytes(reasons if self.version == V5 else (min(reason, refusal) for reason in reasons))
        self._send_if_it_fits(packets.encode_suback(PacketType.SUBACK, packet_id, self.version, codes))

    def _answer_unsubscribe(self, packet_id: int, reasons: Sequence[int]) -> None:
        codes = bytes(reasons) if self.version == V5 else b""
        self._send_if_it_fits(packets.encode_suback(PacketType.UNSUBACK, packet_id, self.version, codes))

    def publish(self, publish: Publish) -> int:
        """Send a PUBLISH of the server; return its bytes, or 0 when it exceeds the client's Maximum Packet Size."""
        packet = packets.encode_publish(publish, self.version)
        if not self._fits_client(packet):
            return 0
        if self.state is _CONNECTED:
            self._outgoing.append(packet)
        return len(packet)

    def _connect(self, reader: Reader) -> Connect:
        connect = packets.decode_connect(reader)
        self.version = connect.version
        self._client_max_bytes = connect.properties.get(Property.MAXIMUM_PACKET_SIZE)
        self._max_bytes_now = self._max_packet_bytes
        if self._client_max_bytes is not None and self._client_max_bytes < _SMALLEST_MAXIMUM:
            raise PacketError(Reason.PACKET_TOO_LARGE, "no answer is as small as the client's Maximum Packet Size")
        if not self._allow_control_characters:
            packets.check_connect_texts(connect)
        self._session_expiry_s = connect.properties.get(Property.SESSION_EXPIRY, 0)
        if Property.AUTHENTICATION_METHOD in connect.properties:
            raise PacketError(Reason.BAD_AUTHENTICATION_METHOD, "no extended authentication is offered")
        if not connect.client_id and not connect.clean_start and connect.version == V311:
            raise PacketError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client identifier with a kept session")
        self.state = ConnectionState.CONNECTING
        return connect

    def _disconnect(self, reader: Reader) -> Disconnect:
        reason, properties = packets.decode_disconnect(reader, self.version)
        expiry_s = properties.get(Property.SESSION_EXPIRY)
        if expiry_s and not self._session_expiry_s:
            raise PacketError(Reason.PROTOCOL_ERROR, "a session without expiry cannot be given one at its end")
        self.close()
        return Disconnect(reason != Reason.SUCCESS, expiry_s)

    def _resolve_alias(self, publish: Publish) -> Publish:
        if publish.properties and not self._allow_control_characters:
            check_no_control_characters(publish.properties.get(Property.RESPONSE_TOPIC, ""))
        alias = publish.properties.get(Property.TOPIC_ALIAS)
        if alias is None:
            if not publish.topic:
                raise PacketError(Reason.PROTOCOL_ERROR, "neither topic name nor topic alias")
            return publish
        topic = self._aliases.topic(alias, publish.topic)
        return publish if publish.topic else publish._replace(topic=topic)

    def _fail(self, error: PacketError) -> Failure:
        if self.state is ConnectionState.NEW:
            self.refuse(error.reason)
        else:
            self.disconnect(error.reason)
        return Failure(error.reason, error.detail)

    def accept(self, *, session_present: bool, properties: Properties = packets.NO_PROPERTIES) -> bool:
        """Answer the CONNECT with success; `properties` go to MQTT 5 clients only.

        Returns False and sends nothing when the CONNACK exceeds the client's Maximum Packet Size even without optional
        properties (MQTT-3.1.2-24). The caller must then refuse the CONNECT.
        """
        connack = self._connack(session_present, properties)
        if not self._fits_client(connack):
            needed = {name: value for name, value in properties.items() if name not in _OPTIONAL_PROPERTIES}
            connack = self._connack(session_present, needed)
            if not self._fits_client(connack):
                return False
        self._outgoing.append(connack)
        self.state = ConnectionState.CONNECTED
        self.was_accepted = True
        return True

    def _connack(self, session_present: bool, properties: Properties) -> bytes:
        return packets.encode_connack(
            self.version, session_present=session_present, reason=Reason.SUCCESS, properties=properties
        )

    def _fits_client(self, packet: bytes) -> bool:
        return self._client_max_bytes is None or len(packet) <= self._client_max_bytes

    def _send_if_it_fits(self, packet: bytes) -> None:
        """Send a packet whose size depends on the client's packet. Raises PacketError when the client cannot take it.

        All other packets fit the smallest Maximum Packet Size that a CONNECT may have.
        """
        if not self._fits_client(packet):
            raise PacketError(Reason.PACKET_TOO_LARGE, "the answer exceeds the client's Maximum Packet Size")
        self._outgoing.append(packet)

    def refuse(self, reason: Reason) -> None:
        """Answer the CONNECT with `reason`; a 3.1.1 client gets no answer to a reason without a return code."""
        if self.version == V5 or return_code(reason) is not None:
            connack = packets.encode_connack(
                self.version, session_present=False, reason=reason, properties=packets.NO_PROPERTIES
            )
            if self._fits_client(connack):
                self._outgoing.append(connack)
        self.close()

    def disconnect(self, reason: Reason, server_reference: str = "") -> None:
        """End the connection from the server's side; only MQTT 5 clients are told `reason` and the other server."""
        if self.state is ConnectionState.CONNECTED and self.version == V5:
            packet = packets.encode_disconnect(reason, server_reference)
            self._outgoing.append(packet if self._fits_client(packet) else packets.encode_disconnect(reason))
        self.close()

    def close(self) -> None:
        """Read nothing any more; the outgoing bytes stay."""
        self.state = ConnectionState.CLOSED
        self._data, self._at, self._partial = b"", 0, bytearray()
        self._aliases.close()

    def acknowledge(self, packet_type: PacketType, packet_id: int, reason: Reason = Reason.SUCCESS) -> None:
        """Send a PUBACK, PUBREC or PUBCOMP; only MQTT 5 clients accept a reason other than success."""
        if self.state is _CONNECTED:
            self._outgoing.append(packets.encode_acknowledgement(packet_type, packet_id, reason))
