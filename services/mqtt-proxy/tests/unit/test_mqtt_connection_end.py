"""What a client sent before it closed is handled, also when it did not wait for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from mqtt_model import Wire
from mqtt_packets import connect_packet, publish_packet
from mqtt_plain_world import PlainWorld

from isotherm.mqtt_proxy.server.connection import Connection

PUBLISH = publish_packet("devices/attic/temperature", b'{"t": 21.5}')
DISCONNECT = b"\xe0\0"


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


async def client_of(world: PlainWorld, data: bytes) -> tuple[Wire, bool]:
    """Return the socket of a client that sends `data` at once and closes, and whether the server keeps it open.

    Over a WebSocket the bytes and the Close frame come in one read.
    """
    wire, connection = Wire(), Connection(world.server)
    connection.connection_made(wire)
    connection.data_received(data)
    return wire, connection.eof_received()


@pytest.mark.parametrize("end", [DISCONNECT, b""])
def test_a_client_that_waits_for_no_connack_is_served(loop: asyncio.AbstractEventLoop, end: bytes) -> None:
    world = PlainWorld(loop, is_compiled=False)
    wire, is_kept = loop.run_until_complete(client_of(world, connect_packet("quick", keep_alive=0) + PUBLISH + end))
    assert is_kept
    world.turn()
    assert [key for _, key, *_ in world.kafka.records] == ["attic"]
    assert wire.closed
    reason = "disconnect" if end else "connection lost"
    assert world.metrics.connections_closed == {reason: 1}


def test_a_client_that_sends_half_a_connect_is_not_kept(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=False)
    assert not loop.run_until_complete(client_of(world, connect_packet("half")[:-1]))[1]


def test_publishes_behind_unread_acknowledgements_are_handled_before_the_end(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=False)
    world.connection.pause_writing()
    world.receive(PUBLISH + DISCONNECT)
    assert world.connection.eof_received()
    assert world.kafka.records == []
    loop.call_soon(world.connection.resume_writing)
    world.turn()
    assert [key for _, key, *_ in world.kafka.records] == ["attic"]
    assert world.metrics.connections_closed == {"disconnect": 1}


@pytest.mark.parametrize(
    ("version", "reference", "farewell"),
    [
        (4, "other:1883", b""),
        (5, "", b"\xe0\x01\x8b"),
        (5, "other:1883", b"\xe0\x0f\x9c\x0d\x1c\x00\x0aother:1883"),
    ],
)
def test_a_pod_that_stops_sends_its_clients_away(
    loop: asyncio.AbstractEventLoop, version: int, reference: str, farewell: bytes
) -> None:
    world = PlainWorld(loop, is_compiled=False, version=version)
    other, _ = loop.run_until_complete(client_of(world, connect_packet("other", keep_alive=0)[:-1]))
    loop.run_until_complete(world.server.send_away(0.0, reference))
    world.turn()
    assert bytes(world.wire.received)[len(world.answers) :] == farewell
    assert world.wire.closed
    assert other.closed
    late, _ = loop.run_until_complete(client_of(world, connect_packet("late", keep_alive=0)))
    world.turn()
    assert bytes(late.received) == b"\x20\x02\x00\x03", "server unavailable"
