"""What a QoS 0, 1 or 2 publish is answered, for clients of both versions, by what Kafka says of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from mqtt_packets import connected

from isotherm.mqtt_proxy.codec.packets import V5, V311, PacketType, Publish
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.qos1 import Qos1Receiver
from isotherm.mqtt_proxy.delivery.qos2 import Qos2Receiver
from isotherm.mqtt_proxy.delivery.transaction_batcher import TransactionBatcher
from isotherm.mqtt_proxy.ingest.inflight_gate import InflightGate
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.protocol.ack_queue import NOT_STORED, AckQueue
from isotherm.mqtt_proxy.sessions.store import Session
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWrite

AT_FAULT, AWAY = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large"), KafkaError(KafkaError._MSG_TIMED_OUT, "away")
PUBACK, PUBREC, PUBCOMP = 4, 5, 7
OK, REFUSED = Reason.SUCCESS, Reason.QUOTA_EXCEEDED
READING = TranslatedPublish([ProducerRecord("readings", "anna", b"r", [])] * 2, [("readings", 3)], bytes=100)
DEAD_LETTER = TranslatedPublish([ProducerRecord("dlq", "anna", b"d", [])], dead_letters=["properties"], bytes=50)
ONLY_COUNTED = TranslatedPublish(unstored=("properties",))
DROPPED = TranslatedPublish(dropped=True)


class World:
    """One connection's receivers; the test plays Kafka, and the translator says of each publish what the test set."""

    def __init__(self, version: int = V5, *, refuse_invalid: bool = False, durable: bool = True) -> None:
        self.now_s = 10.0
        self.metrics = Metrics()
        self.gate = InflightGate(1_000, 1_000_000, self.metrics)
        self.translated, self.dead = READING, DEAD_LETTER
        self.details: list[str] = []
        self.produced: list[tuple[Sequence[ProducerRecord], Any]] = []
        self.batcher = TransactionBatcher(100)
        self.ends: list[Reason] = []
        self.flushes = self.sendings = 0
        self.protocol = connected(version)
        as_any: Any = self
        pipeline = IngestPipeline(
            translator=as_any,
            producer=as_any,
            transactions=as_any,
            gate=self.gate,
            metrics=self.metrics,
            clock=lambda: self.now_s,
            refuse_invalid=refuse_invalid,
        )
        context = IngestContext("anna")
        acks = AckQueue(self.protocol, PacketType.PUBACK, acknowledged=self.metrics.acknowledged, on_sent=self._on_sent)
        self.qos1 = Qos1Receiver(pipeline, self.protocol, as_any, context=context, acks=acks)
        self.qos2 = Qos2Receiver(
            pipeline, self.protocol, as_any, context=context, receive_maximum=3, on_sent=self._on_sent
        )
        self.session = Session("anna", durable=durable)
        self.qos2.attach(self.session)

    # The translator, the producer, the transactions and the connection.
    def translate(self, _publish: Publish, context: IngestContext) -> TranslatedPublish:
        assert context.client_id == "anna"
        return self.translated

    def dead_letter(self, _publish: Publish, _context: IngestContext, detail: str) -> TranslatedPublish:
        self.details.append(detail)
        return self.dead

    def on_polled(self) -> None: ...

    def produce_all(self, records: Sequence[ProducerRecord], on_delivered: Any) -> None:
        self.produced.append((records, on_delivered))

    def submit(self, write: SessionWrite) -> None:
        self.batcher.add(write)

    def close(self, reason: Reason, detail: str) -> None:
        assert detail
        self.ends.append(reason)

    def flush(self) -> None:
        self.flushes += 1

    def _on_sent(self) -> None:
        self.sendings += 1

    # What the test does.
    def publish(self, qos: int, packet_id: int = 1, payload: bytes = b"1234") -> None:
        receiver = self.qos2 if qos == 2 else self.qos1
        receiver.publish(Publish("t", payload, qos, packet_id=packet_id))

    def deliver(self, error: KafkaError | None = None) -> Sequence[ProducerRecord]:
        """Kafka decides about the oldest publish of QoS 0 or 1, two seconds later; return its records."""
        self.now_s += 2.0
        records, on_delivered = self.produced.pop(0)
        on_delivered(error)
        return records

    def decide(self, outcome: Outcome | str) -> list[ProducerRecord]:
        """Decide the next transaction, two seconds later, or have a record refused; return its records."""
        self.now_s += 2.0
        batch = self.batcher.take()
        if batch is None:
            return []
        records = [record for write in batch.writes for record in write.records]
        if isinstance(outcome, str):
            self.batcher.retry_refused(batch, outcome)
        else:
            self.batcher.decide(batch, outcome)
        return records

    def sent(self) -> list[tuple[int, int, int]]:
        """Kind, packet identifier and reason code of what the client received."""
        data, found = self.protocol.take_outgoing(), []
        while data:
            length = 2 + data[1]
            found.append((data[0] >> 4, data[2] << 8 | data[3], data[4] if length > 4 else 0))
            data = data[length:]
        return found

    @property
    def in_flight(self) -> tuple[int, int]:
        return self.gate.records, self.gate.bytes

    @property
    def seconds(self) -> float:
        return self.metrics._latency_sum_s


@pytest.mark.parametrize("version", [V311, V5])
def test_a_publish_is_acknowledged_when_kafka_has_all_its_records(version: int) -> None:
    world = World(version)
    world.publish(0)
    world.publish(1, 7)
    assert (world.in_flight, world.sent()) == ((4, 208), [])
    assert world.deliver() == READING.records
    assert (world.in_flight, world.sent()) == ((2, 104), [])
    world.deliver()
    assert (world.in_flight, world.sent(), world.sendings) == ((0, 0), [(PUBACK, 7, OK)], 1)
    assert world.metrics.readings == {("readings", "0"): 3, ("readings", "1"): 3}
    assert (world.seconds, world.metrics.acknowledged, world.ends) == (6.0, [0, 1, 0], [])


def test_a_publish_without_records_is_acknowledged_at_once() -> None:
    world = World()
    world.translated = DROPPED
    world.publish(1, 7)
    assert (world.produced, world.sent(), world.in_flight) == ([], [(PUBACK, 7, OK)], (0, 0))
    assert world.metrics.dropped == {"no route": 1}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", [V311, V5])
def test_a_record_at_fault_becomes_a_dead_letter_once(version: int, qos: int) -> None:
    world = World(version)
    world.publish(qos, 7)
    world.deliver(AT_FAULT)
    assert (world.details, world.sent(), world.in_flight) == (["too large"], [], (1, 54))
    assert world.deliver() == DEAD_LETTER.records
    assert world.sent() == [(PUBACK, 7, OK)] * qos
    assert (world.metrics.dead_letters, world.metrics.refused, world.seconds) == ({"properties": 1}, [0, 0, 0], 4.0)
    world.publish(qos, 8)
    world.deliver(AT_FAULT)
    world.deliver(AT_FAULT)
    assert (world.produced, world.in_flight, sum(world.metrics.refused)) == ([], (0, 0), 1)


@pytest.mark.parametrize(
    ("version", "qos", "sent", "ends"),
    [(V5, 1, [(PUBACK, 7, NOT_STORED)], []), (V311, 1, [], [NOT_STORED]), (V5, 0, [], []), (V311, 0, [], [])],
)
def test_a_publish_that_kafka_did_not_store_is_told(
    version: int, qos: int, sent: list[tuple[int, int, int]], ends: list[Reason]
) -> None:
    world = World(version)
    world.publish(qos, 7)
    world.deliver(AWAY)
    assert (world.sent(), world.ends, world.in_flight) == (sent, ends, (0, 0))
    assert (world.metrics.refused[qos], world.metrics.acknowledged, world.seconds) == (1, [0, 0, 0], 0.0)


@pytest.mark.parametrize(
    ("version", "refuse_invalid", "translated", "is_refused"),
    [
        (V5, True, DEAD_LETTER, True),
        (V5, False, DEAD_LETTER, False),
        (V311, True, DEAD_LETTER, False),
        (V5, False, ONLY_COUNTED, True),
        (V311, False, ONLY_COUNTED, False),
        (V5, True, READING, False),
        (V5, True, DROPPED, False),
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_invalid_publish_is_refused_to_a_client_that_can_be_told(
    version: int, refuse_invalid: bool, translated: TranslatedPublish, is_refused: bool, qos: int
) -> None:
    world = World(version, refuse_invalid=refuse_invalid)
    world.translated = translated
    world.publish(qos, 7)
    is_refused = is_refused and qos > 0
    if world.produced:
        world.deliver()
    assert world.decide(Outcome.COMMITTED) == (translated.records if qos == 2 and not is_refused else [])
    kind = PUBREC if qos == 2 else PUBACK
    assert world.sent() == ([(kind, 7, REFUSED if is_refused else OK)] if qos else [])
    assert world.metrics.invalid_publishes_refused == ({"properties": 1} if is_refused else {})
    assert (world.in_flight, world.session.in_flight, world.qos2.undecided) == ((0, 0), {}, 0)


@pytest.mark.parametrize(("version", "qos", "is_refused"), [(V5, 1, True), (V311, 1, False), (V5, 0, False)])
def test_a_dead_letter_is_refused_instead_where_invalid_publishes_are(version: int, qos: int, is_refused: bool) -> None:
    world = World(version, refuse_invalid=True)
    world.publish(qos, 7)
    world.deliver(AT_FAULT)
    assert world.sent() == ([(PUBACK, 7, REFUSED)] if is_refused else [])
    assert len(world.produced) == (not is_refused)


@pytest.mark.parametrize("version", [V311, V5])
def test_a_qos_2_publish_is_received_when_its_transaction_commits(version: int) -> None:
    world = World(version)
    world.publish(2, 7)
    assert (world.in_flight, world.sent(), world.qos2.undecided) == ((3, 104), [], 1)
    assert world.decide(Outcome.COMMITTED) == READING.records
    assert (world.in_flight, world.sent(), world.qos2.undecided) == ((0, 0), [(PUBREC, 7, OK)], 0)
    assert (world.seconds, world.metrics.readings, world.sendings) == (2.0, {("readings", "2"): 3}, 1)
    assert (list(world.session.committed), world.metrics.repeated, world.metrics.packet_ids_reused) == ([7], 0, 0)
    assert world.metrics.acknowledged == [0, 0, 1]


def test_a_repetition_is_answered_but_not_stored_again() -> None:
    world = World()
    world.publish(2, 7)
    world.publish(2, 7)
    assert world.sent() == []
    world.decide(Outcome.COMMITTED)
    assert world.sent() == [(PUBREC, 7, OK)] * 2
    world.publish(2, 7)
    assert (world.sent(), world.metrics.repeated) == ([(PUBREC, 7, OK)], 2)
    assert world.decide(Outcome.COMMITTED) == []


def test_another_message_with_an_identifier_in_flight_ends_the_connection() -> None:
    world = World()
    world.publish(2, 7)
    world.publish(2, 7, b"other")
    assert world.ends == [Reason.PROTOCOL_ERROR]
    world.decide(Outcome.COMMITTED)
    world.publish(2, 7, b"other")
    assert (world.decide(Outcome.COMMITTED), world.metrics.packet_ids_reused) == (READING.records, 1)


def test_more_identifiers_than_the_receive_maximum_end_the_connection() -> None:
    world = World()
    for packet_id in (1, 2, 3):
        world.publish(2, packet_id)
    assert world.ends == []
    world.publish(2, 4)
    assert world.ends == [Reason.RECEIVE_MAXIMUM_EXCEEDED]


@pytest.mark.parametrize("version", [V311, V5])
def test_an_aborted_publish_is_told_and_stops_those_behind_it_unless_its_client_is_told(version: int) -> None:
    world = World(version)
    world.publish(2, 7)
    world.decide(Outcome.ABORTED)
    told = [(PUBREC, 7, NOT_STORED)] if version == V5 else []
    assert (world.sent(), world.ends) == (told, [] if told else [NOT_STORED])
    assert (world.metrics.refused, world.in_flight, world.qos2.undecided) == ([0, 0, 1], (0, 0), 0)
    world.publish(2, 8)
    assert bool(world.decide(Outcome.COMMITTED)) is (version == V5)


def test_a_client_whose_connection_has_ended_is_not_told_of_an_abort() -> None:
    world = World()
    for packet_id in (7, 8):
        world.publish(2, packet_id)
    world.qos2.close()
    world.decide(Outcome.ABORTED)
    world.publish(2, 9)
    assert world.decide(Outcome.COMMITTED) == [], "it must not overtake what its device sends again"
    assert (world.sent(), world.ends) == ([], [])


def test_a_publish_behind_a_failed_release_is_not_told_and_stops_those_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.publish(2, 6)
    world.decide(Outcome.COMMITTED)
    assert world.sent() == [(PUBREC, 6, OK)]
    world.qos2.release(6)
    world.publish(2, 7)
    batch = world.batcher.take()
    assert batch is not None
    world.publish(2, 8)
    taken_meanwhile: list[Any] = []

    def end(_reason: Reason, _detail: str) -> None:
        world.qos2.close()
        taken_meanwhile.append(world.batcher.take())

    monkeypatch.setattr(world, "close", end)
    world.batcher.decide(batch, Outcome.ABORTED)
    assert (world.sent(), taken_meanwhile) == ([], [None])
    assert world.decide(Outcome.COMMITTED) == [], "8 must not overtake 7, which its device sends again"
    assert not world.session.committed.keys() - {6}


@pytest.mark.parametrize("refuse_invalid", [True, False])
def test_a_record_at_fault_in_a_transaction_becomes_a_dead_letter_or_is_refused(refuse_invalid: bool) -> None:
    world = World(refuse_invalid=refuse_invalid)
    world.publish(2, 7)
    world.decide("too large")
    assert world.details == ["too large"]
    if refuse_invalid:
        assert (world.sent(), list(world.session.committed)) == ([(PUBREC, 7, REFUSED)], [])
    else:
        assert world.decide(Outcome.COMMITTED) == DEAD_LETTER.records
        assert (world.sent(), world.metrics.dead_letters) == ([(PUBREC, 7, OK)], {"properties": 1})
    assert world.in_flight == (0, 0)


def test_a_refused_identifier_stays_free_unless_another_publish_uses_it() -> None:
    world = World()
    world.qos2.refuse(7, REFUSED)
    assert (world.sent(), world.ends) == ([(PUBREC, 7, REFUSED)], [])
    world.publish(2, 7)
    world.qos2.refuse(7, REFUSED)
    assert world.ends == [Reason.PROTOCOL_ERROR]
    world.decide(Outcome.COMMITTED)
    world.qos2.release(7)
    world.qos2.refuse(7, REFUSED)
    assert world.ends == [Reason.PROTOCOL_ERROR] * 2


def test_a_release_is_complete_when_kafka_has_stored_it() -> None:
    world = World()
    world.publish(2, 7)
    world.qos2.release(7)
    assert world.ends == [Reason.PROTOCOL_ERROR], "before its PUBREC"
    world.decide(Outcome.COMMITTED)
    assert world.sent() == [(PUBREC, 7, OK)]
    for _ in range(2):
        world.qos2.release(7)
    assert (world.sent(), world.flushes) == ([], 0)
    world.decide(Outcome.COMMITTED)
    assert (world.sent(), world.flushes, dict(world.session.committed)) == ([(PUBCOMP, 7, OK)], 1, {})
    assert len(world.ends) == 1


@pytest.mark.parametrize(("version", "reason"), [(V5, Reason.PACKET_IDENTIFIER_NOT_FOUND), (V311, OK)])
def test_a_release_of_an_unknown_identifier_is_complete_at_once(version: int, reason: Reason) -> None:
    world = World(version)
    world.qos2.release(7)
    assert (world.sent(), world.ends) == ([(PUBCOMP, 7, reason)], [])


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_release_that_is_not_stored_ends_the_connection(is_closed: bool) -> None:
    world = World()
    world.publish(2, 7)
    world.decide(Outcome.COMMITTED)
    world.sent()
    world.qos2.release(7)
    if is_closed:
        world.qos2.close()
    world.decide(Outcome.ABORTED)
    assert (world.sent(), world.flushes, world.ends) == ([], 0, [] if is_closed else [NOT_STORED])
    assert (list(world.session.committed), world.session.releasing) == ([7], set())


def test_a_session_that_ends_with_its_connection_is_released_without_a_transaction() -> None:
    world = World(durable=False)
    world.publish(2, 7)
    world.decide(Outcome.COMMITTED)
    world.qos2.release(7)
    assert world.sent() == [(PUBREC, 7, OK), (PUBCOMP, 7, OK)]
    assert (dict(world.session.committed), world.session.releasing, world.batcher.has_work) == ({}, set(), False)


def test_nothing_is_completed_after_the_end_of_the_connection() -> None:
    world = World()
    world.publish(2, 7)
    world.decide(Outcome.COMMITTED)
    world.sent()
    world.qos2.release(7)
    world.qos2.close()
    world.decide(Outcome.COMMITTED)
    assert (world.sent(), world.flushes, cast(Any, world.session).committed) == ([], 0, {})
