"""Plain publishes go to a real librdkafka without confluent-kafka's binding; the broker is librdkafka's own mock."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition, cimpl
from mqtt_packets import publish_packet
from mqtt_plain_world import TOPIC, PlainWorld, plain

from isotherm.mqtt_proxy.hotpath import librdkafka, producer_plugin
from isotherm.servicekit.kafka.clients import PRODUCER_DEFAULTS
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.producer.report_signal import handle_of

TARGET = "thermostat.data"
_PRODUCE = 0
"""Kafka's number of the request."""
_WAIT_S = 30.0
_LONG_MS = 25_000
_LINGER_MS = 200


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def producer(*, is_direct: bool = True, **properties: Any) -> Producer:
    """An idempotent producer with a broker of its own in its process, into which there is a direct way, or none."""
    plugin = {name.replace("_", "."): value for name, value in producer_plugin().items() if is_direct}
    mock = {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0}
    given = {name.replace("_", "."): value for name, value in properties.items()}
    return Producer({**PRODUCER_DEFAULTS, **mock, **plugin, **given})


def call(made: Producer, function: str, *arguments: Any) -> Any:
    """Call a function of librdkafka with the producer's handle."""
    named = getattr(ctypes.CDLL(cimpl.__file__), function)
    named.restype = ctypes.c_void_p
    return named(ctypes.c_void_p(handle_of(made)), *arguments)


def refuse_a_request(made: Producer, code: int) -> None:
    """Let the broker answer the next request to produce with an error."""
    cluster = call(made, "rd_kafka_handle_mock_cluster")
    push = ctypes.CDLL(cimpl.__file__).rd_kafka_mock_push_request_errors
    push(ctypes.c_void_p(cluster), ctypes.c_int16(_PRODUCE), ctypes.c_size_t(1), ctypes.c_int(code))


def drain(loop: asyncio.AbstractEventLoop, kafka: LoopProducer) -> None:
    loop.run_until_complete(asyncio.wait_for(kafka.drain(), _WAIT_S))


def stored(made: Producer) -> list[tuple[Any, ...]]:
    """What a reader of the topic finds, partition by partition."""
    listed = made.list_topics(TARGET, timeout=_WAIT_S)
    (broker,) = listed.brokers.values()
    consumer = Consumer(
        {"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "enable.partition.eof": True}
    )
    partitions = listed.topics[TARGET].partitions
    consumer.assign([TopicPartition(TARGET, number, OFFSET_BEGINNING) for number in partitions])
    found, left = [], len(partitions)
    while left:
        message = consumer.poll(_WAIT_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            left -= 1
        else:
            found.append((message.partition(), message.offset(), message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(found)


@pytest.fixture(autouse=True)
def with_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The direct producer is compiled: these tests hold for it, also where the other suites run without."""
    monkeypatch.delenv("ISOTHERM_PURE_PYTHON", raising=False)


def acknowledged(world: PlainWorld) -> list[int]:
    """The identifiers of the PUBACKs, in their order."""
    answers = bytes(world.wire.received)[4:]
    assert answers[::4] == b"\x40" * (len(answers) // 4)
    return [int.from_bytes(answers[at + 2 : at + 4], "big") for at in range(0, len(answers), 4)]


def publishes() -> bytes:
    numbers = range(1, 21)
    array = b'[{"t": 1, "ts": 1767225600000}, {"t": 2, "ts": 1767225600001}]'
    devices = b"".join(plain(number, number % 2, topic=f"devices/{number % 3}/temperature") for number in numbers)
    return devices + publish_packet(TOPIC, array, flags=2, packet_id=30) + publish_packet(TOPIC, array, flags=0)


def test_kafka_and_client_see_what_they_see_with_the_binding(loop: asyncio.AbstractEventLoop) -> None:
    seen = []
    for is_direct in (True, False):
        kafka = LoopProducer(producer(is_direct=is_direct))
        world = PlainWorld(loop, is_compiled=True, kafka=kafka)
        assert (kafka.direct is not None) is is_direct
        world.receive(publishes())
        drain(loop, kafka)
        world.turn()
        assert world.plain.plans
        seen.append((stored(kafka.producer), world.seen, acknowledged(world)))
        loop.run_until_complete(_close(kafka))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 24
    assert seen[0][2] == [*range(1, 21, 2), 30]


async def _close(kafka: LoopProducer) -> None:
    kafka.close()


def test_an_answer_waits_for_kafka(loop: asyncio.AbstractEventLoop) -> None:
    kafka = LoopProducer(producer(linger_ms=_LONG_MS))
    world = PlainWorld(loop, is_compiled=True, kafka=kafka)
    world.receive(plain(1))
    world.turn()
    assert (acknowledged(world), kafka.outstanding) == ([], 1)
    kafka.producer.flush(_WAIT_S)
    drain(loop, kafka)
    world.turn()
    assert acknowledged(world) == [1]


def test_a_record_that_waits_in_a_replaced_producer_is_not_acknowledged(loop: asyncio.AbstractEventLoop) -> None:
    kafka = LoopProducer(producer(linger_ms=_LONG_MS))
    world = PlainWorld(loop, is_compiled=True, version=5, kafka=kafka)
    world.receive(plain(1, version=5) + plain(2, version=5))
    before = kafka.direct

    async def replace() -> None:
        kafka.replace(producer())

    loop.run_until_complete(replace())
    assert kafka.direct not in (None, before)
    world.receive(plain(3, version=5))
    drain(loop, kafka)
    world.turn()
    answers = bytes(world.wire.received)
    # 0x83: implementation specific error.
    assert answers.endswith(b"\x40\3\0\1\x83\x40\3\0\2\x83\x40\2\0\3")
    assert world.metrics.refused[1] == 2
    assert not kafka._retired


def test_after_a_fatal_error_nothing_is_acknowledged_and_somebody_is_told(loop: asyncio.AbstractEventLoop) -> None:
    kafka, told = LoopProducer(producer(linger_ms=_LONG_MS)), list[KafkaError]()
    kafka.on_fatal = told.append
    world = PlainWorld(loop, is_compiled=True, kafka=kafka)
    world.receive(plain(1))
    code = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    call(kafka.producer, "rd_kafka_test_fatal_error", ctypes.c_int(code), ctypes.c_char_p(b"a test"))
    world.receive(plain(2))
    # The refused record, or the poll, whichever comes first.
    assert {error.code() for error in told} <= {KafkaError._FATAL, code}
    assert told
    assert acknowledged(world) == []
    assert world.wire.closed


def test_a_full_queue_of_librdkafka_refuses_what_has_no_room(loop: asyncio.AbstractEventLoop) -> None:
    seen = []
    for is_direct in (True, False):
        kafka = LoopProducer(producer(is_direct=is_direct, queue_buffering_max_messages=3, linger_ms=_LINGER_MS))
        world = PlainWorld(loop, is_compiled=True, version=5, kafka=kafka)
        array = b"[" + b",".join(b'{"t": %d}' % number for number in range(2)) + b"]"
        world.receive(b"".join(_array(number, array) for number in range(1, 4)))
        drain(loop, kafka)
        world.turn()
        seen.append((bytes(world.wire.received), world.metrics.refused[1], kafka.outstanding))
        loop.run_until_complete(_close(kafka))
    assert seen[0] == seen[1]
    assert seen[0][1:] == (2, 0)


def _array(packet_id: int, payload: bytes) -> bytes:
    return publish_packet(TOPIC, payload, flags=2, packet_id=packet_id, properties=b"\0")


@pytest.mark.parametrize(
    "properties",
    [
        {"allow_auto_create_topics": False, "topic_metadata_propagation_max_ms": 0},
        {"test_mock_num_brokers": 0, "delivery_timeout_ms": 200, "linger_ms": 0},
    ],
    ids=["the topic is gone", "no broker answers"],
)
def test_what_is_never_stored_is_told_as_with_the_binding(
    loop: asyncio.AbstractEventLoop, properties: dict[str, Any]
) -> None:
    seen = []
    for is_direct in (True, False):
        kafka = LoopProducer(producer(is_direct=is_direct, **properties))
        world = PlainWorld(loop, is_compiled=True, version=5, kafka=kafka)
        # The second one comes when librdkafka knows that there is no such topic.
        for number in (1, 2):
            world.receive(plain(number, version=5))
            drain(loop, kafka)
            world.turn()
        loop.run_until_complete(_close(kafka))
        seen.append((bytes(world.wire.received), world.metrics.refused, world.gate.records, kafka.outstanding))
    assert seen[0] == seen[1]
    assert seen[0][1:] == ([0, 2, 0], 0, 0)


def test_a_record_of_a_refused_batch_is_tried_alone(loop: asyncio.AbstractEventLoop) -> None:
    made, single = producer(), producer()
    kafka = LoopProducer(made, make_single=lambda: single)
    world = PlainWorld(loop, is_compiled=True, kafka=kafka)
    refuse_a_request(made, KafkaError.INVALID_RECORD)
    world.receive(plain(1))
    drain(loop, kafka)
    world.turn()
    assert acknowledged(world) == [1]
    (record,) = stored(single)
    assert record[2] == b"attic"
    assert record[3].startswith(b"\0\0\0\0\7\x0aattic")
    assert dict(record[4]) == {"mqtt.topic": TOPIC.encode(), "mqtt.qos": b"1", "mqtt.client_id": b"c"}


def test_records_of_an_ended_producer_harm_nobody(loop: asyncio.AbstractEventLoop) -> None:
    """librdkafka reports what it gives up at its end, when nobody is there any more."""
    kafka = LoopProducer(producer(linger_ms=_LONG_MS))
    world = PlainWorld(loop, is_compiled=True, kafka=kafka)
    world.receive(plain(1) + plain(2))
    loop.run_until_complete(_close(kafka))
    del kafka, world
    gc.collect()


def test_a_producer_without_the_plugin_is_used_through_the_binding() -> None:
    assert librdkafka.direct_producer(producer(is_direct=False)) is None
    assert librdkafka.direct_producer(producer()) is not None


def test_the_reports_of_a_producer_go_to_one_place() -> None:
    """A second reader of them would get records of publishes that it does not hold."""
    made = producer()
    first = librdkafka.direct_producer(made)
    assert first is not None
    assert librdkafka.direct_producer(made) is None


def test_an_unverified_confluent_kafka_is_used_through_the_binding() -> None:
    librdkafka.plugin_path.cache_clear()
    try:
        with patch.object(librdkafka, "is_available", lambda: False):
            assert producer_plugin() == {}
            assert librdkafka.direct_producer(producer()) is None
    finally:
        librdkafka.plugin_path.cache_clear()


def test_without_compiled_code_no_plugin_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1")
    assert producer_plugin() == {}
