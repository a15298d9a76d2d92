"""The QoS 2 handshakes of a connection: packets to session writes, outcomes to acknowledgements (ADR 0010)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from isotherm.mqtt_proxy.codec.packets import V5, PacketType, Publish, decode_publish, encode_acknowledgement
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.ingest.producer_record import RECORD_BYTES, ProducerRecord, headers_bytes
from isotherm.mqtt_proxy.ingest.publish_traces import replace_by_dead_letter
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.protocol.ack_queue import NOT_STORED, AckQueue, PendingAck, PendingAcks
from isotherm.mqtt_proxy.protocol.client_port import ClientPort
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.sessions.store import PublishKind, ReleaseKind, Session, content_crc32
from isotherm.mqtt_proxy.sessions.writes import (
    OrderedSource,
    Outcome,
    PublishesWrite,
    PublishWrite,
    ReleasesWrite,
    ReleaseWrite,
)

_PLAIN = 0x34
"""First byte of a PUBLISH of QoS 2 without DUP and RETAIN."""


class Qos2Publishes(NamedTuple):
    """The QoS 2 publishes that `hotpath` took from one read, in their order.

    `span` holds their packets, and others between them. `crc32_of` is the checksum of each content by packet
    identifier. `counts` says how many of `records` belong to each publish. `readings` holds the number of readings by
    Kafka topic, `size` is what the in-flight gate counts, `pubrecs` the encoded answers.
    """

    span: bytes
    crc32_of: Mapping[int, int]
    records: Sequence[ProducerRecord]
    counts: Sequence[int]
    readings: Sequence[tuple[str, int]]
    size: int
    pubrecs: bytes
    started_s: float

    def publishes(self, version: int, topic_of: Callable[[bytes], str]) -> Iterator[Publish]:
        """Yield each publish."""
        span, at = self.span, 0
        while at < len(span):
            length, body = span[at + 1], at + 2
            if length & 0x80:
                length, body = length & 0x7F | span[at + 2] << 7, at + 3
            if span[at] == _PLAIN:
                yield decode_publish(_PLAIN, span, body, body + length, version, topic_of)
            at = body + length


class Qos2Receiver:
    """The QoS 2 publishes and releases of one connection; its session remembers everything that outlives it.

    `receive_maximum` bounds the packet identifiers that are in flight or not released. The session is attached before
    the first publish.
    """

    __slots__ = (
        "_context",
        "_in_flight",
        "_is_closed",
        "_pipeline",
        "_port",
        "_protocol",
        "_published",
        "_pubrecs",
        "_receive_maximum",
        "_source",
        "session",
    )
    session: Session

    def __init__(
        self,
        pipeline: IngestPipeline,
        protocol: ServerProtocol,
        port: ClientPort,
        *,
        context: IngestContext,
        receive_maximum: int,
        on_sent: Callable[[], None],
    ) -> None:
        self._pipeline = pipeline
        self._protocol = protocol
        self._port = port
        self._context = context
        self._receive_maximum = receive_maximum
        self._source = OrderedSource()
        self._pubrecs = AckQueue(
            protocol, PacketType.PUBREC, acknowledged=pipeline.metrics.acknowledged, on_sent=on_sent
        )
        self._in_flight: dict[int, PendingAck | PendingAcks] = {}
        self._published: set[int] = set()
        """Identifiers that came on this connection and may be committed, with some that were released since."""
        self._is_closed = False

    @property
    def undecided(self) -> int:
        """How many publishes wait for the outcome of their transaction."""
        return len(self._in_flight)

    def attach(self, session: Session) -> None:
        """Use `session`, which this connection owns from now on."""
        self.session = session
        # An MQTT 5 client is told of each refused publish and does not send it again in its old place.
        self._source.is_told = self._protocol.version == V5

    def close(self) -> None:
        """Send nothing any more: the connection has ended."""
        self._is_closed = True
        self._source.is_told = False
        self._pubrecs.close()

    def publish(self, publish: Publish) -> None:
        """Handle a PUBLISH: answer a repetition as the first one, and store everything else in a transaction."""
        packet_id, session, metrics = publish.packet_id, self.session, self._pipeline.metrics
        crc32 = content_crc32(publish.topic, publish.payload)
        kind = session.receive_publish(packet_id, crc32, self._receive_maximum)
        if kind is PublishKind.CONFLICT:
            self._close_for_conflict(packet_id)
        elif kind is PublishKind.OVER_LIMIT:
            detail = f"more than {self._receive_maximum} QoS 2 publishes that are not released"
            self._port.close(Reason.RECEIVE_MAXIMUM_EXCEEDED, detail)
        elif kind is PublishKind.IN_FLIGHT:
            metrics.repeated += 1
            self._in_flight[packet_id].repeat(packet_id)
        else:
            if kind is PublishKind.COMMITTED:
                metrics.repeated += 1
                if packet_id in self._published:
                    # Behind later publishes, this PUBREC could come after the PUBCOMP, when the identifier is another
                    # publish's, which the client would believe stored.
                    self._pubrecs.repeat(packet_id)
                    return
            ack = self._pubrecs.expect(packet_id)
            self._note_published((packet_id,))
            if kind is PublishKind.COMMITTED:
                self._pubrecs.complete(ack)
                return
            translated = self._pipeline.translator.translate(publish, self._context)
            if translated.invalid_reason and (reason := self._pipeline.refusal(translated, self._protocol.version)):
                del session.in_flight[packet_id]
                self._pubrecs.complete(ack, reason)
                return
            metrics.packet_ids_reused += kind is PublishKind.REUSED
            self._in_flight[packet_id] = ack
            self._submit(publish, translated, ack, crc32)

    def publish_together(self, plain: Qos2Publishes) -> None:
        """Store publishes of one read in one write.

        The caller has put their identifiers in flight, and counted them at the in-flight gate: their records, and one
        more for each.
        """
        pipeline, packet_ids = self._pipeline, tuple(plain.crc32_of)
        records = len(plain.records) + len(packet_ids)
        acks = PendingAcks(packet_ids, plain.pubrecs)
        self._pubrecs.expect_all(acks)
        self._in_flight.update(dict.fromkeys(packet_ids, acks))
        self._note_published(packet_ids)

        def on_decided(outcome: Outcome) -> None:
            pipeline.gate.release(records, plain.size)
            for packet_id in packet_ids:
                self._in_flight.pop(packet_id, None)
            if outcome is Outcome.COMMITTED:
                seconds = pipeline.clock() - plain.started_s
                pipeline.metrics.count_stored_together(plain.readings, 2, len(packet_ids), seconds)
                self._pubrecs.complete(acks)
            else:
                self._reject(acks, NOT_STORED, outcome, len(packet_ids))

        pipeline.transactions.submit(
            PublishesWrite(
                on_decided,
                session=self.session,
                records=plain.records,
                source=self._source,
                crc32_of=plain.crc32_of,
                separate=lambda: self._separate(plain, acks),
            )
        )

    def _separate(self, plain: Qos2Publishes, acks: PendingAcks) -> list[PublishWrite]:
        """Return a write for each publish of a read, because Kafka refuses a record of one of them."""
        writes, first = [], 0
        publishes = plain.publishes(self._protocol.version, self._protocol.topic_of)
        for publish, ack, count in zip(publishes, self._pubrecs.separate(acks), plain.counts, strict=True):
            records = list(plain.records[first : first + count])
            first += count
            translated = TranslatedPublish(records, [(records[0].topic, count)])
            for record in records:
                translated.bytes += len(record.key or b"") + len(record.value or b"") + headers_bytes(record.headers)
            translated.bytes += RECORD_BYTES * count
            self._in_flight[publish.packet_id] = ack
            crc32 = plain.crc32_of[publish.packet_id]
            writes.append(self._write(publish, translated, ack, crc32, started_s=plain.started_s))
        return writes

    def _note_published(self, packet_ids: Sequence[int]) -> None:
        self._published.update(packet_ids)
        if len(self._published) > 4 * self._receive_maximum + len(packet_ids):
            self._published &= {*packet_ids, *self._in_flight, *self.session.committed}

    def refuse(self, packet_id: int, reason: Reason) -> None:
        """Refuse a PUBLISH. Its identifier is free again, unless another publish uses it."""
        if packet_id in self.session.in_flight or packet_id in self.session.releasing:
            self._close_for_conflict(packet_id)
        else:
            self._pubrecs.refuse(packet_id, reason)

    def _close_for_conflict(self, packet_id: int) -> None:
        self._port.close(Reason.PROTOCOL_ERROR, f"packet identifier {packet_id} is in use for another publish")

    def _submit(self, publish: Publish, translated: TranslatedPublish, ack: PendingAck, crc32: int) -> None:
        pipeline = self._pipeline
        write = self._write(publish, translated, ack, crc32, started_s=pipeline.clock())
        pipeline.gate.acquire(len(translated.records) + 1, translated.bytes + len(publish.payload))
        pipeline.transactions.submit(write)

    def _write(
        self, publish: Publish, translated: TranslatedPublish, ack: PendingAck, crc32: int, *, started_s: float
    ) -> PublishWrite:
        pipeline, context = self._pipeline, self._context
        version = self._protocol.version
        records, size = len(translated.records) + 1, translated.bytes + len(publish.payload)
        failure = NOT_STORED

        def on_refused(detail: str) -> Sequence[ProducerRecord] | None:
            # As at QoS 1: its device would send it again forever, and everything behind it would wait.
            nonlocal translated, failure
            dead_letter = pipeline.translator.dead_letter(publish, context, detail)
            replace_by_dead_letter(translated, dead_letter, detail)
            translated = dead_letter
            reason = pipeline.refusal(translated, version)
            if reason is not None:
                failure = reason
                return None
            return translated.records

        def on_decided(outcome: Outcome) -> None:
            pipeline.gate.release(records, size)
            self._in_flight.pop(ack.packet_id, None)
            if outcome is Outcome.COMMITTED:
                pipeline.metrics.count_stored(translated, 2, pipeline.clock() - started_s)
                translated.end_trace()
                self._pubrecs.complete(ack)
                return
            translated.end_trace(f"the transaction's outcome: {outcome.name}")
            self._reject(ack, failure, outcome)

        return PublishWrite(
            on_decided,
            session=self.session,
            records=translated.records,
            source=self._source,
            on_refused=on_refused,
            packet_id=ack.packet_id,
            crc32=crc32,
        )

    def _reject(self, ack: PendingAck | PendingAcks, reason: Reason, outcome: Outcome, publishes: int = 1) -> None:
        for _ in range(publishes):
            self._pipeline.count_refused(2, self._context.client_id, f"the transaction's outcome: {outcome.name}")
        # The outcome of an earlier write of this transaction may have ended the connection: then nobody is told.
        self._source.fail()
        if not self._pubrecs.reject(ack, reason):
            self._port.close(NOT_STORED, "Kafka did not store a publish")

    def release(self, packet_id: int) -> None:
        """Handle a PUBREL: the client may use the identifier again when Kafka has stored that it is free."""
        session = self.session
        kind = session.receive_release(packet_id)
        if kind is ReleaseKind.CONFLICT:
            self._port.close(Reason.PROTOCOL_ERROR, f"PUBREL for packet identifier {packet_id} before its PUBREC")
        elif kind is ReleaseKind.UNKNOWN:
            unknown = Reason.PACKET_IDENTIFIER_NOT_FOUND if self._protocol.version == V5 else Reason.SUCCESS
            self._protocol.acknowledge(PacketType.PUBCOMP, packet_id, unknown)
        elif kind is ReleaseKind.RELEASE:
            write = self._release_write(packet_id)
            if session.durable:
                self._pipeline.transactions.submit(write)
            else:
                session.stored = write.apply(session.stored)
                write.settle(Outcome.COMMITTED)
                write.on_decided(Outcome.COMMITTED)

    def release_together(self, packet_ids: Sequence[int], pubcomps: bytes) -> None:
        """Free the identifiers of a durable session, which the caller has marked as releasing; then send `pubcomps`."""
        self._pipeline.transactions.submit(
            ReleasesWrite(
                lambda outcome: self._on_released(pubcomps, outcome),
                session=self.session,
                packet_ids=packet_ids,
                separate=lambda: [self._release_write(packet_id) for packet_id in packet_ids],
            )
        )

    def _release_write(self, packet_id: int) -> ReleaseWrite:
        pubcomp = encode_acknowledgement(PacketType.PUBCOMP, packet_id)
        return ReleaseWrite(
            lambda outcome: self._on_released(pubcomp, outcome), session=self.session, packet_id=packet_id
        )

    def _on_released(self, pubcomps: bytes, outcome: Outcome) -> None:
        if self._is_closed:
            return
        if outcome is not Outcome.COMMITTED:
            self._port.close(NOT_STORED, "Kafka did not store a release")
            return
        self._protocol.send(pubcomps)
        self._port.flush()
