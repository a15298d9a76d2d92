"""When a will is published, with real sessions and batches, and transactions whose outcome the test decides."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.delivery.transaction_batcher import TransactionBatcher
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.server.wills import WillScheduler
from isotherm.mqtt_proxy.sessions.store import Session, SessionStore
from isotherm.mqtt_proxy.sessions.writes import ClaimWrite, Outcome, SessionWrite
from isotherm.mqtt_proxy.settings import LimitSettings
from isotherm.servicekit.producer.delivery import DeliveryFailedError

LATER_S = 3_600


class Kafka:
    """Stores what it gets while `takes` is true; `stored` are the payloads of wills in order."""

    def __init__(self) -> None:
        self.takes = True
        self.too_large: list[bytes] = []
        self.stored: list[bytes] = []
        self.told_of: list[str] = []
        self.batcher = TransactionBatcher(100)
        self.sessions = SessionStore(10)
        pipeline = SimpleNamespace(
            translator=self,
            producer=self,
            transactions=self,
            metrics=SimpleNamespace(wills=0, messages_received=[0] * 3, payload_bytes=0, count_stored=_ignore),
            count_refused=lambda _qos, client_id, _reason: self.told_of.append(client_id),
        )
        self.denied: list[tuple[str, str | None, str]] = []
        """What the rules do not allow: client, user and topic."""
        self.asked: list[tuple[str, str | None, str]] = []
        self.wills = WillScheduler(
            limits=LimitSettings(), sessions=self.sessions, pipeline=cast(Any, pipeline), access=cast(Any, self)
        )
        self.wills.start()

    def permits_will(self, *, client_id: str, username: str | None, topic: str, qos: int) -> bool:
        assert qos in (0, 1, 2)
        self.asked.append((client_id, username, topic))
        return self.asked[-1] not in self.denied

    def translate(self, will: Publish, _context: object) -> Any:
        return TranslatedPublish([ProducerRecord("readings", "c", will.payload, [])])

    def dead_letter(self, will: Publish, _context: object, _detail: str) -> Any:
        return TranslatedPublish([ProducerRecord("dead letters", "c", b"dead letter: " + will.payload, [])])

    async def send(self, _topic: str, *, key: str, value: bytes, headers: object) -> None:
        if value in self.too_large:
            raise DeliveryFailedError(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if not self.takes:
            raise DeliveryFailedError(KafkaError(KafkaError._MSG_TIMED_OUT))
        self.stored.append(value)

    def submit(self, write: SessionWrite) -> None:
        self.batcher.add(write)

    async def decide(self, write: SessionWrite) -> Outcome:
        outcomes: list[Outcome] = []
        write.on_decided = outcomes.append
        self.submit(write)
        await self.settle(5)
        return outcomes[0]

    async def settle(self, turns: int = 30) -> None:
        """Decide all transactions."""
        for _ in range(turns):
            await asyncio.sleep(0)
            while (batch := self.batcher.take()) is not None:
                records = [record for write in batch.writes for record in write.records]
                if any(record.value in self.too_large for record in records):
                    self.batcher.retry_refused(batch, "too large")
                    continue
                if self.takes:
                    self.stored += [cast(bytes, record.value) for record in records]
                self.batcher.decide(batch, Outcome.COMMITTED if self.takes else Outcome.ABORTED)

    async def connected(self, qos: int, *, delay_s: int = 0, expiry_s: int = LATER_S) -> Session:
        """A session whose connection was accepted with a will."""
        session = self.sessions.get_or_create("c")
        will = Publish("t", b"will", qos, properties={Property.WILL_DELAY: delay_s} if delay_s else {})
        session.expiry_s, session.durable = expiry_s, expiry_s > 0
        if session.durable:
            self.submit(ClaimWrite(_ignore, session=session, expiry_s=expiry_s, will=will))
            await self.settle()
        self.wills.set(session, will)
        return session


def stored_will(session: Session) -> Publish | None:
    """What the sessions topic has."""
    return session.stored.will if session.stored else None


def _ignore(*_: object) -> None:
    pass


@pytest.fixture(params=[0, 1, 2])
def qos(request: pytest.FixtureRequest) -> int:
    return cast(int, request.param)


async def test_without_delay_it_is_published_at_once_and_removed_from_the_session(qos: int) -> None:
    kafka = Kafka()
    session = await kafka.connected(qos)
    assert stored_will(session) is not None
    assert kafka.wills.bytes > 0
    assert kafka.wills.connection_ended(session, session_ends=False)
    assert session.undecided == 1, "a client that comes back waits for it"
    await kafka.settle()
    assert kafka.stored == [b"will"]
    assert stored_will(session) is None
    assert session.stored is not None
    assert session.stored.expires_at_ms is not None, "it is detached"
    assert (session.will, session.undecided, kafka.wills.bytes) == (None, 0, 0)


async def test_with_delay_it_waits_and_a_clean_start_publishes_it(qos: int) -> None:
    kafka = Kafka()
    session = await kafka.connected(qos, delay_s=LATER_S)
    assert not kafka.wills.connection_ended(session, session_ends=False)
    assert kafka.wills.due_ms(session, 1_000) == 1_000 + LATER_S * 1_000
    kafka.wills.suspend(session)
    await kafka.wills.session_ends(session)
    await kafka.settle()
    assert kafka.stored == [b"will"]


async def test_with_delay_it_is_removed_when_the_client_comes_back(qos: int) -> None:
    kafka = Kafka()
    session = await kafka.connected(qos, delay_s=LATER_S)
    kafka.wills.connection_ended(session, session_ends=False)
    kafka.wills.set(session, None)
    await kafka.settle()
    assert kafka.stored == []
    assert kafka.wills.bytes == 0


@pytest.mark.parametrize("expiry_s", [0, LATER_S])
async def test_the_end_of_the_session_publishes_it_whatever_its_delay(qos: int, expiry_s: int) -> None:
    kafka = Kafka()
    session = await kafka.connected(qos, delay_s=LATER_S, expiry_s=expiry_s)
    assert kafka.wills.connection_ended(session, session_ends=True)
    await kafka.settle()
    assert kafka.stored == [b"will"]
    assert session.stored is None


async def test_a_takeover_publishes_what_has_no_delay(qos: int) -> None:
    for delay_s, stored in ((0, [b"will"]), (LATER_S, [])):
        kafka = Kafka()
        session = await kafka.connected(qos, delay_s=delay_s)
        kafka.wills.taken_over(session)
        await kafka.settle()
        assert kafka.stored == stored


async def test_what_kafka_does_not_take_stays_with_the_session_and_is_tried_again(qos: int) -> None:
    kafka = Kafka()
    session = await kafka.connected(qos)
    kafka.takes = False
    kafka.wills.connection_ended(session, session_ends=False)
    await kafka.settle()
    assert session.will is not None
    assert kafka.told_of == []
    kafka.takes = True
    kafka.wills.suspend(session)
    assert session.stored is not None
    session.stored.will_due_ms = 0
    kafka.wills.sweep()
    # The timer of a will that is due runs in the next turn of the loop.
    for _ in range(3):
        await asyncio.sleep(0.001)
        await kafka.settle()
    assert kafka.stored == [b"will"]


async def test_what_kafka_refuses_for_its_own_sake_is_a_dead_letter(qos: int) -> None:
    kafka = Kafka()
    kafka.too_large = [b"will"]
    session = await kafka.connected(qos)
    kafka.wills.connection_ended(session, session_ends=False)
    await kafka.settle()
    assert kafka.stored == [b"dead letter: will"]
    assert kafka.told_of == []
    assert stored_will(session) is None
    assert (session.will, session.undecided, kafka.wills.bytes) == (None, 0, 0)


async def test_a_stopped_process_publishes_nothing_by_time(qos: int) -> None:
    kafka = Kafka()
    kafka.wills.stop()
    session = await kafka.connected(qos, delay_s=1)
    kafka.wills.connection_ended(session, session_ends=False)
    kafka.wills.sweep()
    await kafka.settle()
    assert kafka.stored == []
    assert session.will is not None, "it waits for the next start"


@pytest.mark.parametrize("is_taken", [False, True])
async def test_what_the_rules_of_now_deny_is_not_stored_and_leaves_the_session(qos: int, is_taken: bool) -> None:
    kafka = Kafka()
    session = await kafka.connected(qos)
    session.username = "anna"
    kafka.denied = [("c", "anna", "t")]
    if is_taken:
        kafka.wills.taken_over(session)
    else:
        kafka.wills.connection_ended(session, session_ends=False)
    await kafka.settle()
    assert (kafka.stored, kafka.told_of, kafka.asked) == ([], [], kafka.denied)
    assert stored_will(session) is None
    assert session.stored is not None
    assert (session.stored.expires_at_ms is None) is is_taken, "it is detached unless another connection has it"
    assert (session.will, session.undecided, kafka.wills.bytes) == (None, 0, 0)
