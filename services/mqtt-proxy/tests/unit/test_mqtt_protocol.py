"""The connection state machine: bytes in, events and answers out."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from mqtt_packets import (
    MAX_PACKET_BYTES,
    connect_packet,
    connected,
    events_of,
    failure_of,
    packet,
    publish_packet,
    text,
    varint,
)

from isotherm.mqtt_proxy.codec import properties as props
from isotherm.mqtt_proxy.codec.packets import Connect, PacketType, Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.protocol.connack import connack_properties
from isotherm.mqtt_proxy.protocol.events import Disconnect, Event, Failure, Release
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.protocol.topic_aliases import AliasMemory, TopicAliases


def test_connect_with_everything() -> None:
    after = text("will/topic") + text("gone") + text("user") + text("secret")
    protocol = ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES)
    (event,) = events_of(protocol, connect_packet("dev-1", flags=0b1110_1100, after=after))
    assert isinstance(event, Connect)
    assert event.will == Publish("will/topic", b"gone", 1, retain=True)
    assert (event.client_id, event.username, event.password) == ("dev-1", "user", b"secret")
    assert (event.clean_start, event.keep_alive_s) == (False, 60)
    assert "secret" not in repr(event)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (connect_packet(version=3), b"\x20\x02\x00\x01"),
        (connect_packet(version=6), b"\x20\x02\x00\x01"),
        (connect_packet(name="MQIsdp", version=3), b"\x20\x02\x00\x01"),
        (connect_packet("", flags=0), b"\x20\x02\x00\x02"),
        (connect_packet(flags=3), b""),
        (connect_packet(flags=0b0000_1010), b""),
        (connect_packet(flags=0b0001_1110, after=text("t") + text("")), b""),
        (connect_packet(flags=0b0100_0010, after=text("password")), b""),
        (connect_packet(after=b"x"), b""),
        (connect_packet(flags=0b0000_0110, after=text("will/#") + text("")), b""),
        (b"\x11" + connect_packet()[1:], b""),
        (publish_packet("t", b""), b""),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01", b""),
    ],
)
def test_refused_connects(data: bytes, answer: bytes) -> None:
    protocol = ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES)
    (event,) = events_of(protocol, data)
    assert isinstance(event, Failure)
    assert protocol.take_outgoing() == answer
    assert events_of(protocol, connect_packet()) == []


def test_what_follows_a_connect_waits_for_its_answer() -> None:
    protocol = ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES)
    events = events_of(protocol, connect_packet() + publish_packet("t", b"1", flags=2, packet_id=7))
    assert len(events) == 1
    protocol.accept(session_present=True)
    assert protocol.take_outgoing() == b"\x20\x02\x01\x00"
    assert protocol.next_event() == Publish("t", b"1", 1, packet_id=7)


def test_packets_of_a_publisher() -> None:
    protocol = connected()
    stream = (
        publish_packet("a/b", b"x", flags=1)
        + publish_packet("a/b", b"", flags=0b1100, packet_id=3)
        + b"\x62\x02\x00\x03\xc0\x00"
        + packet(0x82, b"\0\x09" + text("#") + b"\0" + text("a/+") + b"\2")
        + packet(0xA2, b"\0\x0a" + text("#"))
        + b"\x40\x02\x00\x01\x50\x02\x00\x05\x70\x02\x00\x01"
        + b"\xe0\x00"
        + publish_packet("after", b"goodbye")
    )
    assert events_of(protocol, stream) == [
        Publish("a/b", b"x", 0, retain=True),
        Publish("a/b", b"", 2, dup=True, packet_id=3),
        Release(3),
        Disconnect(with_will=False, session_expiry_s=None),
    ]
    assert protocol.take_outgoing() == b"\xd0\x00\x90\x04\x00\x09\x80\x80\xb0\x02\x00\x0a\x62\x02\x00\x05"


def test_a_flood_of_pings_is_answered_and_counted() -> None:
    protocol = connected()
    before = protocol.packets_received
    stream = b"\xc0\x00" * 1_000 + publish_packet("a/b", b"x") + b"\xc0\x00" * 2 + b"\xc0"
    assert events_of(protocol, stream) == [Publish("a/b", b"x", 0)]
    assert protocol.take_outgoing() == b"\xd0\x00" * 1_002
    assert protocol.packets_received == before + 1_003
    assert protocol.buffered == 1
    assert events_of(protocol, b"\x00") == []
    assert protocol.take_outgoing() == b"\xd0\x00"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (connect_packet(), Reason.PROTOCOL_ERROR),
        (publish_packet("t", b"", flags=6, packet_id=1), Reason.MALFORMED_PACKET),
        (publish_packet("t", b"", flags=8), Reason.MALFORMED_PACKET),
        (publish_packet("t", b"", flags=2, packet_id=0), Reason.PROTOCOL_ERROR),
        (publish_packet("t/#", b""), Reason.TOPIC_NAME_INVALID),
        (publish_packet("", b""), Reason.TOPIC_NAME_INVALID),
        (publish_packet("a\0b", b""), Reason.MALFORMED_PACKET),
        (packet(0x30, b"\0\2\xc3\x28"), Reason.MALFORMED_PACKET),
        (packet(0x30, b"\0\3\xed\xa0\x80"), Reason.MALFORMED_PACKET),
        (packet(0x30, b"\0\x09t"), Reason.MALFORMED_PACKET),
        (packet(0x32, b"\0\1t\0"), Reason.MALFORMED_PACKET),
        (b"\x60\x02\x00\x01", Reason.MALFORMED_PACKET),
        (b"\x62\x03\x00\x01\x00", Reason.MALFORMED_PACKET),
        (b"\x62\x02\x00\x00", Reason.PROTOCOL_ERROR),
        (b"\xc0\x01\x00", Reason.MALFORMED_PACKET),
        (b"\xe0\x01\x00", Reason.MALFORMED_PACKET),
        (packet(0x82, b"\0\1"), Reason.PROTOCOL_ERROR),
        (packet(0x80, b"\0\1" + text("t") + b"\0"), Reason.MALFORMED_PACKET),
        (packet(0x82, b"\0\1" + text("t") + b"\3"), Reason.MALFORMED_PACKET),
        (packet(0x82, b"\0\1" + text("a/#/b") + b"\0"), Reason.MALFORMED_PACKET),
        (packet(0xA2, b"\0\1"), Reason.PROTOCOL_ERROR),
        (b"\x20\x02\x00\x00", Reason.PROTOCOL_ERROR),
        (b"\x00\x00", Reason.PROTOCOL_ERROR),
        (b"\xf0\x00", Reason.PROTOCOL_ERROR),
        (b"\x30\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET),
        (b"\x30\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
    ],
)
def test_violations_end_the_connection(data: bytes, reason: Reason) -> None:
    protocol = connected()
    assert failure_of(protocol, data) is reason
    assert protocol.take_outgoing() == b"", "3.1.1 has no DISCONNECT from the server"


def test_a_giant_packet_is_refused_before_it_is_buffered() -> None:
    protocol = connected()
    assert failure_of(protocol, b"\x30\xe9\x07") is Reason.PACKET_TOO_LARGE
    assert protocol.buffered == 0


def test_the_largest_packet_is_taken() -> None:
    protocol = connected()
    payload = b"x" * (MAX_PACKET_BYTES - 6)
    data = publish_packet("t", payload)
    assert len(data) == MAX_PACKET_BYTES
    assert events_of(protocol, data) == [Publish("t", payload, 0)]


def test_mqtt5_publish_with_properties_and_alias() -> None:
    protocol = connected(5, aliases=2)
    properties = b"\x23\x00\x01" + b"\x26" + text("room") + text("hall") + b"\x03" + text("application/json")
    first = publish_packet("t/1", b"a", properties=varint(len(properties)) + properties)
    second = publish_packet("", b"b", properties=b"\x03\x23\x00\x01")
    one, two = events_of(protocol, first + second)
    assert isinstance(one, Publish)
    assert isinstance(two, Publish)
    assert (one.topic, two.topic, two.payload) == ("t/1", "t/1", b"b")
    assert one.properties[Property.USER_PROPERTY] == [("room", "hall")]
    assert one.properties[Property.CONTENT_TYPE] == "application/json"


def test_mqtt5_aliases_keep_a_bounded_length_of_topics() -> None:
    """Otherwise 32 aliases of 64 KB would take 2 MB for each connection."""
    protocol = ServerProtocol(max_packet_bytes=10_000, topic_aliases=TopicAliases(2))
    events_of(protocol, connect_packet(version=5))
    protocol.accept(session_present=False)

    def set_alias(number: int, chars: int) -> bytes:
        return publish_packet("t" * chars, b"", properties=b"\x03\x23\0" + bytes((number,)))

    assert len(events_of(protocol, set_alias(1, 2_000) + set_alias(1, 1_500) + set_alias(2, 548))) == 3
    assert failure_of(protocol, set_alias(2, 549)) is Reason.QUOTA_EXCEEDED


def test_mqtt5_aliases_of_all_connections_have_a_bounded_memory() -> None:
    memory = AliasMemory(1_000)

    def connection() -> ServerProtocol:
        protocol = ServerProtocol(max_packet_bytes=10_000, topic_aliases=TopicAliases(9, memory))
        events_of(protocol, connect_packet(version=5))
        protocol.accept(session_present=False)
        return protocol

    def set_alias(number: int, topic: str) -> bytes:
        return publish_packet(topic, b"", properties=b"\x03\x23\0" + bytes((number,)))

    first, second = connection(), connection()
    assert len(events_of(first, set_alias(1, "t" * 300) + set_alias(2, "u" * 200) + set_alias(1, "v" * 100))) == 3
    # What was replaced is free again, and each alias takes its share of a dictionary.
    assert 500 < memory.bytes < 600
    assert failure_of(second, set_alias(1, "ü" * 400)) is Reason.QUOTA_EXCEEDED
    third = connection()
    assert len(events_of(third, set_alias(1, "w" * 100) + set_alias(1, "x") + set_alias(1, "y" * 100))) == 3
    first.close()
    first.close()
    assert 200 < memory.bytes < 250
    third.close()
    assert memory.bytes == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (publish_packet("", b"", properties=b"\0"), Reason.PROTOCOL_ERROR),
        (publish_packet("", b"", properties=b"\x03\x23\x00\x01"), Reason.PROTOCOL_ERROR),
        (publish_packet("t", b"", properties=b"\x03\x23\x00\x03"), Reason.TOPIC_ALIAS_INVALID),
        (publish_packet("t", b"", properties=b"\x03\x23\x00\x00"), Reason.TOPIC_ALIAS_INVALID),
        (publish_packet("t", b"", properties=b"\x02\x01\x02"), Reason.PROTOCOL_ERROR),
        (publish_packet("t", b"", properties=b"\x04\x01\x00\x01\x00"), Reason.PROTOCOL_ERROR),
        (publish_packet("t", b"", properties=b"\x05\x11\x00\x00\x00\x01"), Reason.PROTOCOL_ERROR),
        (publish_packet("t", b"", properties=b"\x02\x7f\x00"), Reason.MALFORMED_PACKET),
        (publish_packet("t", b"", properties=b"\x80\x00"), Reason.MALFORMED_PACKET),
        (publish_packet("t", b"", properties=b"\x09\x01"), Reason.MALFORMED_PACKET),
        (publish_packet("t", b"", properties=b"\x06\x08" + text("a/#")), Reason.TOPIC_NAME_INVALID),
        (packet(0xE0, b"\x00\x05\x11\x00\x00\x00\x09"), Reason.PROTOCOL_ERROR),
        (b"\xf0\x00", Reason.PROTOCOL_ERROR),
    ],
)
def test_mqtt5_violations_are_told(data: bytes, reason: Reason) -> None:
    protocol = connected(5, aliases=2)
    assert failure_of(protocol, data) is reason
    assert protocol.take_outgoing() == bytes((0xE0, 1, reason))


def test_mqtt5_answers() -> None:
    protocol = connected(5)
    protocol.acknowledge(PacketType.PUBACK, 1)
    protocol.acknowledge(PacketType.PUBREC, 2, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
    assert protocol.take_outgoing() == b"\x40\x02\x00\x01\x50\x03\x00\x02\x83"
    events_of(protocol, packet(0x82, b"\0\x09\0" + text("#") + b"\0") + packet(0xA2, b"\0\x0a\0" + text("#")))
    assert protocol.take_outgoing() == b"\x90\x04\x00\x09\x00\x87\xb0\x04\x00\x0a\x00\x11"
    assert events_of(protocol, b"\xe0\x01\x04") == [Disconnect(with_will=True, session_expiry_s=None)]


def test_mqtt5_connack_tells_our_limits() -> None:
    protocol = ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES)
    (event,) = events_of(protocol, connect_packet("", version=5))
    assert isinstance(event, Connect)
    told = connack_properties(
        event,
        client_id="auto-1",
        receive_maximum=9,
        max_packet_bytes=1000,
        topic_alias_maximum=None,
        session_expiry=5,
    )
    protocol.accept(session_present=False, properties=told)
    assert protocol.take_outgoing() == packet(
        0x20,
        b"\0\0" + varint(28) + b"\x21\0\x09\x27\0\0\x03\xe8\x28\0\x29\0\x2a\0\x12" + text("auto-1") + b"\x11\0\0\0\x05",
    )


def test_mqtt5_extended_authentication_is_refused() -> None:
    protocol = ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES)
    properties = b"\x15" + text("SCRAM")
    body = text("MQTT") + b"\5\2\0\0" + varint(len(properties)) + properties + text("c")
    (event,) = events_of(protocol, packet(0x10, body))
    assert isinstance(event, Failure)
    assert protocol.take_outgoing() == b"\x20\x03\x00\x8c\x00"


CONVERSATIONS = [
    connect_packet()
    + publish_packet("devices/1/temperature", b'{"t": 21.5}', flags=2, packet_id=1)
    + publish_packet("t", b"y" * 200, flags=4, packet_id=2)
    + b"\x62\x02\x00\x02\xc0\x00\xc0\x00\xc0\x00\xe0\x00",
    connect_packet(version=5)
    + publish_packet("t", b"z", flags=2, packet_id=1, properties=b"\x03\x23\x00\x01")
    + publish_packet("", b"z" * 150, properties=b"\x03\x23\x00\x01")
    + b"\xe0\x00",
]


def play(chunks: list[bytes]) -> tuple[list[Event], bytes]:
    """Feed chunk by chunk, answering a CONNECT at once."""
    protocol = ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES, topic_aliases=TopicAliases(5))
    events: list[Event] = []
    sent = b""
    for chunk in chunks:
        protocol.feed(chunk)
        while True:
            event = protocol.next_event()
            if event is None:
                break
            events.append(event)
            if isinstance(event, Connect):
                protocol.accept(session_present=False)
            assert len(events) <= 10_000
        sent += protocol.take_outgoing()
        assert protocol.buffered <= MAX_PACKET_BYTES
    return events, sent


@pytest.mark.parametrize("stream", CONVERSATIONS)
def test_byte_by_byte_is_the_same_as_at_once(stream: bytes) -> None:
    assert play([bytes((byte,)) for byte in stream]) == play([stream])


@given(st.sampled_from(CONVERSATIONS), st.lists(st.integers(0, 400), max_size=8))
def test_any_cut_is_the_same_as_at_once(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    assert play(chunks) == play([stream])


@settings(max_examples=500)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20), st.sampled_from([b"", *CONVERSATIONS]))
def test_no_bytes_crash_it_or_make_it_hold_more_than_a_packet(chunks: list[bytes], before: bytes) -> None:
    play([before, *chunks] if before else chunks)


@settings(max_examples=500)
@given(st.sampled_from(CONVERSATIONS), st.data())
def test_no_damage_to_a_conversation_crashes_it(stream: bytes, data: st.DataObject) -> None:
    damaged = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    events, _sent = play([bytes(damaged)])
    assert all(not isinstance(event, Failure) for event in events[:-1]), "nothing comes after a failure"


@pytest.mark.parametrize(
    "data", [b"\x60\xff\xff\x01", b"\x80\xff\xff\xff\xff\x01", b"\xf0\xff\xff\x01"], ids=["PUBREL", "SUBSCRIBE", "AUTH"]
)
def test_the_reason_of_a_refusal_does_not_depend_on_how_bytes_are_cut(data: bytes) -> None:
    whole, bytewise = (ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES) for _ in range(2))
    whole.feed(data)
    events: list[Event | None] = []
    for byte in data:
        bytewise.feed(bytes([byte]))
        events.append(bytewise.next_event())
    assert whole.next_event() == next(event for event in events if event is not None)


def test_every_property_survives_encoding() -> None:
    found = {Property.SUBSCRIPTION_ID: 200, Property.USER_PROPERTY: [("a", "b")]}
    assert props.decode_all(props.encode(found), props.SUBSCRIBE) == found


@pytest.mark.parametrize("limit", [None, 64, 20])
def test_a_client_is_referred_to_another_server_if_the_packet_fits(limit: int | None) -> None:
    server = "mqtt.example:8883"
    given = b"" if limit is None else b"\x27" + limit.to_bytes(4, "big")
    protocol = ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES)
    events_of(protocol, connect_packet(version=5, properties=varint(len(given)) + given))
    assert protocol.accept(session_present=False)
    protocol.take_outgoing()
    protocol.disconnect(Reason.USE_ANOTHER_SERVER, server)
    reference = b"\x1c" + text(server)
    whole = packet(0xE0, b"\x9c" + varint(len(reference)) + reference)
    assert protocol.take_outgoing() == (b"\xe0\x01\x9c" if limit == 20 else whole)
