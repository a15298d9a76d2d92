"""Paragraphs of the MQTT standards in which the proxy once differed from other servers."""

from __future__ import annotations

import struct

import pytest
from mqtt_packets import connect_packet, connected, events_of, failure_of, packet, publish_packet, text, varint

from isotherm.mqtt_proxy.codec.packets import Connect, PacketType, Publish
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.protocol.connack import connack_properties
from isotherm.mqtt_proxy.protocol.events import Disconnect, Failure
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol

CONTROL_CHARACTERS = ["\u0001", "\u001f", "\u007f", "\u009f", "\ufdd0", "\ufdef", "\ufffe", "\uffff", "\U0010ffff"]


@pytest.mark.parametrize(
    ("data", "with_will"),
    [(b"\xe0\x00", False), (b"\xe0\x01\x00", False)]
    + [(bytes((0xE0, 1, code)), True) for code in (0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x97, 0x98, 0x99)],
)
def test_only_a_normal_disconnect_removes_the_will(data: bytes, with_will: bool) -> None:
    """MQTT-3.1.2-8 and 3.14.4: the will is removed on reason code 0x00 alone."""
    assert events_of(connected(5), data) == [Disconnect(with_will=with_will, session_expiry_s=None)]


@pytest.mark.parametrize("packet_type", [0x40, 0x50, 0x62, 0x70])
@pytest.mark.parametrize("code", [0x01, 0x7F, 0x84, 0xFF])
def test_an_unknown_reason_code_in_an_acknowledgement_is_a_protocol_error(packet_type: int, code: int) -> None:
    """MQTT-3.4.2-1, 3.5.2-1, 3.6.2-1, 3.7.2-1: the sender MUST use a code of the table."""
    assert failure_of(connected(5), bytes((packet_type, 3, 0, 1, code))) is Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("code", [0x01, 0x8B, 0x8E, 0xFF])
def test_an_unknown_reason_code_in_a_disconnect_is_a_protocol_error(code: int) -> None:
    """MQTT-3.14.2-1; 0x8B and 0x8E are a server's only."""
    assert failure_of(connected(5), bytes((0xE0, 1, code))) is Reason.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("packet_type", "code"), [(0x40, 0x10), (0x40, 0x97), (0x50, 0x87), (0x62, 0x92), (0x70, 0x92), (0x62, 0)]
)
def test_the_reason_codes_of_the_tables_are_taken(packet_type: int, code: int) -> None:
    assert not any(isinstance(e, Failure) for e in events_of(connected(5), bytes((packet_type, 3, 0, 1, code))))


@pytest.mark.parametrize("first", [0x0A, 0x00, 0x20, 0x90, 0xB0, 0xD0, 0x60, 0x36, 0x38, 0xF0, 0xC1, 0x10])
@pytest.mark.parametrize("more", [b"", b"\xc0"])
def test_a_forbidden_packet_is_refused_at_its_first_byte(first: int, more: bytes) -> None:
    failure_of(connected(), bytes((first,)) + more)


@pytest.mark.parametrize("data", [b"\x30", b"\x16", b"\x00", b"\x12", b"\xe0", b"G"])
def test_what_is_not_a_connect_is_refused_at_its_first_byte(data: bytes) -> None:
    failure_of(ServerProtocol(max_packet_bytes=1000), data)


def test_a_large_connect_is_refused_at_its_header() -> None:
    protocol = ServerProtocol(max_packet_bytes=1000, max_connect_bytes=100)
    (event,) = events_of(protocol, b"\x10\x64")
    assert isinstance(event, Failure)
    assert event.reason is Reason.PACKET_TOO_LARGE


def _connecting(connect: bytes, *, allow: bool = False) -> tuple[Connect | Failure, bytes]:
    protocol = ServerProtocol(max_packet_bytes=1000, allow_control_characters=allow)
    (event,) = events_of(protocol, connect)
    assert isinstance(event, Connect | Failure)
    return event, protocol.take_outgoing()


@pytest.mark.parametrize("character", CONTROL_CHARACTERS)
def test_control_characters_and_non_characters_are_refused(character: str) -> None:
    """1.5.4: SHOULD NOT be sent, MAY be treated as malformed; they break logs, ids and tables behind us."""
    odd = f"a{character}b"
    assert _connecting(connect_packet(odd))[1] == b"\x20\x02\x00\x02"
    assert _connecting(connect_packet(odd, version=5))[1] == b"\x20\x03\x00\x85\x00"
    assert _connecting(connect_packet(flags=0x82, after=text(odd)))[1] == b"\x20\x02\x00\x04"
    assert _connecting(connect_packet(version=5, flags=0x82, after=text(odd)))[1] == b"\x20\x03\x00\x86\x00"
    will, _ = _connecting(connect_packet(flags=0x06, after=text(odd) + text("")))
    assert isinstance(will, Failure)
    assert failure_of(connected(5), publish_packet(odd, b"", properties=b"\0")) is Reason.TOPIC_NAME_INVALID
    response_topic = b"\x08" + text(odd)
    properties = varint(len(response_topic)) + response_topic
    assert failure_of(connected(5), publish_packet("t", b"", properties=properties)) is Reason.TOPIC_NAME_INVALID
    assert failure_of(connected(), packet(0x82, b"\0\1" + text(odd) + b"\0")) is Reason.MALFORMED_PACKET
    assert failure_of(connected(), packet(0xA2, b"\0\1" + text(odd))) is Reason.MALFORMED_PACKET


@pytest.mark.parametrize("character", CONTROL_CHARACTERS)
def test_a_setting_allows_control_characters(character: str) -> None:
    odd = f"a{character}b"
    event, _ = _connecting(connect_packet(odd, flags=0x86, after=text(odd) + text("") + text(odd)), allow=True)
    assert isinstance(event, Connect)
    assert (event.client_id, event.username) == (odd, odd)
    protocol = ServerProtocol(max_packet_bytes=1000, allow_control_characters=True)
    events_of(protocol, connect_packet())
    protocol.accept(session_present=False)
    assert events_of(protocol, publish_packet(odd, b"")) == [Publish(odd, b"", 0)]
    assert events_of(protocol, packet(0x82, b"\0\1" + text(odd) + b"\0")) == []
    assert failure_of(connected(), publish_packet(odd, b"")) is Reason.TOPIC_NAME_INVALID, "remembered for neither"


@pytest.mark.parametrize("letter", ["\u00a0", "\u00e9", "\u2028", "\U0001f321", "\ue000", " ", "\ufffd"])
def test_other_characters_are_taken(letter: str) -> None:
    assert events_of(connected(), publish_packet(f"a{letter}", b"")) == [Publish(f"a{letter}", b"", 0)]


def _with_maximum(most: int, *, client_id: str = "c") -> bytes:
    properties = b"\x27" + struct.pack(">I", most)
    body = text("MQTT") + b"\5\2\0\0" + varint(len(properties)) + properties + text(client_id)
    return packet(0x10, body)


def _accepted(most: int, *, client_id: str = "c") -> tuple[ServerProtocol, bool]:
    protocol = ServerProtocol(max_packet_bytes=1000)
    (event,) = events_of(protocol, _with_maximum(most, client_id=client_id))
    assert isinstance(event, Connect)
    told = connack_properties(event, client_id="auto-1", receive_maximum=9, max_packet_bytes=1000)
    return protocol, protocol.accept(session_present=False, properties=told)


@pytest.mark.parametrize("client_id", ["", "c"])
@pytest.mark.parametrize("most", range(1, 60))
def test_no_packet_exceeds_the_clients_maximum_packet_size(most: int, client_id: str) -> None:
    """MQTT-3.1.2-24, for CONNACK, SUBACK, UNSUBACK, PUBACK with a reason and DISCONNECT."""
    protocol = ServerProtocol(max_packet_bytes=1000)
    (event,) = events_of(protocol, _with_maximum(most, client_id=client_id))
    if isinstance(event, Failure):
        assert most < 5
        assert protocol.take_outgoing() == b""
        return
    protocol, is_accepted = _accepted(most, client_id=client_id)
    if not is_accepted:
        protocol.refuse(Reason.PACKET_TOO_LARGE)
        assert protocol.take_outgoing() == b"\x20\x03\x00\x95\x00"
        return
    connack = protocol.take_outgoing()
    assert len(connack) <= most
    assert b"\x27\0\0\x03\xe8" in connack, "our own limits are never left out"
    assert b"\x21\0\x09" in connack
    assert (b"auto-1" in connack) == (not client_id)
    protocol.acknowledge(PacketType.PUBACK, 1, Reason.NOT_AUTHORIZED)
    assert len(protocol.take_outgoing()) <= most
    for number, filters in ((0x82, 1), (0x82, 30), (0xA2, 30)):
        protocol, _ = _accepted(most, client_id=client_id)
        protocol.take_outgoing()
        body = b"".join(text("t") + (b"\0" if number == 0x82 else b"") for _ in range(filters))
        events = events_of(protocol, packet(number, b"\0\x09\0" + body))
        sent = protocol.take_outgoing()
        assert len(sent) <= most
        if events:
            assert isinstance(events[0], Failure)
            assert sent == b"\xe0\x01\x95"


def test_a_client_without_a_maximum_packet_size_is_told_everything() -> None:
    protocol = connected(5)
    assert events_of(protocol, packet(0x82, b"\0\x09\0" + (text("t") + b"\0") * 200)) == []
    assert len(protocol.take_outgoing()) == 3 + 3 + 200
