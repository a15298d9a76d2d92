"""The compiled way of MQTT publishes: the same records, sessions and acknowledgements as without it, for any bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, cast

import isotherm.schemas
from isotherm.mqtt_proxy.codec.packets import PacketType, Publish
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.qos1 import Qos1Receiver
from isotherm.mqtt_proxy.delivery.qos2 import Qos2Receiver
from isotherm.mqtt_proxy.hotpath.compiled import (
    CompiledSkim,
    FieldNames,
    PlainPublishes,
    ReadingEncoder,
    SessionEncoder,
)
from isotherm.mqtt_proxy.hotpath.plain_ingest import PlainIngest
from isotherm.mqtt_proxy.ingest.inflight_gate import InflightGate
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.routes import Router, kcql_routes
from isotherm.mqtt_proxy.ingest.translation import DevicePolicy, IngestContext, Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.protocol.ack_queue import AckQueue, PendingAcks
from isotherm.mqtt_proxy.protocol.events import Release
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.session_source import SESSION
from isotherm.mqtt_proxy.sessions.records import EncodeSession, encode_with, from_record
from isotherm.mqtt_proxy.sessions.skimming import SessionSkim
from isotherm.mqtt_proxy.sessions.store import Session, StoredState
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWrite
from isotherm.proofs.fuzzing.target import Target, expect
from isotherm.proofs.fuzzing.targets.mqtt import RULES
from isotherm.proofs.fuzzing.targets.mqtt_compiled.streams import payload, stream
from isotherm.servicekit.avro import WireFormatError, WriterSchema, encoder, parse, read_value

_NOW_MS = 1_790_000_000_000
_CONTEXT = IngestContext("client", _NOW_MS)
_WAYS: tuple[tuple[str, DevicePolicy], ...] = (
    ("devices/a/temperature", "payload"),
    ("plain/temperature", "payload"),
    ("devices/a/temperature", "topic"),
)
_ROUTES = kcql_routes(
    """
INSERT INTO readings SELECT t AS value, id AS device_id, u AS unit, ts AS event_time, seq AS sequence
    FROM devices/+/temperature;
INSERT INTO readings SELECT * FROM `plain/#`
""",
    device_level=None,
    metrics=frozenset(),
)
_SCHEMA_ID = 7
_SESSION_WRITER = WriterSchema(_SCHEMA_ID, SESSION, parse(SESSION))
_SESSION_HEADER = b"\0" + _SCHEMA_ID.to_bytes(4, "big")
_ENCODE = encoder(isotherm.schemas.schema("SensorReading", 1), 1)
_CONNECTS = (
    b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c",
    b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c",
)


def readings_target() -> Callable[[bytes], None]:
    """Return the check that the compiled encoder writes what the translator writes, or declines.

    Each input comes to a route that names the fields, to one that takes all, and from a client bound to its device.
    """
    checks = [_readings_check(topic, policy) for topic, policy in _WAYS]

    def run(data: bytes) -> None:
        for check in checks:
            check(data)

    return run


def _readings_check(topic: str, policy: DevicePolicy) -> Callable[[bytes], None]:
    translator = _translator(policy)
    route = translator.plain_route(topic, _CONTEXT)
    assert route is not None
    compiled = ReadingEncoder(
        route.header,
        FieldNames(route.names),
        is_strict=route.is_strict,
        device_id=route.device_id,
        is_bound=route.is_bound,
        metric=route.metric,
        unit=route.unit,
        most_readings=route.most_readings,
    )

    def check(data: bytes) -> None:
        found = compiled.encode_payload(data, _NOW_MS, translator.take_sequences(_NOW_MS, 0))
        if found is None:
            return
        translated = translator.translate(Publish(topic, data, 1), _CONTEXT)
        expect(not translated.dead_letters, "what is a dead letter was encoded")
        expect([(record.key, record.value) for record in translated.records] == found, "other records")

    return check


def publishes_target() -> Callable[[bytes], None]:
    """Return the check that a connection's bytes give the same records and PUBACKs with the compiled way."""

    def run(data: bytes) -> None:
        version, step, stream = (data[0] % 2, data[0] % 64 + 1, data[1:]) if data else (0, 1, b"")
        chunks = [stream[at : at + step * 8] for at in range(0, len(stream), step * 8)]
        found, expected = (_Server(is_compiled=compiled, is_durable=step % 2 == 0) for compiled in (True, False))
        for server in (found, expected):
            server.read(_CONNECTS[version], chunks)
        expect(found.records == expected.records, "other records")
        expect([*found.owed()] == [*expected.owed()], "other acknowledgements")
        expect(found.protocol.take_outgoing() == expected.protocol.take_outgoing(), "other answers")
        expect(found.unreleased() == expected.unreleased(), "another session")
        expect(found.protocol.packets_received == expected.protocol.packets_received, "another number of packets")

    return run


def sessions_target() -> Callable[[bytes], None]:
    """Return the check that compiled code skims of a stored session what the other way does, and writes it so.

    An input is the length of the client id, the client id, and what follows the header of the wire format.
    """
    found, expected = CompiledSkim(_SCHEMA_ID), SessionSkim(_SCHEMA_ID)
    otherwise = encode_with(encoder(SESSION, _SCHEMA_ID))
    encoders = SessionEncoder(_SCHEMA_ID, otherwise), otherwise

    def run(data: bytes) -> None:
        size = data[0] if data else 0
        client_id, value = data[1 : 1 + size].decode("utf-8", "replace"), data[1 + size :]
        for header in (_SESSION_HEADER, b""):
            expect(found(client_id, header + value) == expected(client_id, header + value), "skimmed otherwise")
        try:
            state = from_record(read_value(_SESSION_HEADER + value, _SESSION_WRITER))
        except WireFormatError:
            return
        written, right = (_encoded(encode, client_id, state) for encode in encoders)
        expect(written == right, "written otherwise")

    return run


def _encoded(encode: EncodeSession, client_id: str, state: StoredState) -> bytes | None:
    """Return the encoded state; None for one that cannot be written."""
    try:
        return encode(client_id, state, 1, _NOW_MS)
    except WireFormatError:
        return None


class _Server:
    """One connection, whose producer is a list; its transactions are committed after each chunk of bytes."""

    left = 1_000_000
    direct = None
    on_polled: Callable[[], None]

    def __init__(self, *, is_compiled: bool, is_durable: bool) -> None:
        self.records: list[ProducerRecord] = []
        self._writes: list[SessionWrite] = []
        self._session = Session("client", durable=is_durable)
        self.protocol = ServerProtocol(max_packet_bytes=8_192)
        self.producer = self
        self._translator = _translator()
        metrics = Metrics()
        pipeline = IngestPipeline(
            translator=self._translator,
            producer=cast(Any, self),
            transactions=cast(Any, self),
            gate=InflightGate(1_000_000, 1_000_000_000, metrics),
            metrics=metrics,
            clock=lambda: 0.0,
        )
        self._acks = AckQueue(self.protocol, PacketType.PUBACK, acknowledged=metrics.acknowledged, on_sent=lambda: None)
        port: Any = self
        receiver = Qos1Receiver(pipeline, self.protocol, port, context=_CONTEXT, acks=self._acks)
        self._qos2 = Qos2Receiver(
            pipeline, self.protocol, port, context=_CONTEXT, receive_maximum=100, on_sent=lambda: None
        )
        self._qos2.attach(self._session)
        self._plain: PlainPublishes | None = None
        if is_compiled:
            self._plain = PlainIngest(pipeline, 1_000_000).publishes_of(
                receiver,
                self._qos2,
                protocol=self.protocol,
                access=cast(Any, _OpenToAll),
                rates=None,
                receive_maximum=1_000_000,
                may_publish=lambda _topic: True,
            )

    def produce(self, topic: str, *, value: bytes, key: str, headers: Any, on_delivery: object) -> None:
        """Keep a record."""
        self.records.append(ProducerRecord(topic, key, value, headers))

    def submit(self, write: SessionWrite) -> None:
        """Store a session write with the next commit."""
        self._writes.append(write)

    def close(self, *_why: object) -> None:
        """End the connection."""
        self.protocol.close()

    def flush(self) -> None:
        """Leave the answers where they are."""

    def _commit(self) -> None:
        writes, self._writes = self._writes, []
        for write in writes:
            self.records += write.records
            self._session.stored = write.apply(self._session.stored)
            write.settle(Outcome.COMMITTED)
        for write in writes:
            write.on_decided(Outcome.COMMITTED)

    def count_produced(self, records: int) -> None:
        """Ignore how many records are in flight."""

    def use_direct(self, _make: object) -> None:
        """Produce through `produce`: no record is reported here, so librdkafka would have it for ever."""

    def read(self, connect: bytes, chunks: list[bytes]) -> None:
        """Handle a CONNECT and what follows."""
        self.protocol.feed(connect)
        self.protocol.next_event()
        self.protocol.accept(session_present=False)
        for chunk in chunks:
            self.protocol.feed(chunk)
            while True:
                if self._plain is not None:
                    self._plain.take()
                event = self.protocol.next_event()
                if event is None:
                    break
                if isinstance(event, Release):
                    self._qos2.release(event.packet_id)
                elif isinstance(event, Publish) and event.qos == 2:
                    self._qos2.publish(event)
                elif isinstance(event, Publish):
                    self.records += self._translator.translate(event, _CONTEXT).records
                    if event.qos:
                        self._acks.expect(event.packet_id)
            self._commit()

    def owed(self) -> Iterator[int]:
        """The packet identifiers of the PUBACKs, in their order."""
        return (ack.packet_id for ack in self._acks.waiting if not isinstance(ack, PendingAcks))

    def unreleased(self) -> list[tuple[int, int]]:
        """The packet identifiers of the session, each with its checksum."""
        return [*self._session.committed.items()]


class _OpenToAll:
    acl = None


def _translator(policy: DevicePolicy = "payload") -> Translator:
    rules = replace(RULES, device_id=policy)
    return Translator(Router(_ROUTES, first_match_only=False), {"readings": _ENCODE}, rules)


_MEMBERS = (
    b'"t": 21.5',
    b'"id": "a"',
    b'"ts": 1767225600000',
    b'"seq": 7',
    b'"u": "K"',
    b"{",
    b"}",
    b"[",
    b"]",
    b": ",
    b", ",
)
_PLAIN = b"\x00\x15devices/a/temperature"


def _stream(random: Random) -> bytes:
    terms = random.randrange(256)
    return bytes((terms,)) + stream(random, terms % 2)


def _session(random: Random) -> bytes:
    """Return a client id and a stored session of it, mostly one that can be skimmed."""
    client = b"c" * random.choice((0, 1, 9, 63, 64, 70))
    length = 2 * len(client)
    text = (bytes((length,)) if length < 128 else bytes((length & 0x7F | 0x80, length >> 7))) + client
    pairs = random.choice((0, 0, 1, 3, 63))
    committed = (bytes((2 * pairs,)) + b"".join(_integer(random) for _ in range(2 * pairs)) if pairs else b"") + b"\0"
    expires = random.choice((b"\0", b"\2" + _integer(random)))
    username = random.choice((b"\0", b"\2\4ab", b"\2\4\xc3\xbc", b"\2\2\xff", b"\2\x80\1" + b"u" * 64))
    values = [_integer(random) for _ in range(4)]
    record = text + values[0] + values[1] + committed + values[2] + values[3] + expires + username
    return bytes((len(client),)) + client + record + random.choice((b"\0", b"\0", b"\0", b"\2", b""))


def _integer(random: Random) -> bytes:
    more = random.choice((0, 0, 1, 4, 5, 6, 8, 9))
    return bytes(0x80 | random.randrange(128) for _ in range(more)) + bytes((random.randrange(128),))


TARGETS = (
    Target(name="mqtt-plain-readings", make=readings_target, dictionary=_MEMBERS, generate=payload, is_native=True),
    Target(
        name="mqtt-plain-publishes",
        generate=_stream,
        is_native=True,
        make=publishes_target,
        dictionary=(
            b"\x32\x24" + _PLAIN + b'\x00\x01{"t": 1.5}',
            b"\x30\x21" + _PLAIN + b'{"t": 21}',
            b"\x32\x2c" + _PLAIN + b'\x00\x03[{"t": 1}, {"t":2}]',
            b"\x32\x21" + _PLAIN + b"\x00\x02\x00" + b'{"t":2}',
            b"\x32\x0d\x00\x07plain/a\x00\x0121",
            b"\x34\x24" + _PLAIN + b'\x00\x01{"t": 1.5}',
            b"\x34\x0d\x00\x07plain/a\x00\x0221",
            b"\x62\x02\x00\x01\x62\x02\x00\x02",
            b"\xc0\x00",
        ),
    ),
    Target(
        name="mqtt-plain-sessions",
        make=sessions_target,
        dictionary=(_session(Random(1)), _session(Random(2))),
        generate=_session,
        is_native=True,
    ),
)
