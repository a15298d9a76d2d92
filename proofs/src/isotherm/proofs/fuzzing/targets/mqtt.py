"""MQTT 3.1.1 and 5: the connection's state machine, properties, and the translation of publishes into records."""

from __future__ import annotations

from collections.abc import Callable

import isotherm.schemas
from isotherm.mqtt_proxy.codec import properties as props
from isotherm.mqtt_proxy.codec.errors import PacketError
from isotherm.mqtt_proxy.codec.packets import Connect, PacketType, Publish
from isotherm.mqtt_proxy.ingest.configuration import build_rules
from isotherm.mqtt_proxy.ingest.routes import Router, kcql_routes, regex_routes
from isotherm.mqtt_proxy.ingest.translation import IngestContext, Translator
from isotherm.mqtt_proxy.protocol.events import Event, Release
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.protocol.topic_aliases import TopicAliases
from isotherm.mqtt_proxy.settings import DeadLetterSettings, ProxySettings
from isotherm.proofs.fuzzing.target import Target, expect
from isotherm.servicekit.avro import encoder

_ALLOWED = (props.CONNECT, props.WILL, props.PUBLISH, props.ACKNOWLEDGEMENT, props.SUBSCRIBE, props.DISCONNECT)
_NOW_MS = 1_790_000_000_000
RULES = build_rules(ProxySettings(routes="-", allow_anonymous=True, dead_letters=DeadLetterSettings(rate="")))
"""The default rules of translation, but each invalid publish leaves a dead letter."""
_ROUTES = """
INSERT INTO temperature SELECT t AS value, id AS device_id, u AS unit FROM devices/+/temperature;
INSERT INTO thermostat.data SELECT * FROM `devices/#`;
INSERT INTO _value.target SELECT value, nested.*, _header.h AS h FROM `dynamic/#`;
INSERT INTO events SELECT * FROM `devices/+/event` WITHFORMAT RAW
"""


def properties_target() -> Callable[[bytes], None]:
    """Return the check that decoded properties survive encoding."""

    def run(data: bytes) -> None:
        allowed = _ALLOWED[data[0] % len(_ALLOWED)] if data else props.CONNECT
        try:
            found = props.decode_all(data[1:], allowed)
        except PacketError:
            return
        if data[1:]:
            expect(props.decode_all(props.encode(found), allowed) == found, "properties change when encoded")

    return run


def connection_target() -> Callable[[bytes], None]:
    """Return the check that events and answers do not depend on how a client's bytes are cut."""

    def run(data: bytes) -> None:
        step, stream = (data[0] % 8 + 1, data[1:]) if data else (1, b"")
        whole = _talk([stream])
        expect(_talk([stream[at : at + step] for at in range(0, len(stream), step)]) == whole, "the cuts matter")

    return run


def _talk(chunks: list[bytes]) -> tuple[list[Event], bytes]:
    """Return the events of a connection that accepts and acknowledges everything, and the server's bytes."""
    protocol = ServerProtocol(max_packet_bytes=8_192, max_connect_bytes=2_048, topic_aliases=TopicAliases(8))
    events: list[Event] = []
    for chunk in chunks:
        protocol.feed(chunk)
        while (event := protocol.next_event()) is not None:
            events.append(event)
            if isinstance(event, Connect):
                protocol.accept(session_present=False)
            elif isinstance(event, Publish) and event.qos:
                protocol.acknowledge(PacketType.PUBACK if event.qos == 1 else PacketType.PUBREC, event.packet_id)
            elif isinstance(event, Release):
                protocol.acknowledge(PacketType.PUBCOMP, event.packet_id)
        expect(protocol.buffered <= 8_192, "an incomplete packet is buffered beyond the limit")
    return events, protocol.take_outgoing()


def ingest_target() -> Callable[[bytes], None]:
    """Return the check that every publish of MQTT 5 becomes records or a dead letter."""
    routes = kcql_routes(_ROUTES, device_level=None, metrics=frozenset(RULES.units))
    routes += regex_routes("brightness:.*/brightness", device_level=None)
    encode = encoder(isotherm.schemas.schema("SensorReading", 1), 1)
    translator = Translator(
        Router(routes, first_match_only=False),
        dict.fromkeys(("temperature", "thermostat.data", "brightness"), encode),
        RULES,
    )

    def run(data: bytes) -> None:
        protocol = ServerProtocol(max_packet_bytes=8_192)
        protocol.feed(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00" + data)
        protocol.next_event()
        protocol.accept(session_present=False)
        while isinstance(event := protocol.next_event(), Publish):
            translated = translator.translate(event, IngestContext("client", _NOW_MS))
            expect(bool(translated.records), "a publish left no record")
            expect(len(translated.records) >= len(translated.dead_letters), "a dead letter is missing")

    return run


_PACKETS = (
    b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02c1",
    b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00",
    b"\x32\x0b\x00\x03a/b\x00\x01{}",
    b"\x34\x09\x00\x03a/b\x00\x02",
    b"\x62\x02\x00\x01",
    b"\x82\x06\x00\x01\x00\x01#\x00",
    b"\xa2\x05\x00\x01\x00\x01#",
    b"\xc0\x00",
    b"\xe0\x00",
)
_INGEST = (b"\x00\x15devices/a/temperature", b"\x00\x09dynamic/x", b"\x03\x00\x10application/json", b'{"value": 1}')

TARGETS = (
    Target(
        name="mqtt-properties",
        make=properties_target,
        dictionary=(*(bytes([number]) for number in props.Property), b"\x26\x00\x01a\x00\x01b", b"\x23\x00\x01"),
    ),
    Target(
        name="mqtt-connection",
        make=connection_target,
        dictionary=_PACKETS,
    ),
    Target(
        name="mqtt-ingest",
        make=ingest_target,
        dictionary=(*_INGEST, b"\x30", b"\x32"),
    ),
)
