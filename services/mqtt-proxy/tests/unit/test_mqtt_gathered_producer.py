"""Which publishes of QoS 0 and 1 wait for others: patient ones, while they come as a stream."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import cast

from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from isotherm.mqtt_proxy.delivery.gathered_producer import ENOUGH, LONGEST_WAIT_S, GatheredProducer
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.servicekit.producer.delivery import LoopProducer, OnDelivery

PATIENT_S, EAGER_S = 2.5, 0.001
REFUSED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class Kafka:
    """Takes records in the order in which they are produced; refuses those in `refused`, at once."""

    def __init__(self) -> None:
        self.produced: list[int] = []
        self.refused: set[int] = set()
        self.is_drained = False
        self.fatal: list[KafkaError] = []
        self.on_fatal: Callable[[KafkaError], None] = self.fatal.append

    def produce_all(self, records: Sequence[ProducerRecord], on_delivery: OnDelivery) -> None:
        for record in records:
            number = int(record.value or b"")
            if number in self.refused:
                on_delivery(REFUSED)
            else:
                self.produced.append(number)

    async def send(self, _topic: str, *, key: object, value: bytes, headers: object) -> None:
        self.produced.append(int(value))

    async def drain(self) -> None:
        self.is_drained = True


def _ignore(_error: KafkaError | None) -> None:
    pass


class World:
    """Publishes with consecutive numbers, at times that the test names."""

    def __init__(self) -> None:
        self.kafka = Kafka()
        self.producer = GatheredProducer(cast(LoopProducer, self.kafka))
        self.number = 0

    def record(self) -> ProducerRecord:
        self.number += 1
        return ProducerRecord("readings", "dev", b"%d" % (self.number - 1), [])

    def publish(self, now_s: float, since_answer_s: float, on_delivery: OnDelivery = _ignore) -> bool:
        """Publish; return whether the producer got the records at once."""
        self.producer.publish([self.record()], on_delivery, now_s=now_s, since_answer_s=since_answer_s)
        return self.kafka.produced[-1:] == [self.number - 1]

    def stream(self, seconds: float, per_s: int, since_answer_s: float = PATIENT_S) -> list[bool]:
        """Publish at a rate; what waits goes on as if by the timer. Return which publishes went at once."""
        went, waited_s = [], None
        for number in range(int(seconds * per_s)):
            now_s = number / per_s
            if waited_s is not None and now_s - waited_s >= LONGEST_WAIT_S:
                self.producer.flush()
                waited_s = None
            went.append(self.publish(now_s, since_answer_s))
            if not went[-1] and waited_s is None:
                waited_s = now_s
        return went

    @property
    def everything(self) -> list[int]:
        return [*range(self.number)]


async def test_a_stream_of_patient_devices_is_gathered() -> None:
    world = World()
    went = world.stream(3, 100)
    assert went[:5] == [True] * 5, "a stream shows only by its rate"
    assert not any(went[-100:])


async def test_what_waits_goes_when_its_time_is_over() -> None:
    world = World()
    world.stream(3, 100)
    assert world.kafka.produced != world.everything
    # Timers run in the order of their times.
    await asyncio.sleep(LONGEST_WAIT_S)
    assert world.kafka.produced == world.everything


async def test_few_devices_are_not_held_up_and_neither_is_a_flood() -> None:
    assert all(World().stream(20, 5))
    world = World()
    went = world.stream(2, 2 * int(ENOUGH / LONGEST_WAIT_S), since_answer_s=math.inf)
    assert all(went[-100:])
    world.producer.flush()
    assert world.kafka.produced == world.everything


async def test_a_client_that_waits_for_its_answers_is_never_held_up_and_takes_along_what_waits() -> None:
    """Whoever was first: the devices around it, or this client."""
    world = World()
    world.stream(3, 1_000, since_answer_s=math.inf)
    for number in range(100):
        world.publish(3 + number / 10, PATIENT_S)
        assert world.publish(3 + number / 10, EAGER_S)
        assert world.kafka.produced == world.everything


async def test_enough_publishes_wait_no_longer() -> None:
    world = World()
    world.stream(3, 100)
    world.producer.flush()
    for _ in range(ENOUGH):
        world.publish(3.0, PATIENT_S)
    assert world.kafka.produced == world.everything


async def test_a_stream_is_forgotten_after_a_pause() -> None:
    world = World()
    world.stream(3, 100)
    world.producer.flush()
    assert world.publish(13.0, PATIENT_S)


async def test_wills_and_dead_letters_come_behind_the_publishes_before_them() -> None:
    world = World()
    world.stream(3, 100)
    assert world.kafka.produced != world.everything
    record = world.record()
    await world.producer.send(record.topic, key=record.key, value=record.value)
    assert world.kafka.produced == world.everything
    world.publish(3.0, PATIENT_S)
    world.producer.produce_all([world.record()], _ignore)
    assert world.kafka.produced == world.everything


async def test_what_reports_cause_while_others_wait_comes_behind_them() -> None:
    """Every publish that waits is refused, and becomes a dead letter; also so many that they may not nest."""
    world = World()
    world.stream(3, 100)
    world.producer.flush()
    first = world.number
    dead: list[int] = []

    def bury(_error: KafkaError | None) -> None:
        dead.append(world.number)
        world.producer.produce_all([world.record()], _ignore)

    world.kafka.refused = {*range(first, first + ENOUGH)}
    for _ in range(ENOUGH):
        world.publish(3.0, PATIENT_S, bury)
    assert world.kafka.produced == [*range(first), *dead]
    assert dead == [*range(first + ENOUGH, first + 2 * ENOUGH)]


async def test_a_report_that_raises_keeps_back_no_other_publish() -> None:
    world = World()
    world.stream(3, 100)
    world.producer.flush()
    world.kafka.refused = {world.number}

    def fail(_error: KafkaError | None) -> None:
        raise ArithmeticError

    world.publish(3.0, PATIENT_S, fail)
    world.publish(3.0, PATIENT_S)
    try:
        world.producer.flush()
    except ArithmeticError:
        await asyncio.sleep(0)
    assert world.kafka.produced == [number for number in world.everything if number not in world.kafka.refused]


async def test_what_waits_is_refused_with_what_a_broken_producer_has() -> None:
    world = World()
    world.stream(3, 100)
    told: list[int] = []
    assert world.kafka.produced != world.everything
    world.publish(3.0, PATIENT_S, lambda _error: told.append(1))
    world.kafka.refused = {*range(world.number)}
    world.kafka.on_fatal(REFUSED)
    assert world.kafka.fatal == [REFUSED]
    assert told == [1]


async def test_draining_leaves_nothing_behind() -> None:
    world = World()
    world.stream(3, 100)
    assert world.kafka.produced != world.everything
    await world.producer.drain()
    assert world.kafka.produced == world.everything
    assert world.kafka.is_drained


@given(st.lists(st.tuples(st.floats(0, 0.2), st.sampled_from([PATIENT_S, EAGER_S, math.inf])), max_size=200))
def test_whatever_comes_everything_is_produced_once_and_in_order(steps: list[tuple[float, float]]) -> None:
    async def run() -> None:
        world, now_s = World(), 0.0
        for pause_s, since_answer_s in steps:
            now_s += pause_s
            went = world.publish(now_s, since_answer_s)
            assert went or since_answer_s > LONGEST_WAIT_S
            assert world.kafka.produced == [*range(len(world.kafka.produced))]
        await world.producer.drain()
        assert world.kafka.produced == world.everything

    asyncio.run(run())
