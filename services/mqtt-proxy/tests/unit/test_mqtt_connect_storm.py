"""Clients that connect again and again while Kafka is away: what the server keeps of them is bounded by sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from mqtt_model import Wire
from mqtt_packets import connect_packet
from mqtt_plain_world import PlainWorld

from isotherm.mqtt_proxy.delivery.transactional_writer import WriteResult
from isotherm.mqtt_proxy.server.connection import Connection

ATTEMPTS = 50


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def attempt(loop: asyncio.AbstractEventLoop, world: PlainWorld, connect: bytes, *, leaves: bool = True) -> Wire:
    """Let a client send a CONNECT and, when it `leaves`, go without an answer."""
    wire = Wire()

    async def begin() -> Connection:
        made = Connection(world.server)
        made.connection_made(wire)
        made.data_received(connect)
        return made

    connection = loop.run_until_complete(begin())
    world.turn()
    if leaves:
        assert not wire.received
        loop.call_soon(connection.connection_lost, None)
        world.turn()
    return wire


def kept(world: PlainWorld) -> tuple[int, int, int]:
    """Return how many writes, CONNECTs and callbacks wait for Kafka."""
    session = world.sessions.get("c")
    assert session is not None
    waiting = world.server.pipeline.transactions._batcher.waiting
    return waiting, len(world.server._tasks), len(session.when_settled)


def settle(world: PlainWorld) -> None:
    for _ in range(5):
        world.end_transaction(WriteResult.COMMITTED)


def test_attempts_for_a_kept_session_leave_one_write(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=False, is_clean=False)
    connect = connect_packet("c", keep_alive=0, flags=0)
    loop.call_soon(world.connection.connection_lost, None)
    world.turn()
    for _ in range(ATTEMPTS):
        attempt(loop, world, connect)
    assert kept(world) == (0, 0, 0), "the one write, that the first connection has ended, is on its way"
    wire = attempt(loop, world, connect, leaves=False)
    assert not wire.received, "it waits for Kafka"
    settle(world)
    assert bytes(wire.received) == b"\x20\2\1\0", "accepted, its session present"


def test_attempts_that_end_a_session_leave_one_write(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=False, version=5, is_clean=False)
    # DISCONNECT with a session expiry of 0: the session ends.
    world.receive(b"\xe0\7\0\5\x11\0\0\0\0")
    connect = connect_packet("c", version=5, keep_alive=0, flags=2)
    for _ in range(ATTEMPTS):
        attempt(loop, world, connect)
    assert kept(world) == (0, 0, 1), "the write that ends the session is on its way, and then it is forgotten"
    settle(world)
    assert world.sessions.get("c") is None
    connack = bytes(attempt(loop, world, connect, leaves=False).received)
    assert (connack[0], connack[2:4]) == (0x20, b"\0\0"), "accepted, without a session present"


def test_the_end_of_a_connection_after_attempts_is_stored(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=False, is_clean=False)
    connect = connect_packet("c", keep_alive=0, flags=0)
    loop.call_soon(world.connection.connection_lost, None)
    world.turn()
    attempt(loop, world, connect)
    settle(world)
    attempt(loop, world, connect, leaves=False)
    settle(world)
    session = world.sessions.get("c")
    assert session is not None
    assert session.stored is not None
    assert session.stored.expires_at_ms is None, "connected"
    owner = session.owner
    assert isinstance(owner, Connection)
    loop.call_soon(owner.connection_lost, None)
    world.turn()
    settle(world)
    assert session.stored.expires_at_ms is not None
