"""The spans of a publish end with its answer, whatever Kafka does with its records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from mqtt_packets import publish_packet
from mqtt_plain_world import PlainWorld, plain

from isotherm.mqtt_proxy.delivery.transactional_writer import WriteResult

TOO_LARGE, TIMED_OUT = KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._MSG_TIMED_OUT
REASON = "isotherm.dead_letter.reason"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(params=[True, False])
def world(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> PlainWorld:
    return PlainWorld(loop, is_compiled=request.param, sample_ratio=1.0)


def spans(world: PlainWorld) -> dict[str, tuple[str | None, Any]]:
    """Error and dead letter's reason of every ended span, by name."""
    assert world.traces is not None
    world.traces.close()
    return {
        span.name: (span.status.description, (span.attributes or {}).get(REASON))
        for span in world.spans.get_finished_spans()
    }


def has_context(record: tuple[Any, ...]) -> bool:
    return any(isinstance(one, tuple) and one[0] == "traceparent" for one in record[3])


@pytest.mark.parametrize("qos", [0, 1])
def test_what_kafka_has_is_no_error(world: PlainWorld, qos: int) -> None:
    world.receive(plain(1, qos))
    assert all(map(has_context, world.kafka.records))
    world.report([None])
    assert spans(world) == {"mqtt publish": (None, None), "send thermostat.data": (None, None)}


@pytest.mark.parametrize("qos", [0, 1])
def test_what_kafka_refuses_goes_on_as_a_dead_letter(world: PlainWorld, qos: int) -> None:
    world.receive(plain(1, qos))
    # The producer tries a record that is too large once more, by itself.
    world.report([TOO_LARGE])
    while len(world.kafka.records) < 2 or world.kafka.records[-1][0] != "mqtt-proxy.dead-letters":
        world.report([TOO_LARGE])
    assert has_context(world.kafka.records[-1])
    world.report([None])
    found = spans(world)
    error = KafkaError(TOO_LARGE).str()
    assert found == {
        "send thermostat.data": (error, None),
        "send mqtt-proxy.dead-letters": (None, None),
        "mqtt publish": (None, "refused"),
    }


def test_what_is_not_stored_is_an_error(world: PlainWorld) -> None:
    world.receive(plain(1))
    world.report([TIMED_OUT])
    error = KafkaError(TIMED_OUT).str()
    assert spans(world) == {"mqtt publish": (error, None), "send thermostat.data": (error, None)}


def test_a_dead_letter_of_our_own_says_why(world: PlainWorld) -> None:
    world.receive(publish_packet("devices/attic/temperature", b"{", flags=2, packet_id=1))
    world.report([None])
    assert spans(world) == {"mqtt publish": (None, "payload"), "send mqtt-proxy.dead-letters": (None, None)}


@pytest.mark.parametrize("result", [WriteResult.COMMITTED, WriteResult.ABORTED])
def test_qos_2_ends_with_its_transaction(world: PlainWorld, result: WriteResult) -> None:
    world.receive(plain(1, 2))
    assert not world.spans.get_finished_spans()
    world.end_transaction(result)
    error = None if result is WriteResult.COMMITTED else "the transaction's outcome: ABORTED"
    assert spans(world) == {"mqtt publish": (error, None), "send thermostat.data": (error, None)}


def test_a_refused_record_of_a_transaction_goes_on_as_a_dead_letter(world: PlainWorld) -> None:
    world.receive(plain(1, 2))
    while not any(record[0] == "mqtt-proxy.dead-letters" for record in world.writes.tried[-1]):
        world.end_transaction(WriteResult.ABORTED_RECORD_AT_FAULT)
    (dead,) = [record for record in world.writes.tried[-1] if record[0] == "mqtt-proxy.dead-letters"]
    assert has_context(dead)
    world.end_transaction(WriteResult.COMMITTED)
    found = spans(world)
    assert found["mqtt publish"] == (None, "refused")
    assert found["send mqtt-proxy.dead-letters"] == (None, None)
    assert found["send thermostat.data"][0]


def test_a_publish_that_is_refused_to_the_client_is_an_error(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=True, sample_ratio=1.0, version=5, invalid_publish="refuse")
    world.receive(publish_packet("devices/attic/temperature", b"{", flags=2, packet_id=1, properties=b"\0"))
    found = spans(world)
    assert found["mqtt publish"] == ("refused: payload", "payload")
