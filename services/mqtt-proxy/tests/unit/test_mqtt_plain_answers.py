"""What a client is answered for plain publishes and when, with the compiled way and without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import KafkaError
from mqtt_packets import packet, publish_packet
from mqtt_plain_world import TOPIC, PlainWorld, plain

from isotherm.mqtt_proxy.delivery.transactional_writer import WriteResult

TIMED_OUT, TOO_LARGE = KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE
ARRAY = b'[{"t": 1}, {"t": 2, "id": "loft"}, {"t": 3}]'


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_pubacks_wait_for_the_first_one(loop: asyncio.AbstractEventLoop, is_compiled: bool) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.receive(plain(1) + publish_packet(TOPIC, b"[{}]", flags=2, packet_id=2) + plain(3))
    first, dead_letter, last = world.kafka.waiting
    world.kafka.waiting[:] = [last, dead_letter]
    world.report([None, None])
    assert world.seen["answers"][4:] == b""
    world.kafka.waiting[:] = [first]
    world.report([None])
    assert world.seen["answers"][4:] == b"\x40\2\0\1\x40\2\0\2\x40\2\0\3"


def pubrel(number: int) -> bytes:
    return packet(0x62, number.to_bytes(2, "big"))


def answers(first: int, numbers: Sequence[int]) -> bytes:
    return b"".join(bytes((first, 2)) + number.to_bytes(2, "big") for number in numbers)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
def test_qos2_publishes_of_a_read_are_stored_and_answered_together(
    loop: asyncio.AbstractEventLoop, is_clean: bool, is_compiled: bool
) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled, is_clean=is_clean)
    before = len(world.writes.tried)
    world.receive(b"".join(plain(number, 2) for number in range(1, 21)))
    assert len(world.writes.tried) == before + 1
    assert [key for topic, key, *_ in world.writes.tried[-1] if topic == "thermostat.data"] == ["attic"] * 20
    assert world.seen["answers"][4:] == b""
    world.end_transaction(WriteResult.COMMITTED)
    assert world.seen["answers"][4:] == answers(0x50, range(1, 21))
    world.receive(b"".join(map(pubrel, range(1, 21))))
    world.end_transaction(WriteResult.COMMITTED)
    assert world.seen["answers"][84:] == answers(0x70, range(1, 21))
    assert world.seen["session"] == ({}, set(), [], 0)
    assert world.seen["gate"] == (0, 0)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_qos2_publish_that_comes_again_while_it_is_in_flight_is_answered_twice(
    loop: asyncio.AbstractEventLoop, is_compiled: bool
) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.receive(plain(1, 2) + plain(2, 2) + plain(3, 2) + plain(2, 2))
    world.end_transaction(WriteResult.COMMITTED)
    assert world.seen["answers"][4:] == answers(0x50, (1, 2, 2, 3))
    assert [topic for topic, *_ in world.writes.committed].count("thermostat.data") == 3


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_committed_qos2_publish_that_comes_again_is_answered_at_once(
    loop: asyncio.AbstractEventLoop, is_compiled: bool
) -> None:
    """Behind the answer to the second one it would come when its identifier may be that of another publish."""
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.receive(plain(1, 2))
    world.receive(plain(2, 2))
    world.end_transaction(WriteResult.COMMITTED)
    world.receive(plain(1, 2))
    assert world.seen["answers"][4:] == answers(0x50, (1, 1))
    world.end_transaction(WriteResult.COMMITTED)
    assert world.seen["answers"][4:] == answers(0x50, (1, 1, 2))


@pytest.mark.parametrize("is_compiled", [True, False])
def test_of_qos2_publishes_of_a_read_only_the_refused_one_becomes_a_dead_letter(
    loop: asyncio.AbstractEventLoop, is_compiled: bool
) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.receive(plain(1, 2) + publish_packet(TOPIC, ARRAY, flags=4, packet_id=2) + plain(3, 2))
    world.end_transaction(WriteResult.ABORTED_RECORD_AT_FAULT)
    assert len(world.writes.tried[-1]) == 2, "the first one alone, and the witness"
    world.end_transaction(WriteResult.COMMITTED)
    while [topic for topic, *_ in world.writes.tried[-1]].count("thermostat.data") > 2:
        world.end_transaction(WriteResult.ABORTED_RECORD_AT_FAULT)
    world.end_transaction(WriteResult.COMMITTED)
    world.end_transaction(WriteResult.COMMITTED)
    stored = [(topic, value) for topic, _, value, _ in world.writes.committed if topic != "sessions"]
    assert sorted(topic for topic, _ in stored) == ["mqtt-proxy.dead-letters"] + ["thermostat.data"] * 2
    assert ("mqtt-proxy.dead-letters", ARRAY) in stored
    assert world.seen["answers"][4:] == answers(0x50, (1, 2, 3))
    assert world.seen["gate"] == (0, 0)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_qos2_publishes_that_are_not_stored_are_not_acknowledged(
    loop: asyncio.AbstractEventLoop, version: int, is_compiled: bool
) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled, version=version)
    at = len(world.seen["answers"])
    world.receive(b"".join(plain(number, 2, version=version) for number in (1, 2)))
    world.end_transaction(WriteResult.ABORTED)
    refused = b"\x50\3\0\1\x83\x50\3\0\2\x83"
    assert world.seen["answers"][at:] == (refused if version == 5 else b"")
    assert bool(world.seen["closed"]) == (version == 4)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_an_array_is_acknowledged_when_all_its_readings_are_stored(
    loop: asyncio.AbstractEventLoop, is_compiled: bool
) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.receive(publish_packet(TOPIC, ARRAY, flags=2, packet_id=1) + plain(2))
    assert [key for _, key, *_ in world.kafka.records] == ["attic", "loft", "attic", "attic"]
    world.report([None, None])
    assert world.seen["answers"][4:] == b""
    world.report([None])
    assert world.seen["answers"][4:] == b"\x40\2\0\1"
    assert world.seen["outstanding"] == 1


@pytest.mark.parametrize("is_compiled", [True, False])
def test_an_array_of_which_kafka_refuses_one_reading_becomes_one_dead_letter(
    loop: asyncio.AbstractEventLoop, is_compiled: bool
) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.receive(publish_packet(TOPIC, ARRAY, flags=2, packet_id=1))
    world.report([None, TOO_LARGE, None])
    assert [topic for topic, *_ in world.kafka.records] == ["thermostat.data"] * 3 + ["mqtt-proxy.dead-letters"]
    assert world.kafka.records[3][2] == ARRAY
    world.report([None])
    assert world.seen["answers"][4:] == b"\x40\2\0\1"
    assert world.seen["outstanding"] == 0


@pytest.mark.parametrize("is_compiled", [True, False])
def test_an_array_that_the_producer_takes_in_part_is_not_acknowledged(
    loop: asyncio.AbstractEventLoop, is_compiled: bool
) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.kafka.refusal, world.kafka.room = BufferError(), 2
    world.receive(publish_packet(TOPIC, ARRAY, flags=2, packet_id=1))
    assert len(world.kafka.records) == world.seen["outstanding"] == 2
    world.report([None, None])
    assert world.seen["closed"]
    assert world.seen["answers"][4:] == b""
    assert world.seen["outstanding"] == 0


@pytest.mark.parametrize("is_compiled", [True, False])
def test_what_kafka_refuses_becomes_a_dead_letter(loop: asyncio.AbstractEventLoop, is_compiled: bool) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.receive(plain(1) + plain(2))
    world.report([TOO_LARGE, None])
    assert [topic for topic, *_ in world.kafka.records] == ["thermostat.data"] * 2 + ["mqtt-proxy.dead-letters"]
    assert world.kafka.records[2][2] == json.dumps({"t": 0.25, "value": 1, "ts": 1_767_225_600_001}).encode()
    assert world.seen["answers"][4:] == b""
    world.report([None])
    assert world.seen["answers"][4:] == b"\x40\2\0\1\x40\2\0\2"
    assert world.seen["outstanding"] == 0


@pytest.mark.parametrize("is_compiled", [True, False])
def test_what_kafka_does_not_store_ends_a_3_1_1_connection(loop: asyncio.AbstractEventLoop, is_compiled: bool) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled)
    world.receive(plain(1) + plain(2))
    world.report([TIMED_OUT, None])
    assert world.seen["closed"]
    assert world.seen["answers"][4:] == b""
    assert world.seen["outstanding"] == 0


@pytest.mark.parametrize("is_compiled", [True, False])
def test_publishes_and_releases_of_a_read_are_answered_in_their_order(
    loop: asyncio.AbstractEventLoop, is_compiled: bool
) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled, is_clean=False)
    world.receive(b"".join(plain(number, 2) for number in (1, 2, 3)))
    world.end_transaction(WriteResult.COMMITTED)
    before = len(world.seen["answers"])
    world.receive(plain(4, 2) + plain(5, 2) + pubrel(1) + pubrel(2) + plain(6, 2) + pubrel(3))
    world.end_transaction(WriteResult.COMMITTED)
    expected = answers(0x50, (4, 5)) + answers(0x70, (1, 2)) + answers(0x50, (6,)) + answers(0x70, (3,))
    assert world.seen["answers"][before:] == expected
    assert [number for number, _ in world.seen["session"][2]] == [4, 5, 6]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_refused_releases_are_tried_one_by_one(loop: asyncio.AbstractEventLoop, is_compiled: bool) -> None:
    world = PlainWorld(loop, is_compiled=is_compiled, is_clean=False)
    world.receive(plain(1, 2) + plain(2, 2))
    world.end_transaction(WriteResult.COMMITTED)
    before, tried = len(world.seen["answers"]), len(world.writes.tried)
    world.receive(pubrel(1) + pubrel(2))
    world.end_transaction(WriteResult.ABORTED_RECORD_AT_FAULT)
    world.end_transaction(WriteResult.COMMITTED)
    world.end_transaction(WriteResult.COMMITTED)
    assert len(world.writes.tried) == tried + 3
    assert world.seen["answers"][before:] == answers(0x70, (1, 2))
    assert world.seen["session"][2] == []
