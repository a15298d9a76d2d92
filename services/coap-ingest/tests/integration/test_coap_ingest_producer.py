"""A fatal error of the idempotent producer: `/ready` shows it, and no acknowledged record is lost."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiocoap import POST, Context, Message  # type: ignore[import-untyped]  # no types there
from coap_world import READINGS, TIMEOUT_S, World, opened, readings_in, sent, stop, tail
from kafka_gate import OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaGate

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


@pytest.fixture
def gate(world: World) -> KafkaGate:
    made = KafkaGate(world.kafka.bootstrap_servers)
    world.cleanup.callback(made.close)
    world.way_to_kafka = made.bootstrap_servers
    return made


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Any]:
    context = await Context.create_client_context(transports=["udp6"])
    yield context
    await context.shutdown()


def break_producer(world: World, gate: KafkaGate) -> None:
    """Cause a fatal error of the service's producer, and return when the producer is replaced."""
    before = world.metric("producers_replaced_total")
    gate.refuse_produce(OUT_OF_ORDER_SEQUENCE_NUMBER)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if world.metric("producers_replaced_total") > before:
            return
    raise AssertionError(f"no producer was replaced\n{tail(world.folder / 'ingest.log')}")


async def test_after_a_fatal_error_posts_are_stored_and_answered_2_04_again(
    world: World, gate: KafkaGate, client: Any
) -> None:
    reader = world.reader("thermostat.data")
    ingest = world.listening(READINGS.format("devices"))
    numbers = itertools.count()
    codes: dict[str, str] = {}

    async def post() -> str:
        name = f"D{next(numbers)}"
        body = f'{{"sensorId": "{name}", "temperature": 1, "timestamp": 1486997194029}}'.encode()
        uri = f"coap://127.0.0.1:{world.port}/devices"
        answer = await client.request(Message(code=POST, uri=uri, payload=body)).response
        codes[name] = answer.code.dotted
        return str(answer.code.dotted)

    async with asyncio.timeout(TIMEOUT_S):
        while await post() != "2.04":
            pass
        breaking = asyncio.create_task(asyncio.to_thread(break_producer, world, gate))
        while not breaking.done():
            await post()
        await breaking
        while await post() != "2.04":
            pass
    reader.until(lambda _: not world.ready())
    assert stop(ingest) == 0
    assert set(codes.values()) == {"2.04", "5.03"}
    acknowledged = {name for name, code in codes.items() if code == "2.04"}
    assert acknowledged <= {device for device, _, _ in readings_in(reader.rest())}
    assert "making a new one" in (world.folder / "ingest.log").read_text()


def test_after_a_fatal_error_every_notification_is_stored_in_its_order(world: World, gate: KafkaGate) -> None:
    reader = world.reader("thermostat.data")
    simulator = world.simulator("--rate", "100", "--max-age", "60")
    ingest = world.ingest(READINGS.format("sensors"))
    reader.until(lambda seen: len(seen) >= 50)
    break_producer(world, gate)
    # The broker has stored records that it reported as failed: copies with the same identity.
    before = len(set(readings_in(reader.seen)))
    reader.until(lambda seen: len(set(readings_in(seen))) > before + 100 and not world.ready())
    assert stop(simulator) == 0
    assert world.metric("missed_notifications_total") == 0
    assert world.metric("notifications_total", outcome="dropped") == 0
    assert stop(ingest) == 0
    stored, taken = list(dict.fromkeys(readings_in(reader.rest()))), sent(world.ledger)
    first = min(taken.index(reading) for reading in stored)
    assert len(stored) > 150
    for device in {name for name, _, _ in stored}:
        assert [r for r in stored if r[0] == device] == [r for r in taken[first:] if r[0] == device]
