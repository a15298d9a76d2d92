"""Observers and listeners attest every record that Kafka has, where it is and once; killed, never more."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiocoap import POST, Context, Message  # type: ignore[import-untyped]  # no types there
from attested_records import Placed, attested, stored
from coap_world import BOTH, World, opened, stop

from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

RAW, READINGS = "coap_sensor_topic", "thermostat.data"
FEWEST = 120


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def found(world: World, topic: str, is_mine: Callable[[bytes], bool]) -> tuple[Placed, Placed]:
    """The records of this test that are attested, and those that are in the topic."""
    kafka = KafkaSettings(bootstrap_servers=world.kafka.bootstrap_servers)
    mine = stored(kafka, topic, is_mine)
    told = attested(kafka, RegistrySettings(url=world.registry.url), "coap-ingest", topic)
    return Counter({place: times for place, times in told.items() if place in mine}), mine


def test_every_notification_is_attested_once_and_after_a_kill_no_other(world: World) -> None:
    reader = world.reader(RAW)
    world.simulator("--rate", "50", "--max-age", "2")
    killed = world.ingest(BOTH.format("sensors"), "attestations.interval_ms=100")
    reader.until(lambda seen: len(seen) >= FEWEST)
    killed.kill()
    killed.wait()
    ends = world.ingest(BOTH.format("sensors"))
    reader.until(lambda seen: len(seen) >= 2 * FEWEST)
    assert stop(ends) == 0
    told, mine = found(world, RAW, lambda key: world.authority.encode() in key)
    # What was acknowledged after the last page of the killed process, nobody attests.
    assert told <= mine
    assert set(told.values()) == {1}
    assert len(told) > 1.5 * FEWEST


async def test_every_request_that_is_answered_is_attested_once(world: World) -> None:
    ingest = world.listening(BOTH.format("`devices/*`"))
    run = uuid.uuid4().hex[:8]
    client = await Context.create_client_context(transports=["udp6"])
    for number in range(FEWEST):
        payload = json.dumps({"sensorId": f"{run}-{number}", "temperature": number / 10}).encode()
        uri = f"coap://127.0.0.1:{world.port}/devices/{number}"
        answer = await client.request(Message(code=POST, uri=uri, payload=payload, content_format=50)).response
        assert answer.code.dotted == "2.04"
    await client.shutdown()
    assert stop(ingest) == 0
    told, mine = found(world, READINGS, lambda key: key.startswith(run.encode()))
    assert len(mine) == FEWEST
    assert told == mine
    assert set(told.values()) == {1}
