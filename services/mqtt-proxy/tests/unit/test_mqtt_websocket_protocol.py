"""A connection over a WebSocket: what the socket's protocol passes on, and when it closes the socket."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mqtt_model import Wire
from test_mqtt_websocket import frame, frames, request
from wsproto.frame_protocol import Opcode

from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.protocol.websocket import FRAMES_A_TURN
from isotherm.mqtt_proxy.sections.websocket import WebSocketSettings
from isotherm.mqtt_proxy.server.websocket_protocol import WebSocketProtocol


class Served:
    """A connection that notes what it is told. `holds` says whether it holds events when its client closes."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = b""
        self.closed: list[tuple[Reason, str]] = []
        self.told: list[str] = []
        self.holds = False
        self.ended = self.was_accepted = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if data == b"end":
            self.transport.write(b"bye")
            self.transport.close()

    def eof_received(self) -> bool:
        return self.holds

    def close(self, reason: Reason, detail: str) -> None:
        self.ended = True
        self.closed.append((reason, detail))
        self.transport.close()

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, _exc: Exception | None) -> None:
        self.told.append("lost")


class ClosingWire(Wire):
    def __init__(self) -> None:
        super().__init__()
        self.was_closed = asyncio.Event()
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        super().close()
        self.was_closed.set()


class World:
    def __init__(self, *, buffered_bytes: int = 100_000) -> None:
        self.metrics = Metrics()
        self.server = cast(
            Any,
            SimpleNamespace(
                buffered_bytes=0,
                limits=SimpleNamespace(buffered_bytes=buffered_bytes),
                pipeline=SimpleNamespace(metrics=self.metrics),
            ),
        )
        self.served = Served()
        self.wire = ClosingWire()
        self.protocol = WebSocketProtocol(self.server, WebSocketSettings(port=0), cast(Any, self.served))
        self.protocol.connection_made(self.wire)

    def sent(self) -> bytes:
        data = bytes(self.wire.received)
        self.wire.received.clear()
        return data

    def open(self) -> World:
        self.protocol.data_received(request())
        assert self.sent().startswith(b"HTTP/1.1 101 ")
        assert self.server.buffered_bytes == 0
        return self


def test_payloads_go_to_the_connection_and_packets_to_the_client() -> None:
    world = World().open()
    world.protocol.data_received(frame(2, b"one") + frame(2, b"two"))
    assert world.served.received == b"onetwo"
    world.served.transport.write(b"ack")
    assert frames(world.sent()) == [(Opcode.BINARY, b"ack")]
    world.protocol.pause_writing()
    world.protocol.resume_writing()
    world.protocol.connection_lost(None)
    assert world.served.told == ["pause", "resume", "lost"]


def test_a_refused_handshake_is_answered_counted_and_closed() -> None:
    world = World()
    world.protocol.data_received(request(Sec_WebSocket_Protocol="chat"))
    assert world.sent().startswith(b"HTTP/1.1 400 ")
    assert world.wire.closed
    assert world.metrics.connection_attempts == {"WebSocket refused": 1}
    assert world.served.closed[0][0] is Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("was_accepted", [False, True])
def test_a_text_frame_ends_the_connection_and_is_counted_before_its_connack(was_accepted: bool) -> None:
    world = World().open()
    world.served.was_accepted = was_accepted
    world.protocol.data_received(frame(1, b"text"))
    assert [opcode for opcode, _ in frames(world.sent())] == [Opcode.CLOSE]
    assert world.served.closed == [(Reason.PROTOCOL_ERROR, "WebSocket: a text frame")]
    assert world.metrics.connection_attempts == ({} if was_accepted else {"protocol error": 1})
    assert world.wire.closed


@pytest.mark.parametrize("holds", [False, True])
def test_the_socket_stays_open_while_events_are_held_when_the_client_closes(holds: bool) -> None:
    world = World().open()
    world.served.holds = holds
    world.protocol.data_received(frame(2, b"last") + frame(8))
    assert world.wire.closed is not holds
    world.served.transport.close()
    assert world.wire.closed


async def test_the_connection_closes_after_the_answer_of_the_client() -> None:
    world = World().open()
    world.protocol.data_received(frame(2, b"end"))
    assert [opcode for opcode, _ in frames(world.sent())] == [Opcode.BINARY, Opcode.CLOSE]
    assert (world.served.transport.is_closing(), world.wire.closed) == (True, False)
    world.protocol.data_received(frame(8))
    assert world.wire.closed


async def test_the_socket_closes_when_the_client_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.mqtt_proxy.server.websocket_protocol._CLOSE_TIMEOUT_S", 0.0)
    world = World().open()
    world.served.transport.close()
    assert not world.wire.closed
    await world.wire.was_closed.wait()


def test_incomplete_handshakes_are_counted_and_bounded_together() -> None:
    world = World(buffered_bytes=3_000)
    world.protocol.data_received(b"GET / HTTP/1.1\r\nX: " + b"x" * 2_000)
    assert world.server.buffered_bytes == 2_019
    world.server.buffered_bytes += 1_000
    world.protocol.data_received(b"x" * 100)
    assert world.metrics.connection_attempts == {"too many bytes buffered": 1}
    assert world.wire.closed
    world.protocol.connection_lost(None)
    assert world.server.buffered_bytes == 1_000


async def test_a_flood_of_frames_leaves_turns_of_the_loop_to_others() -> None:
    flood, turns, is_over = World().open(), list[int](), asyncio.Event()
    flood.protocol.data_received(frame(2, b"x") * (3 * FRAMES_A_TURN + 1))
    # The socket is read on only when all frames are.
    assert (flood.wire.reads, flood.server.buffered_bytes > 0) == (False, True)

    def take_turn() -> None:
        """Be another connection, which has something to do in each turn."""
        turns.append(len(flood.served.received))
        if len(turns) < 3:
            asyncio.get_running_loop().call_soon(take_turn)
        else:
            is_over.set()

    asyncio.get_running_loop().call_soon(take_turn)
    await is_over.wait()
    assert turns == [2 * FRAMES_A_TURN, 3 * FRAMES_A_TURN, 3 * FRAMES_A_TURN + 1]
    assert (flood.wire.reads, flood.server.buffered_bytes) == (True, 0)


async def test_frames_wait_while_the_connection_reads_nothing() -> None:
    world = World().open()
    world.protocol.data_received(frame(2, b"x") * (FRAMES_A_TURN + 1))
    world.served.transport.pause_reading()
    await asyncio.sleep(0)
    assert (len(world.served.received), world.wire.reads) == (FRAMES_A_TURN, False)
    world.served.transport.resume_reading()
    assert not world.wire.reads, "frames are there"
    await asyncio.sleep(0)
    assert (len(world.served.received), world.wire.reads) == (FRAMES_A_TURN + 1, True)


async def test_frames_that_wait_are_dropped_with_their_connection() -> None:
    world = World().open()
    world.protocol.data_received(frame(2, b"x") * (FRAMES_A_TURN + 1))
    world.protocol.connection_lost(None)
    await asyncio.sleep(0)
    assert len(world.served.received) == FRAMES_A_TURN
    assert world.server.buffered_bytes == 0
