"""MQTT over WebSocket without a network: handshakes, frames cut anywhere, limits, and both ends of the closing."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.frame_protocol import CloseReason, FrameProtocol, Opcode

from isotherm.mqtt_proxy.protocol.websocket import FRAMES_A_TURN, MAX_REQUEST_BYTES, End, Received, WebSocket

KEY = base64.b64encode(b"k" * 16).decode()
MASK = b"\1\2\3\4"
HEADERS = {
    "Host": "devices.example:9001",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqtt",
}


def request(line: str = "GET /mqtt HTTP/1.1", **changes: str | None) -> bytes:
    """A handshake; `changes` replace headers, by their names with underscores, or remove them."""
    headers = HEADERS | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [line, *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(opcode: int, payload: bytes = b"", *, final: bool = True, masked: bool = True) -> bytes:
    """A frame as clients send it."""
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + struct.pack("!H", size)
    if size > 0xFFFF:
        length = b"\x7f" + struct.pack("!Q", size)
    head = bytes([opcode | (0x80 if final else 0), length[0] | (0x80 if masked else 0)]) + length[1:]
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))


def opened(*, max_message_bytes: int = 1_000) -> WebSocket:
    socket = WebSocket((), max_message_bytes)
    assert socket.receive(request()).end is None
    assert socket.is_open
    return socket


def frames(data: bytes) -> list[tuple[Opcode, object]]:
    """What a client sees in the server's bytes."""
    client = FrameProtocol(client=True, extensions=[])
    client.receive_bytes(data)
    return [(one.opcode, one.payload) for one in client.received_frames()]


def close_code(received: Received) -> int:
    ((opcode, payload),) = frames(received.answer)
    assert opcode is Opcode.CLOSE
    assert isinstance(payload, tuple)
    return int(payload[0])


def test_a_handshake_is_answered_with_the_subprotocol_and_no_extension() -> None:
    socket = WebSocket((), 1_000)
    received = socket.receive(request(**{"Sec_WebSocket_Extensions": "permessage-deflate"}))
    head = received.answer.decode().lower()
    assert head.startswith("http/1.1 101 ")
    assert "sec-websocket-protocol: mqtt\r\n" in head
    assert "sec-websocket-extensions" not in head
    assert (received.mqtt, received.end, socket.is_open, socket.buffered) == (b"", None, True, 0)
    assert not socket.is_closing


@given(st.lists(st.integers(1, 200), max_size=5))
def test_a_handshake_may_come_in_pieces_with_frames_behind_it(cuts: list[int]) -> None:
    data, at, mqtt = request() + frame(2, b"\x10\x0c") + frame(2, b"rest"), 0, b""
    socket = WebSocket((), 1_000)
    for cut in [*cuts, len(data)]:
        mqtt += socket.receive(data[at : at + cut]).mqtt
        at += cut
    assert mqtt == b"\x10\x0crest"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(Sec_WebSocket_Protocol=None), 400),
        (request(Sec_WebSocket_Protocol="mqttv3.1, MQTT"), 400),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(Sec_WebSocket_Key=None), 400),
        (request(Upgrade=None), 400),
        (request(Connection="close"), 400),
        (request(Host=None), 400),
        (request(Host="\xff"), 400),
        (request("GET /mqtt HTTP/1.0"), 400),
        (request("POST /mqtt HTTP/1.1"), 400),
        (request(Content_Length="5"), 400),
        (request(Transfer_Encoding="chunked"), 400),
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (request(Cookie="x" * MAX_REQUEST_BYTES), 431),
        (b"x" * (MAX_REQUEST_BYTES + 1), 431),
    ],
)
def test_another_request_is_refused(data: bytes, status: int) -> None:
    socket = WebSocket((), 1_000)
    received = socket.receive(data)
    assert received.answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert received.answer.endswith(b"\r\n\r\n")
    assert (received.end, bool(received.detail), socket.is_open, socket.buffered) == (End.REFUSED, True, False, 0)
    assert socket.receive(request()) == Received()


def test_an_incomplete_handshake_is_counted() -> None:
    socket = WebSocket((), 1_000)
    socket.receive(request()[:-1])
    assert socket.buffered == len(request()) - 1
    assert (socket.is_open, socket.is_closing, socket.wrap(b"x"), socket.close()) == (False, False, b"", b"")


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((), None, True),
        ((), "http://devices.example:9001", True),
        ((), "https://DEVICES.example:9001", True),
        ((), "https://devices.example", False),
        ((), "https://evil.example", False),
        ((), "https://devices.example:9001.evil.example", False),
        ((), "null", False),
        ((), "http://[", False),
        ((), "http://\xff", False),
        (("https://app.example/",), "https://APP.example", True),
        (("https://app.example",), "http://app.example", False),
        (("https://app.example",), "http://devices.example:9001", False),
        (("https://app.example",), None, True),
        (("*",), "https://evil.example", True),
    ],
)
def test_which_origins_may_connect(origins: tuple[str, ...], origin: str | None, allowed: bool) -> None:
    received = WebSocket(origins, 1_000).receive(request(Origin=origin))
    assert received.answer.split(b" ")[1] == (b"101" if allowed else b"403")


@given(st.lists(st.binary(max_size=20), max_size=6), st.data())
def test_packets_span_frames_messages_and_reads_in_any_way(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b""
    for payload in payloads:
        cut = data.draw(st.integers(0, len(payload)))
        # One message of two frames, with a ping between them.
        stream += frame(2, payload[:cut], final=False) + frame(9, b"p") + frame(0, payload[cut:])
    socket, mqtt, answer = opened(), b"", b""
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received = socket.receive(stream[:size])
        mqtt, answer, stream = mqtt + received.mqtt, answer + received.answer, stream[size:]
        assert received.end is None
    assert mqtt == b"".join(payloads)
    assert frames(answer) == [(Opcode.PONG, b"p")] * len(payloads)


def test_bytes_of_a_frame_come_before_its_end() -> None:
    socket = opened()
    assert socket.receive(frame(2, b"x" * 300)[:108]).mqtt == b"x" * 100


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(1, b"text"), CloseReason.UNSUPPORTED_DATA),
        (frame(1, b"text", final=False), CloseReason.UNSUPPORTED_DATA),
        (frame(2, b"x", masked=False), CloseReason.PROTOCOL_ERROR),
        (frame(0, b"x"), CloseReason.PROTOCOL_ERROR),
        (frame(3, b"x"), CloseReason.PROTOCOL_ERROR),
        (frame(9, b"x" * 126), CloseReason.PROTOCOL_ERROR),
        (frame(0x42, b"x"), CloseReason.PROTOCOL_ERROR),
        (frame(8, b"x"), CloseReason.PROTOCOL_ERROR),
        (frame(2, b"x" * 1_001), CloseReason.MESSAGE_TOO_BIG),
        (frame(2, b"x" * 600, final=False) + frame(0, b"x" * 401), CloseReason.MESSAGE_TOO_BIG),
    ],
)
def test_a_mistake_ends_the_websocket_with_its_code(data: bytes, code: CloseReason) -> None:
    socket = opened()
    received = socket.receive(frame(2, b"before") + data + frame(2, b"after"))
    assert (received.mqtt[:6], received.end, close_code(received)) == (b"before", End.FAILED, code)
    assert b"after" not in received.mqtt
    assert (socket.is_open, socket.wrap(b"x"), socket.close(), socket.receive(frame(2, b"x"))) == (
        False,
        b"",
        b"",
        Received(),
    )


def test_the_limit_is_that_of_a_message() -> None:
    assert opened().receive(frame(2, b"x" * 1_000) * 3).mqtt == b"x" * 3_000


@pytest.mark.parametrize("payload", [b"", struct.pack("!H", 1001) + b"bye"])
def test_the_client_closes(payload: bytes) -> None:
    socket = opened()
    received = socket.receive(frame(2, b"last") + frame(8, payload))
    assert (received.mqtt, received.end, socket.is_open) == (b"last", End.CLOSED, False)
    assert frames(received.answer)[0][0] is Opcode.CLOSE


def test_the_server_closes_and_ignores_what_comes_before_the_client_s_answer() -> None:
    socket = opened()
    assert close_code(Received(answer=socket.close())) == CloseReason.NORMAL_CLOSURE
    assert (socket.is_open, socket.close(), socket.wrap(b"x")) == (False, b"", b"")
    assert socket.receive(frame(2, b"late") + frame(9, b"p") + frame(1, b"t")) == Received()
    received = socket.receive(frame(8, struct.pack("!H", 1000)))
    assert (received.answer, received.end) == (b"", End.CLOSED)


def test_packets_of_the_server_are_binary_frames() -> None:
    assert frames(opened().wrap(b"\x20\x02\x00\x00")) == [(Opcode.BINARY, b"\x20\x02\x00\x00")]


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_handled(data: bytes, shaken: bool) -> None:
    socket = opened() if shaken else WebSocket((), 100)
    received = socket.receive(data)
    assert received.end is None or not socket.is_open


@given(st.integers(0, 3 * FRAMES_A_TURN), st.booleans())
def test_so_many_frames_are_read_at_once_and_the_others_in_their_order(count: int, ends: bool) -> None:
    socket, numbers = opened(max_message_bytes=1_000_000), [b"%d," % number for number in range(count)]
    data = b"".join(frame(2, number) for number in numbers) + (frame(8) if ends else b"")
    found = [socket.receive(data)] if data else []
    while socket.has_more:
        assert socket.buffered == len(data)
        found.append(socket.read_on())
    assert [received.mqtt.count(b",") for received in found if received.mqtt] == [
        min(FRAMES_A_TURN, count - first) for first in range(0, count, FRAMES_A_TURN)
    ]
    assert b"".join(received.mqtt for received in found) == b"".join(numbers)
    assert [received.end for received in found if received.end] == [End.CLOSED] * ends
    assert socket.buffered == 0
