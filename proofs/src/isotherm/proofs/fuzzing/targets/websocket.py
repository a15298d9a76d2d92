"""MQTT over WebSocket: the handshake and the frames of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from isotherm.mqtt_proxy.protocol.websocket import End, Received, WebSocket
from isotherm.proofs.fuzzing.target import Target, expect

_HANDSHAKE = (
    b"GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def websocket_target() -> Callable[[bytes], None]:
    """Return the check that payloads, answers and the end do not depend on how a client's bytes are cut.

    The first byte says how they are cut, and whether they come before or after the handshake. The code of a Close frame
    may differ: a text frame is refused before the end of it shows that it is no UTF-8 either.
    """

    def run(data: bytes) -> None:
        first, stream = (data[0], data[1:]) if data else (0, b"")
        is_open, step = first >= 0x80, first % 16 + 1
        whole = _talk([stream], is_open=is_open)
        cut = _talk([stream[at : at + step] for at in range(0, len(stream), step)], is_open=is_open)
        expect((whole.mqtt, whole.end) == (cut.mqtt, cut.end), "the cuts matter")
        expect(whole.end is End.FAILED or whole.answer == cut.answer, "the cuts matter for the answer")

    return run


def _receive_all(socket: WebSocket, chunks: list[bytes]) -> Iterator[Received]:
    for chunk in chunks:
        yield socket.receive(chunk)
        while socket.has_more:
            yield socket.read_on()


def _talk(chunks: list[bytes], *, is_open: bool) -> Received:
    socket, result = WebSocket((), 8_192), Received()
    if is_open:
        socket.receive(_HANDSHAKE)
    for received in _receive_all(socket, chunks):
        result.mqtt += received.mqtt
        result.answer += received.answer
        expect(result.end is None or received == Received(), "something follows the end")
        result.end = result.end or received.end
        expect(socket.buffered <= 8_192, "a handshake is buffered beyond the limit")
        expect((result.end is None) or not socket.is_open, "it is open after the end")
    return result


TARGETS = (
    Target(
        name="mqtt-websocket",
        make=websocket_target,
        dictionary=(
            *(line + b"\r\n" for line in _HANDSHAKE.split(b"\r\n")),
            b"Origin: http://a\r\n",
            b"\x82\x81\0\0\0\0",
            b"\x02\xfe\0\x80\0\0\0\0",
            b"\x82\xff\0\0\0\0\0\1\0\0\0\0\0\0",
            b"\x80\x80\0\0\0\0",
            b"\x81\x81\0\0\0\0",
            b"\x88\x82\0\0\0\0\x03\xe8",
            b"\x89\x80\0\0\0\0",
        ),
    ),
)
