"""MQTT 5 properties (section 2.2.2): which packet may carry which, and their encoding."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from isotherm.mqtt_proxy.codec.errors import PacketError
from isotherm.mqtt_proxy.codec.fields import Reader, check_topic_name, encode_varint
from isotherm.mqtt_proxy.codec.reasons import Reason


class Property(IntEnum):
    """Property identifiers (table 2-4)."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDS_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


Properties = Mapping[Property, Any]
"""Values by property. The value of USER_PROPERTY is a list of pairs of texts; that of SUBSCRIPTION_ID is a number
or, in a PUBLISH of the server, several of them."""

P = Property
_BYTE = frozenset(
    (
        P.PAYLOAD_FORMAT,
        P.REQUEST_PROBLEM_INFORMATION,
        P.REQUEST_RESPONSE_INFORMATION,
        P.WILDCARD_SUBSCRIPTION_AVAILABLE,
        P.SUBSCRIPTION_IDS_AVAILABLE,
        P.SHARED_SUBSCRIPTION_AVAILABLE,
    )
)
_TWO_BYTES = frozenset((P.SERVER_KEEP_ALIVE, P.RECEIVE_MAXIMUM, P.TOPIC_ALIAS_MAXIMUM, P.TOPIC_ALIAS))
_FOUR_BYTES = frozenset((P.MESSAGE_EXPIRY, P.SESSION_EXPIRY, P.WILL_DELAY, P.MAXIMUM_PACKET_SIZE))
_BINARY = frozenset((P.CORRELATION_DATA, P.AUTHENTICATION_DATA))
_BOOLEANS = frozenset((P.PAYLOAD_FORMAT, P.REQUEST_PROBLEM_INFORMATION, P.REQUEST_RESPONSE_INFORMATION))
_NOT_ZERO = frozenset((P.RECEIVE_MAXIMUM, P.MAXIMUM_PACKET_SIZE, P.SUBSCRIPTION_ID))

CONNECT = frozenset(
    (
        P.SESSION_EXPIRY,
        P.RECEIVE_MAXIMUM,
        P.MAXIMUM_PACKET_SIZE,
        P.TOPIC_ALIAS_MAXIMUM,
        P.REQUEST_RESPONSE_INFORMATION,
        P.REQUEST_PROBLEM_INFORMATION,
        P.USER_PROPERTY,
        P.AUTHENTICATION_METHOD,
        P.AUTHENTICATION_DATA,
    )
)
WILL = frozenset(
    (
        P.WILL_DELAY,
        P.PAYLOAD_FORMAT,
        P.MESSAGE_EXPIRY,
        P.CONTENT_TYPE,
        P.RESPONSE_TOPIC,
        P.CORRELATION_DATA,
        P.USER_PROPERTY,
    )
)
PUBLISH = frozenset(
    (
        P.PAYLOAD_FORMAT,
        P.MESSAGE_EXPIRY,
        P.TOPIC_ALIAS,
        P.RESPONSE_TOPIC,
        P.CORRELATION_DATA,
        P.USER_PROPERTY,
        P.CONTENT_TYPE,
    )
)
ACKNOWLEDGEMENT = frozenset((P.REASON_STRING, P.USER_PROPERTY))
SUBSCRIBE = frozenset((P.SUBSCRIPTION_ID, P.USER_PROPERTY))
UNSUBSCRIBE = frozenset((P.USER_PROPERTY,))
DISCONNECT = frozenset((P.SESSION_EXPIRY, P.REASON_STRING, P.USER_PROPERTY))


def decode(reader: Reader, allowed: frozenset[Property]) -> dict[Property, Any]:
    """Decode the properties at the reader's position, which begin with their length.

    Raises PacketError for a malformed encoding, a property that is not `allowed`, and one that occurs twice.
    """
    inner = reader.part(reader.varint())
    found: dict[Property, Any] = {}
    while inner.left:
        try:
            identifier = Property(inner.varint())
        except ValueError:
            raise PacketError(Reason.MALFORMED_PACKET, "an unknown property") from None
        if identifier not in allowed:
            raise PacketError(Reason.PROTOCOL_ERROR, f"property {identifier.name} has no place in this packet")
        if identifier is P.USER_PROPERTY:
            found.setdefault(identifier, []).append((inner.text(), inner.text()))
            continue
        if identifier in found:
            raise PacketError(Reason.PROTOCOL_ERROR, f"property {identifier.name} is given twice")
        value = found[identifier] = _value(inner, identifier)
        if (identifier in _BOOLEANS and value > 1) or (identifier in _NOT_ZERO and value == 0):
            raise PacketError(Reason.PROTOCOL_ERROR, f"property {identifier.name} must not be {value}")
        if identifier is P.RESPONSE_TOPIC:
            check_topic_name(value)
    return found


def decode_all(data: bytes, allowed: frozenset[Property]) -> Properties:
    """Decode properties that `encode` encoded; empty `data` has none. Raises PacketError."""
    return decode(Reader(data, 0, len(data)), allowed) if data else {}


def _value(reader: Reader, identifier: Property) -> Any:
    if identifier in _BYTE:
        return reader.byte()
    if identifier in _TWO_BYTES:
        return reader.two_bytes()
    if identifier in _FOUR_BYTES:
        return reader.four_bytes()
    if identifier is P.SUBSCRIPTION_ID:
        return reader.varint()
    if identifier in _BINARY:
        return reader.binary()
    return reader.text()


def encode(properties: Properties) -> bytes:
    """Encode the properties with their length in front."""
    body = bytearray()
    for identifier, value in properties.items():
        if identifier is P.USER_PROPERTY:
            for pair in value:
                body.append(identifier)
                for text in pair:
                    body += _with_length(text.encode("utf-8"))
            continue
        if identifier is P.SUBSCRIPTION_ID:
            # A PUBLISH names every subscription that it matches (section 3.3.4).
            for one in (value,) if isinstance(value, int) else value:
                body.append(identifier)
                body += encode_varint(one)
            continue
        body.append(identifier)
        if identifier in _BYTE:
            body.append(value)
        elif identifier in _TWO_BYTES:
            body += value.to_bytes(2, "big")
        elif identifier in _FOUR_BYTES:
            body += value.to_bytes(4, "big")
        else:
            body += _with_length(value if identifier in _BINARY else value.encode("utf-8"))
    return encode_varint(len(body)) + bytes(body)


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data
