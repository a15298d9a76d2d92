"""The modelled parts of the QoS 2 model: Kafka, whose transactions the test decides, sockets, and devices."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, cast

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.delivery.transactional_writer import WriteResult
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.sessions.store import StoredState


class OneRecordTranslator:
    """A publish is one record that names it."""

    traces = None
    with_packet_ids = False

    def translate(self, publish: Publish, context: IngestContext) -> TranslatedPublish:
        record = ProducerRecord("readings", context.client_id, publish.payload, [])
        return TranslatedPublish([record], [("readings", 1)])

    def plain_route(self, _topic: str, _context: IngestContext) -> None:
        """Leave every payload to `translate`."""

    def take_sequences(self, _ingest_ms: int, _count: int) -> int:
        return 0

    def dead_letter(self, publish: Publish, context: IngestContext, _detail: str) -> TranslatedPublish:
        return TranslatedPublish(
            [ProducerRecord("dead letters", context.client_id, publish.payload, [])], dead_letters=["refused"]
        )


class Ledger:
    """Kafka: what was committed."""

    def __init__(self) -> None:
        self.readings: list[bytes] = []
        """Readings, and the dead letters of those that are refused."""
        self.states: dict[str, StoredState] = {}


def is_poison(payload: bytes) -> bool:
    """Whether Kafka refuses this record permanently."""
    return payload.endswith(b"poison")


class WriterThatTheTestDecides:
    """Its batches never reach a producer: the executor keeps them."""

    fault = "too large"

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def write(self, records: list[ProducerRecord]) -> WriteResult:
        raise NotImplementedError


class HeldTransactions(Executor):
    """Holds the one open transaction until the test decides it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: tuple[Future[Any], list[ProducerRecord]] | None = None

    @property
    def is_open(self) -> bool:
        return self._held is not None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert self._held is None, "two transactions at a time"
        future: Future[Any] = Future()
        assert args[0][-1].topic == "sessions", "the record by which an unanswered transaction is decided"
        self._held = (future, args[0])
        return future

    def decide(self, *, commit: bool) -> Future[Any] | None:
        """Decide the open transaction; its answer is not given yet."""
        if self._held is None:
            return None
        future, records = self._held
        self._held = None
        self.outcome = WriteResult.COMMITTED if commit else WriteResult.ABORTED
        if any(record.topic == "readings" and is_poison(cast(bytes, record.value)) for record in records):
            self.outcome = WriteResult.ABORTED_RECORD_AT_FAULT
        elif commit:
            for record in records:
                if record.topic != "sessions":
                    self._ledger.readings.append(cast(bytes, record.value))
                elif record.value is None:
                    self._ledger.states.pop(cast(str, record.key), None)
                else:
                    self._ledger.states[cast(str, record.key)] = cast(StoredState, record.headers[0])
        return future


def state_record(client_id: str, state: StoredState | None) -> ProducerRecord:
    if state is None:
        return ProducerRecord("sessions", client_id, None, [])
    return ProducerRecord("sessions", client_id, b"state", [cast(Any, state.copy())])


class Wire(asyncio.Transport):
    """A socket whose bytes the test may lose."""

    def __init__(self) -> None:
        super().__init__()
        self.received = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.received += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@dataclass
class Device:
    """A correct QoS 2 publisher with a kept session (3.1.1 sections 4.3.3 and 4.4)."""

    client_id: str
    next_number: int = 0
    # Packet id -> payload, in order; and those whose PUBREC came.
    unfinished: dict[int, bytes] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    promised: set[bytes] = field(default_factory=set)
    sent: list[bytes] = field(default_factory=list)
    connection: Connection | None = None
    wire: Wire | None = None
    accepted: bool = False

    def connect(self, server: Server) -> None:
        self.wire, self.connection, self.accepted = Wire(), Connection(server), False
        self.connection.connection_made(self.wire)
        name = self.client_id.encode()
        body = b"\0\4MQTT\4\0\0\0" + struct.pack(">H", len(name)) + name
        self.send(bytes((0x10, len(body))) + body)

    def send(self, data: bytes) -> None:
        assert self.connection is not None
        self.connection.data_received(data)

    def publish(self, packet_id: int, *, dup: bool) -> None:
        payload = self.unfinished[packet_id]
        body = b"\0\1t" + struct.pack(">H", packet_id) + payload
        self.send(bytes((0x34 | (8 if dup else 0), len(body))) + body)

    def publish_new(self, packet_id: int, *, poison: bool = False) -> None:
        payload = f"{self.client_id}-{self.next_number}{'-poison' if poison else ''}".encode()
        self.next_number += 1
        self.unfinished[packet_id] = payload
        self.sent.append(payload)
        self.publish(packet_id, dup=False)

    def read(self) -> None:
        """Take what the proxy sent."""
        assert self.wire is not None
        data = bytes(self.wire.received)
        self.wire.received.clear()
        while data:
            length = 2 + data[1]
            self._packet(data[0] >> 4, data[2:length])
            data = data[length:]
        if self.wire.closed:
            self.drop()

    def _packet(self, kind: int, body: bytes) -> None:
        packet_id = int.from_bytes(body[:2], "big")
        if kind == 2:
            if body[1]:
                return
            self.accepted = True
            # A session that the proxy lost while we wait for PUBCOMP would make us publish a stored message again.
            assert body[0] or not self.promised, "session present is 0 for a session with promises"
            for waiting in list(self.unfinished):
                if waiting in self.received:
                    self.send(bytes((0x62, 2, waiting >> 8, waiting & 255)))
                else:
                    self.publish(waiting, dup=True)
        elif kind == 5:
            if packet_id in self.unfinished:
                self.received.add(packet_id)
                self.promised.add(self.unfinished[packet_id])
                self.send(bytes((0x62, 2, packet_id >> 8, packet_id & 255)))
        elif kind == 7 and packet_id in self.received:
            del self.unfinished[packet_id]
            self.received.discard(packet_id)

    def drop(self) -> None:
        """The network fails: bytes on their way to the server are lost."""
        if self.connection is not None:
            self.connection.connection_lost(None)
        self.connection = self.wire = None
        self.accepted = False
