"""MQTT over WebSocket without IO (RFC 6455; MQTT 5.0 section 6): bytes of a socket become bytes of MQTT, and back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from itertools import islice
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection, ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, RejectConnection, Request, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import RemoteProtocolError

SUBPROTOCOL = "mqtt"
MAX_REQUEST_BYTES = 8_192
"""Largest handshake. Browsers send cookies along, which are limited to 4 KB each."""
FRAMES_A_TURN = 128
"""How many frames are read at once. Reading one takes some 20 us, and a read of 16 KB may hold 2,700 of them."""

_HEAD_ENDS = b"\r\n\r\n"
_BODY_HEADERS = frozenset((b"content-length", b"transfer-encoding"))


class End(Enum):
    """Why a WebSocket has ended."""

    REFUSED = auto()
    """The handshake was refused; the answer is the HTTP response."""
    FAILED = auto()
    """The client broke the protocol or a limit; the answer is the Close frame."""
    CLOSED = auto()
    """The client has closed it; the answer is the Close frame in return."""


@dataclass(slots=True)
class Received:
    """What bytes of the socket led to: bytes of MQTT, bytes to send, and the end of the WebSocket with its reason."""

    mqtt: bytes = b""
    answer: bytes = b""
    end: End | None = None
    detail: str = ""


class RefusedRequestError(Exception):
    """The request for a WebSocket is refused with an HTTP status."""

    def __init__(self, detail: str, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(detail)
        self.status = HTTPStatus(status)


class WebSocket:
    """The server's side of one WebSocket.

    Payloads are handed over as their bytes come, also within a frame, so nothing is held but an incomplete handshake or
    frame header, and frames beyond FRAMES_A_TURN until `read_on`. `origins` are the allowed origins of browsers; when
    empty, the origin must be the request's host.
    """

    def __init__(self, origins: Collection[str], max_message_bytes: int) -> None:
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._max_message_bytes = max_message_bytes
        self._head: bytearray | None = bytearray()
        # What parses the handshake is dropped with it: it keeps the request and its headers.
        self._frames: Connection | None = None
        self._message_bytes = 0
        self._unread_bytes = 0
        self._has_ended = False

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete handshake, or at most so many of frames that are not read yet."""
        return len(self._head or b"") + self._unread_bytes

    @property
    def has_more(self) -> bool:
        """Whether frames may wait for `read_on`; until they are read, `receive` must not be called."""
        return self._unread_bytes > 0

    @property
    def is_open(self) -> bool:
        """Whether payloads can be sent."""
        return self._frames is not None and not self._has_ended and self._frames.state is ConnectionState.OPEN

    @property
    def is_closing(self) -> bool:
        """Whether it was open or refused, and is not open any more."""
        return self._head is None and not self.is_open

    def receive(self, data: bytes) -> Received:
        """Handle bytes of the socket, or the first frames in them (`has_more`). After the end they are ignored."""
        received = Received()
        if self._has_ended:
            return received
        if self._head is not None:
            try:
                data = self._shake_hands(data, received)
            except RefusedRequestError as refusal:
                self._has_ended, self._head = True, None
                received.answer = _response(refusal.status)
                received.end, received.detail = End.REFUSED, str(refusal)
                return received
        if data and self._frames is not None:
            self._frames.receive_data(data)
            self._unread_bytes = len(data)
            self._read_frames(self._frames, received)
        return received

    def read_on(self) -> Received:
        """Handle the next frames that are there."""
        received = Received()
        if self._frames is not None and not self._has_ended:
            self._read_frames(self._frames, received)
        return received

    def wrap(self, data: bytes) -> bytes:
        """Return the frame that sends `data`; nothing before the handshake and after the end."""
        if self._frames is None or not self.is_open:
            return b""
        return self._frames.send(BytesMessage(data))

    def close(self) -> bytes:
        """Begin the closing handshake and return its frame. What comes from now on but its end is ignored."""
        if self._frames is None or not self.is_open:
            return b""
        return self._frames.send(CloseConnection(CloseReason.NORMAL_CLOSURE))

    def _shake_hands(self, data: bytes, received: Received) -> bytes:
        """Answer a complete request and return the bytes behind it. Raises RefusedRequestError."""
        head = self._head
        assert head is not None
        searched = max(0, len(head) - len(_HEAD_ENDS))
        head += data
        end = head.find(_HEAD_ENDS, searched)
        size = len(head) if end < 0 else end + len(_HEAD_ENDS)
        if size > MAX_REQUEST_BYTES:
            raise RefusedRequestError("the request is too large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if end < 0:
            return b""
        handshake = WSConnection(ConnectionType.SERVER)
        self._check(_parse(handshake, bytes(head[:size])))
        received.answer = handshake.send(AcceptConnection(subprotocol=SUBPROTOCOL))
        self._head, self._frames = None, handshake.connection
        return bytes(head[size:])

    def _check(self, request: Request) -> None:
        if any(name in _BODY_HEADERS for name, _ in request.extra_headers):
            raise RefusedRequestError("a request with a body")
        if SUBPROTOCOL not in request.subprotocols:
            raise RefusedRequestError(f"the subprotocol {SUBPROTOCOL!r} is not offered")
        for name, value in request.extra_headers:
            if name == b"origin" and not self._is_allowed(value.decode("latin-1").lower(), request.host.lower()):
                raise RefusedRequestError(f"the origin {value[:100]!r} is not allowed", HTTPStatus.FORBIDDEN)

    def _is_allowed(self, origin: str, host: str) -> bool:
        if self._origins:
            return origin in self._origins or "*" in self._origins
        try:
            name = urlsplit(origin).netloc.encode().decode("idna")
        except ValueError:
            return False
        return bool(name) and name == host

    def _read_frames(self, frames: Connection, received: Received) -> None:
        payloads: list[bytes | bytearray] = []
        is_closing = frames.state is ConnectionState.LOCAL_CLOSING
        read = 0
        for event in islice(frames.events(), FRAMES_A_TURN):
            read += 1
            if isinstance(event, CloseConnection):
                self._end(frames, event, received)
            elif is_closing:
                continue
            elif isinstance(event, BytesMessage):
                self._message_bytes += len(event.data)
                if self._message_bytes > self._max_message_bytes:
                    detail = f"a message of more than {self._max_message_bytes} bytes"
                    self._end(frames, CloseConnection(CloseReason.MESSAGE_TOO_BIG, detail), received)
                else:
                    payloads.append(event.data)
                    if event.message_finished:
                        self._message_bytes = 0
            elif isinstance(event, TextMessage):
                # MQTT 5.0 section 6: the server must close the connection.
                self._end(frames, CloseConnection(CloseReason.UNSUPPORTED_DATA, "a text frame"), received)
            elif isinstance(event, Ping):
                received.answer += frames.send(event.response())
            if self._has_ended:
                break
        if self._has_ended or read < FRAMES_A_TURN:
            self._unread_bytes = 0
        received.mqtt = b"".join(payloads)

    def _end(self, frames: Connection, event: CloseConnection, received: Received) -> None:
        """End because of the client's Close, or of its mistake, for which the state is still open."""
        self._has_ended = True
        is_mistake = frames.state is ConnectionState.OPEN
        received.end = End.FAILED if is_mistake else End.CLOSED
        received.detail = event.reason or ""
        if frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            received.answer += frames.send(event.response())


def _response(status: HTTPStatus) -> bytes:
    version = "Sec-WebSocket-Version: 13\r\n" if status is HTTPStatus.UPGRADE_REQUIRED else ""
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n{version}Connection: close\r\nContent-Length: 0\r\n\r\n"
    return head.encode()


def _parse(handshake: WSConnection, head: bytes) -> Request:
    # wsproto takes older versions of HTTP, which have no upgrade (RFC 6455 section 4.2.1).
    if not head.partition(b"\r\n")[0].endswith(b" HTTP/1.1"):
        raise RefusedRequestError("not HTTP/1.1")
    try:
        handshake.receive_data(head)
        request = next(handshake.events(), None)
    except RemoteProtocolError as error:
        hint = error.event_hint
        status = hint.status_code if isinstance(hint, RejectConnection) else HTTPStatus.BAD_REQUEST
        raise RefusedRequestError(str(error), status) from None
    except ValueError as error:
        # A header that must be a text is none.
        raise RefusedRequestError(f"malformed header: {error}") from None
    if not isinstance(request, Request):
        raise RefusedRequestError("no request for a WebSocket")
    return request
