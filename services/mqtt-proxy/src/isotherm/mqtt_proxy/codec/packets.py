"""Decodes and encodes the packets of MQTT 3.1.1 and 5.0 that publishers and their server exchange."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from isotherm.mqtt_proxy.codec import properties as props
from isotherm.mqtt_proxy.codec.errors import PacketError
from isotherm.mqtt_proxy.codec.fields import (
    Reader,
    check_no_control_characters,
    check_topic_name,
    decode_topic,
    encode_varint,
    has_control_characters,
    has_misplaced_wildcard,
)
from isotherm.mqtt_proxy.codec.properties import Properties, Property
from isotherm.mqtt_proxy.codec.reasons import (
    CLIENT_DISCONNECTS,
    PUBLISH_ANSWERS,
    RELEASE_ANSWERS,
    Reason,
    return_code,
)

V311 = 4
V5 = 5

NO_PROPERTIES: Mapping[Property, Any] = MappingProxyType({})


class PacketType(IntEnum):
    """Control packet types (section 2.2.1)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


FLAGS = {
    PacketType.CONNECT: 0,
    PacketType.PUBACK: 0,
    PacketType.PUBREC: 0,
    PacketType.PUBREL: 2,
    PacketType.PUBCOMP: 0,
    PacketType.SUBSCRIBE: 2,
    PacketType.UNSUBSCRIBE: 2,
    PacketType.PINGREQ: 0,
    PacketType.DISCONNECT: 0,
    PacketType.AUTH: 0,
}
"""The lower four bits of the first byte of each client packet but PUBLISH (section 2.2.2)."""

TEXT_BYTES = 65_535
"""Longest text or binary data of a packet (section 1.5)."""

_FIRST_BYTES = {packet_type: packet_type << 4 | flags for packet_type, flags in FLAGS.items()}
_pack_plain, _pack_with_reason = struct.Struct(">BBH").pack, struct.Struct(">BBHB").pack


class Publish(NamedTuple):
    """A PUBLISH packet, or a will."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


class Connect(NamedTuple):
    """A CONNECT packet (section 3.1)."""

    version: int
    client_id: str
    clean_start: bool
    keep_alive_s: int
    username: str | None
    password: bytes | None
    will: Publish | None
    properties: Properties

    def __repr__(self) -> str:
        # The password must not reach a log line through a traceback.
        return f"Connect(version={self.version}, client_id={self.client_id!r}, clean_start={self.clean_start})"


class Subscribe(NamedTuple):
    """A SUBSCRIBE packet (section 3.8).

    Of the options only the QoS is kept. A server that publishes nothing of its clients and retains nothing has no use
    for No Local, Retain As Published and Retain Handling.
    """

    packet_id: int
    filters: Sequence[tuple[str, int]]
    """Each filter with the QoS that is asked for."""
    subscription_id: int | None = None


class Unsubscribe(NamedTuple):
    """An UNSUBSCRIBE packet (section 3.10)."""

    packet_id: int
    filters: Sequence[str]


SHARE = "$share/"
"""How the filter of a shared subscription begins (5.0 section 4.8.2)."""


def decode_connect(reader: Reader) -> Connect:
    """Decode the body of a CONNECT.

    Raises PacketError, with the reason UNSUPPORTED_PROTOCOL_VERSION for a version other than 3.1.1 and 5.0.
    """
    if reader.binary() != b"MQTT":
        raise PacketError(Reason.UNSUPPORTED_PROTOCOL_VERSION, "the protocol name is not MQTT")
    version = reader.byte()
    if version not in (V311, V5):
        raise PacketError(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol level {version}")
    flags = reader.byte()
    if flags & 1:
        raise PacketError(Reason.MALFORMED_PACKET, "the reserved connect flag is set")
    has_will, will_qos, will_retain = bool(flags & 4), flags >> 3 & 3, bool(flags & 32)
    if will_qos == 3 or (not has_will and (will_qos or will_retain)):
        raise PacketError(Reason.MALFORMED_PACKET, "the will flags contradict each other")
    has_username, has_password = bool(flags & 128), bool(flags & 64)
    if has_password and not has_username and version == V311:
        raise PacketError(Reason.MALFORMED_PACKET, "a password without a user name")
    keep_alive_s = reader.two_bytes()
    properties = _connect_properties(reader) if version == V5 else NO_PROPERTIES
    if Property.AUTHENTICATION_DATA in properties and Property.AUTHENTICATION_METHOD not in properties:
        raise PacketError(Reason.PROTOCOL_ERROR, "authentication data without a method")
    client_id = reader.text()
    will = None
    if has_will:
        will_properties = props.decode(reader, props.WILL) if version == V5 else NO_PROPERTIES
        topic = check_topic_name(reader.text())
        will = Publish(topic, reader.binary(), will_qos, will_retain, properties=will_properties)
    username = reader.text() if has_username else None
    password = reader.binary() if has_password else None
    reader.finish()
    return Connect(version, client_id, bool(flags & 2), keep_alive_s, username, password, will, properties)


def _connect_properties(reader: Reader) -> Properties:
    found = props.decode(reader, props.CONNECT)
    # Nothing reads them, and as objects they take many times their bytes, for a client that is not authenticated yet.
    found.pop(Property.USER_PROPERTY, None)
    return found


def check_connect_texts(connect: Connect) -> None:
    """Raise PacketError for control characters in client id, user name or the will's topics."""
    if has_control_characters(connect.client_id):
        raise PacketError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "the client identifier has control characters")
    if connect.username is not None and has_control_characters(connect.username):
        raise PacketError(Reason.BAD_USER_NAME_OR_PASSWORD, "the user name has control characters")
    if connect.will is not None:
        check_no_control_characters(connect.will.topic)
        check_no_control_characters(connect.will.properties.get(Property.RESPONSE_TOPIC, ""))


def decode_publish(
    first: int,
    data: bytes,
    at: int,
    end: int,
    version: int,
    topic_of: Callable[[bytes], str] = decode_topic,
) -> Publish:
    """Decode a PUBLISH from its first byte and its body `data[at:end]` (section 3.3). Raises PacketError.

    With MQTT 5 the topic may be empty when there is a topic alias, which the state machine resolves.
    """
    qos = first >> 1 & 3
    if qos == 3 or (first & 0b1110) == 0b1000:
        raise PacketError(Reason.MALFORMED_PACKET, "QoS 3, or DUP at QoS 0")
    body = at + 2
    if body > end or (body := body + (data[at] << 8 | data[at + 1])) > end:
        raise PacketError(Reason.MALFORMED_PACKET, "the packet ends inside the topic name")
    name = data[at + 2 : body]
    packet_id = 0
    if qos:
        if body + 2 > end:
            raise PacketError(Reason.MALFORMED_PACKET, "the packet ends inside the packet identifier")
        packet_id = data[body] << 8 | data[body + 1]
        if not packet_id:
            raise PacketError(Reason.PROTOCOL_ERROR, "packet identifier 0")
        body += 2
    if version != V5:
        return Publish(topic_of(name), data[body:end], qos, first & 1 == 1, first & 8 == 8, packet_id, NO_PROPERTIES)
    reader = Reader(data, body, end)
    properties: Properties = NO_PROPERTIES
    # Nearly every publish has no properties, which is one zero byte.
    if body < end and not data[body]:
        body += 1
    else:
        properties = props.decode(reader, props.PUBLISH)
        body = end - reader.left
    topic = topic_of(name) if name else ""
    return Publish(topic, data[body:end], qos, first & 1 == 1, first & 8 == 8, packet_id, properties)


def decode_acknowledgement(reader: Reader, version: int, packet_type: PacketType) -> tuple[int, int]:
    """Decode packet identifier and reason code of a PUBACK, PUBREC, PUBREL or PUBCOMP (3.4). Raises PacketError."""
    packet_id = _packet_id(reader)
    reason = 0
    if version == V5 and reader.left:
        reason = reader.byte()
        known = PUBLISH_ANSWERS if packet_type <= PacketType.PUBREC else RELEASE_ANSWERS
        if reason not in known:
            raise PacketError(Reason.PROTOCOL_ERROR, f"{packet_type.name} has no reason code {reason:#04x}")
        if reader.left:
            props.decode(reader, props.ACKNOWLEDGEMENT)
    reader.finish()
    return packet_id, reason


def decode_subscribe(reader: Reader, version: int, *, allow_control_characters: bool = False) -> Subscribe:
    """Decode a SUBSCRIBE (section 3.8). Raises PacketError."""
    packet_id = _packet_id(reader)
    properties = props.decode(reader, props.SUBSCRIBE) if version == V5 else NO_PROPERTIES
    filters: list[tuple[str, int]] = []
    while reader.left:
        topic_filter = reader.text()
        check_filter(topic_filter, allow_control_characters=allow_control_characters)
        options = reader.byte()
        if options & 3 == 3 or (options & 0xFC if version == V311 else options & 0xC0 or options & 0x30 == 0x30):
            raise PacketError(Reason.MALFORMED_PACKET, "reserved bits in the subscription options")
        if options & 4 and topic_filter.startswith(SHARE):
            raise PacketError(Reason.PROTOCOL_ERROR, "No Local in a shared subscription")
        filters.append((topic_filter, options & 3))
    if not filters:
        raise PacketError(Reason.PROTOCOL_ERROR, "SUBSCRIBE without a filter")
    return Subscribe(packet_id, filters, properties.get(Property.SUBSCRIPTION_ID))


def decode_unsubscribe(reader: Reader, version: int, *, allow_control_characters: bool = False) -> Unsubscribe:
    """Decode an UNSUBSCRIBE (section 3.10). Raises PacketError."""
    packet_id = _packet_id(reader)
    if version == V5:
        props.decode(reader, props.UNSUBSCRIBE)
    filters: list[str] = []
    while reader.left:
        topic_filter = reader.text()
        check_filter(topic_filter, allow_control_characters=allow_control_characters)
        filters.append(topic_filter)
    if not filters:
        raise PacketError(Reason.PROTOCOL_ERROR, "UNSUBSCRIBE without a filter")
    return Unsubscribe(packet_id, filters)


def decode_disconnect(reader: Reader, version: int) -> tuple[int, Properties]:
    """Decode reason code and properties of a DISCONNECT (section 3.14). Raises PacketError."""
    reason, properties = 0, NO_PROPERTIES
    if version == V5 and reader.left:
        reason = reader.byte()
        if reason not in CLIENT_DISCONNECTS:
            raise PacketError(Reason.PROTOCOL_ERROR, f"a client's DISCONNECT has no reason code {reason:#04x}")
        if reader.left:
            properties = props.decode(reader, props.DISCONNECT)
    reader.finish()
    return reason, properties


def _packet_id(reader: Reader) -> int:
    packet_id = reader.two_bytes()
    if not packet_id:
        raise PacketError(Reason.PROTOCOL_ERROR, "packet identifier 0")
    return packet_id


def check_filter(text: str, *, allow_control_characters: bool = False) -> None:
    """Raise PacketError for an invalid topic filter (section 4.7.1), or for control characters unless allowed."""
    if not allow_control_characters and has_control_characters(text):
        raise PacketError(Reason.MALFORMED_PACKET, "a topic filter has control characters")
    if has_misplaced_wildcard(text):
        raise PacketError(Reason.MALFORMED_PACKET, "a misplaced wildcard in a topic filter")
    if not text:
        raise PacketError(Reason.MALFORMED_PACKET, "an empty topic filter")


def encode_connack(version: int, *, session_present: bool, reason: Reason, properties: Properties) -> bytes:
    """Encode a CONNACK; for 3.1.1 `reason` must have a return code."""
    if version == V5:
        body = bytes((session_present, reason)) + props.encode(properties)
    else:
        code = 0 if reason is Reason.SUCCESS else return_code(reason)
        assert code is not None, f"3.1.1 has no return code for {reason.words}"
        body = bytes((session_present, code))
    return bytes((PacketType.CONNACK << 4,)) + encode_varint(len(body)) + body


def encode_acknowledgement(packet_type: PacketType, packet_id: int, reason: int = 0) -> bytes:
    """Encode a PUBACK, PUBREC, PUBREL or PUBCOMP; only MQTT 5 has reasons other than success."""
    first = _FIRST_BYTES[packet_type]
    return _pack_with_reason(first, 3, packet_id, reason) if reason else _pack_plain(first, 2, packet_id)


def encode_publish(publish: Publish, version: int) -> bytes:
    """Encode a PUBLISH (section 3.3); only MQTT 5 has properties. `TEXT_BYTES` bounds topic and properties."""
    topic = publish.topic.encode("utf-8")
    parts = [len(topic).to_bytes(2, "big"), topic]
    if publish.qos:
        parts.append(publish.packet_id.to_bytes(2, "big"))
    if version == V5:
        parts.append(props.encode(publish.properties))
    parts.append(publish.payload)
    body = b"".join(parts)
    first = PacketType.PUBLISH << 4 | publish.dup << 3 | publish.qos << 1 | publish.retain
    return bytes((first,)) + encode_varint(len(body)) + body


def encode_suback(packet_type: PacketType, packet_id: int, version: int, reasons: bytes) -> bytes:
    """Encode a SUBACK or UNSUBACK; the UNSUBACK of 3.1.1 has no reasons."""
    body = packet_id.to_bytes(2, "big") + (b"\0" if version == V5 else b"") + reasons
    return bytes((packet_type << 4,)) + encode_varint(len(body)) + body


def encode_disconnect(reason: Reason, server_reference: str = "") -> bytes:
    """Encode a DISCONNECT of the server, which only MQTT 5 has, with a Server Reference (5.0 section 4.11) if any."""
    if not server_reference:
        return bytes((PacketType.DISCONNECT << 4, 1, reason))
    body = bytes((reason,)) + props.encode({Property.SERVER_REFERENCE: server_reference})
    return bytes((PacketType.DISCONNECT << 4,)) + encode_varint(len(body)) + body


PINGREQ, PINGRESP = bytes((PacketType.PINGREQ << 4, 0)), bytes((PacketType.PINGRESP << 4, 0))
