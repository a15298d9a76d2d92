"""A fatal error of a real librdkafka producer with its mock broker: detected, repaired, or the process ends."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Producer

from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka.clients import PRODUCER_DEFAULTS
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.producer.health import ProducerHealth

_PRODUCE = 0


def make() -> Producer:
    """A producer as the suite makes them, with a broker of its own in its process (librdkafka's mock cluster)."""
    return Producer(
        {**PRODUCER_DEFAULTS, "bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0}
    )


def _librdkafka() -> ctypes.CDLL:
    spec = importlib.util.find_spec("confluent_kafka")
    assert spec is not None
    assert spec.origin is not None
    (found,) = (Path(spec.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(found))
    library.rd_kafka_handle_mock_cluster.argtypes = [ctypes.c_void_p]
    library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
    return library


LIBRDKAFKA = _librdkafka()


def refuse_next(producer: Producer, error: int = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER) -> None:
    """Have the broker answer the next produce request with `error`."""
    # confluent_kafka's Handle: the object's head, two words, and then its rd_kafka_t*.
    handle = ctypes.c_void_p.from_address(id(producer) + 2 * ctypes.sizeof(ctypes.c_void_p)).value
    cluster = LIBRDKAFKA.rd_kafka_handle_mock_cluster(handle)
    LIBRDKAFKA.rd_kafka_mock_push_request_errors(
        ctypes.c_void_p(cluster), ctypes.c_int16(_PRODUCE), ctypes.c_size_t(1), ctypes.c_int(error)
    )


async def until(condition: Callable[[], object]) -> None:
    """Run the event loop until the condition holds."""
    while not condition():  # noqa: ASYNC110 - librdkafka has no event to wait for
        await asyncio.sleep(0.001)


class NotedHealth(Health):
    """A health that notes which parts were ever not ready."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: set[str] = set()

    def not_ready(self, part: str, reason: str) -> None:
        self.noted.add(part)
        super().not_ready(part, reason)


class World:
    """A supervised producer, and its state at the end."""

    def __init__(self, **options: Any) -> None:
        self.health = NotedHealth()
        self.health.ready()
        self.incurable: list[KafkaError] = []
        self.reports: list[KafkaError | None] = []
        self.producer = LoopProducer(make())
        self.watch = ProducerHealth(self.producer, make, self.health, on_incurable=self.incurable.append, **options)

    def produce(self, count: int = 1) -> None:
        for number in range(count):
            self.producer.produce_all([("t", "k", str(number).encode(), [])], self.reports.append)

    async def stored(self, count: int = 1) -> None:
        # The reports of a producer that was replaced may come after the replacement.
        await until(lambda: not self.producer.outstanding)
        self.reports.clear()
        self.produce(count)
        await until(lambda: len(self.reports) == count)
        assert self.reports == [None] * count


async def test_fatal_error_fails_what_waits_and_a_new_producer_goes_on() -> None:
    world = World()
    await world.stored()
    broken = world.producer.producer
    refuse_next(broken)

    world.produce(20)
    await until(lambda: len(world.reports) == 21)

    # By identity: a KafkaError that is compared with None leaves an exception behind, which the next call meets.
    assert all(report is not None for report in world.reports[1:]), "nothing refused is reported as stored"
    assert world.producer.outstanding == 0
    # The new producer may work before the last report of the old one comes.
    assert "producer" in world.health.noted
    await until(lambda: not world.health.problems())
    assert world.producer.producer is not broken
    assert world.watch.replaced == 1
    await world.stored(20)


async def test_fatal_error_of_an_idle_producer_is_seen() -> None:
    world = World()
    await world.stored()
    broken = world.producer.producer
    handle = ctypes.c_void_p.from_address(id(broken) + 2 * ctypes.sizeof(ctypes.c_void_p)).value
    LIBRDKAFKA.rd_kafka_test_fatal_error(ctypes.c_void_p(handle), 45, b"nobody sends anything")

    def looked() -> bool:
        world.watch.look()
        return world.watch.replaced == 1

    await until(looked)
    await until(lambda: not world.health.problems())
    await world.stored()


async def test_producers_that_break_again_and_again_are_the_end() -> None:
    world = World(most=3)
    for turn in range(1, 4):
        await world.stored()
        refuse_next(world.producer.producer)
        world.produce()
        await until(lambda turn=turn: world.watch.replaced == turn or world.incurable)  # type: ignore[misc]  # a default argument

    assert [error.code() for error in world.incurable] == [KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert world.watch.replaced == 2
    assert "producer" in world.health.problems()


async def test_fatal_errors_far_apart_are_cured_each() -> None:
    now = [0.0]
    world = World(most=2, clock=lambda: now[0])
    for turn in range(1, 4):
        now[0] += 301
        await world.stored()
        refuse_next(world.producer.producer)
        world.produce()
        await until(lambda turn=turn: world.watch.replaced == turn)  # type: ignore[misc]  # a default argument
    assert not world.incurable


async def test_report_that_raises_does_not_stop_the_others() -> None:
    producer, reports = LoopProducer(make()), []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context["exception"]))

    def raises(_error: KafkaError | None) -> None:
        raise ArithmeticError

    producer.produce("t", key=None, value=b"1", on_delivery=raises)
    await producer.send("t", key=None, value=b"2")
    await producer.drain()
    assert [type(report) for report in reports] == [ArithmeticError]


async def test_drain_ends_when_the_last_report_raises() -> None:
    producer = LoopProducer(make())
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)

    def raises(_error: KafkaError | None) -> None:
        raise ArithmeticError

    producer.produce("t", key=None, value=b"1", on_delivery=raises)
    await asyncio.wait_for(producer.drain(), 60)
    assert (producer.outstanding, producer.failed_reports) == (0, 1)
