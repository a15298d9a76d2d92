"""Which publishes of QoS 0 and 1 wait for others: those of a stream of devices that do not wait for their answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.mqtt_proxy.delivery.gathered_producer import GatheredProducer
from isotherm.mqtt_proxy.delivery.publish_patience import ENOUGH, LONGEST_WAIT_S, PublishPatience
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.servicekit.producer.delivery import LoopProducer, OnDelivery

PATIENT_S, EAGER_S = 2.5, 0.001


class Recorded:
    """A producer that Kafka answers at once; `produced` are the numbers of the publishes in their order."""

    def __init__(self) -> None:
        self.produced: list[int] = []
        self.is_drained = False

    def produce_all(self, records: Sequence[ProducerRecord], _on_delivery: OnDelivery) -> None:
        self.produced += [int(record.value or b"") for record in records]

    async def send(self, _topic: str, *, key: object, value: bytes, headers: object) -> None:
        self.produced.append(int(value))

    async def drain(self) -> None:
        self.is_drained = True


class World:
    """Publishes with consecutive numbers, at times that the test names."""

    def __init__(self) -> None:
        self.kafka = Recorded()
        self.producer = GatheredProducer(cast(LoopProducer, self.kafka), PublishPatience())
        self.number = 0

    def publish(self, now_s: float, since_answer_s: float) -> bool:
        """Publish; return whether the producer got the records at once."""
        record = ProducerRecord("readings", "dev", b"%d" % self.number, [])
        self.number += 1
        self.producer.produce_all([record], cast(Any, None), now_s=now_s, since_answer_s=since_answer_s)
        return self.kafka.produced[-1:] == [self.number - 1]


def stream(world: World, seconds: int, per_s: int, since_answer_s: float = PATIENT_S) -> list[bool]:
    return [world.publish(number / per_s, since_answer_s) for number in range(seconds * per_s)]


async def test_a_stream_of_patient_devices_is_gathered_and_arrives_whole_and_in_order() -> None:
    world = World()
    at_once = stream(world, 2, 100)
    assert at_once[:5] == [True] * 5, "a stream shows only by its rate"
    assert not any(at_once[-100:])
    # Timers that are due in the same turn run in the order of their times.
    await asyncio.sleep(LONGEST_WAIT_S)
    assert world.kafka.produced == [*range(world.number)]


async def test_few_devices_and_those_that_wait_for_their_answers_are_not_held_up() -> None:
    assert all(stream(World(), 20, 5))
    assert all(stream(World(), 3, 200, since_answer_s=EAGER_S))


async def test_publishes_without_answers_make_a_stream_and_a_flood_is_not_gathered() -> None:
    assert not any(stream(World(), 2, 100, since_answer_s=math.inf)[-100:])
    flood = 2 * int(ENOUGH / LONGEST_WAIT_S)
    world = World()
    at_once = stream(world, 2, flood, since_answer_s=math.inf)
    world.producer.flush()
    assert world.kafka.produced == [*range(world.number)]
    assert all(at_once[-1:])


async def test_enough_publishes_wait_no_longer() -> None:
    world = World()
    stream(world, 2, 100)
    world.producer.flush()
    before = world.number
    for _ in range(ENOUGH):
        world.publish(2.0, PATIENT_S)
    assert world.kafka.produced == [*range(before + ENOUGH)]


async def test_a_will_comes_behind_the_publishes_before_it() -> None:
    world = World()
    stream(world, 2, 100)
    assert len(world.kafka.produced) < world.number
    await world.producer.send("readings", key="dev", value=b"%d" % world.number)
    assert world.kafka.produced == [*range(world.number + 1)]


async def test_draining_leaves_nothing_behind() -> None:
    world = World()
    stream(world, 2, 100)
    assert len(world.kafka.produced) < world.number
    await world.producer.drain()
    assert world.kafka.produced == [*range(world.number)]
    assert world.kafka.is_drained


@given(st.lists(st.tuples(st.floats(0, 0.2), st.sampled_from([PATIENT_S, EAGER_S, math.inf])), max_size=200))
def test_whatever_comes_everything_is_produced_once_and_in_order(steps: list[tuple[float, float]]) -> None:
    async def run() -> None:
        world, now_s = World(), 0.0
        for pause_s, since_answer_s in steps:
            now_s += pause_s
            world.publish(now_s, since_answer_s)
            assert world.kafka.produced == [*range(len(world.kafka.produced))]
        await world.producer.drain()
        assert world.kafka.produced == [*range(world.number)]

    asyncio.run(run())


def test_a_stream_is_forgotten_after_a_pause() -> None:
    patience = PublishPatience(LONGEST_WAIT_S)
    for number in range(300):
        patience.note(number / 100, PATIENT_S)
    assert patience.is_stream
    patience.note(10.0, PATIENT_S)
    assert not patience.is_stream


@pytest.mark.parametrize("eager_of_ten", [0, 4, 6, 10])
def test_most_publishes_decide(eager_of_ten: int) -> None:
    patience = PublishPatience(LONGEST_WAIT_S)
    for number in range(1_000):
        patience.note(number / 100, EAGER_S if number % 10 < eager_of_ten else PATIENT_S)
    assert patience.is_stream is (eager_of_ten < 5)
