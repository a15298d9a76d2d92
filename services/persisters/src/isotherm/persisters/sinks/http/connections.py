"""Connections to one HTTP server: a bounded number, kept open, and none used longer than its limit."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.http.requests import Request
from isotherm.persisters.sinks.http.settings import Origin

_MAX_ANSWER_BYTES = 65_536
_SHOWN_CHARACTERS = 300


class Answer(NamedTuple):
    """What a server answers to a request."""

    status: int
    retry_after: str | None
    text: str
    """The beginning of its body."""


class Limits(NamedTuple):
    """Of connections and of requests."""

    requests: int
    connect_s: float
    """For all of it: TCP, the proxy's tunnel, TLS."""
    request_s: float


class Connections:
    """Sends requests; safe for several threads."""

    def __init__(
        self,
        origin: Origin,
        proxy: Origin | None,
        context: ssl.SSLContext | None,
        limits: Limits,
        mask: Callable[[str], str] = str,
    ) -> None:
        """`context` is needed for TLS; `mask` hides secrets in a text."""
        self._origin, self._proxy, self._context, self._limits, self._mask = origin, proxy, context, limits, mask
        self._slots = threading.BoundedSemaphore(limits.requests)
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def check(self) -> None:
        """Connect, unless a connection is there. Raises Unavailable, SinkConfigError."""
        with self._translated(), self._slots:
            self._give_back(self._take() or self._connected())

    def send(self, make: Callable[[], Request]) -> Answer:
        """Send a request and return the answer.

        `make` returns the request once it can go out: others may have had the connections for long. What it raises is
        raised. Raises Unavailable if there is no answer in time, SinkConfigError.
        """
        with self._slots, self._translated():
            idle = self._take()
            if idle is not None:
                # A server may close an idle connection at any time. If it had begun with the request, the key says so.
                with contextlib.suppress(ConnectionError):
                    return self._made(idle, make)
            return self._made(self._connected(), make)

    def _made(self, connection: http.client.HTTPConnection, make: Callable[[], Request]) -> Answer:
        try:
            request = make()
        except BaseException:
            self._give_back(connection)
            raise
        return self._answered(connection, request)

    def close(self) -> None:
        """Close all connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _answered(self, connection: http.client.HTTPConnection, request: Request) -> Answer:
        """Send a request over a connection, which is kept for the next one if it can be used again."""
        is_reusable = False
        answer: Answer | None = None
        response: http.client.HTTPResponse | None = None
        try:
            with _deadline(self._limits.request_s, connection.sock.fileno) as is_over:
                response = self._exchange(connection, request)
                if is_over.is_set():
                    # What was there of its headers may look like all of them.
                    raise TimeoutError(f"no answer within {self._limits.request_s:g} s")
                answer = Answer(response.status, response.headers.get("Retry-After"), "")
                # The answer must be read to its end before the connection can be used again.
                body = response.read(_MAX_ANSWER_BYTES)
                is_reusable = response.isclosed() and not response.will_close
                return answer._replace(text=_shown(body, self._mask))
        except (OSError, http.client.HTTPException) as error:
            if answer is not None:
                # A server that has sent its status has decided, whatever becomes of the body.
                return answer
            if is_over.is_set():
                raise TimeoutError(f"no answer within {self._limits.request_s:g} s") from error
            raise
        finally:
            if is_reusable:
                self._give_back(connection)
            else:
                # A connection that the server closes after its answer belongs to the answer already.
                if response is not None:
                    response.close()
                connection.close()

    def _exchange(self, connection: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
        origin = self._origin
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        # A proxy of plain HTTP is told the whole address (RFC 9112, 3.2.2).
        is_forwarded = self._proxy is not None and not origin.is_tls
        target = f"http://{host}:{origin.port}{request.path}" if is_forwarded else request.path
        is_usual = origin.port == (443 if origin.is_tls else 80)
        headers = {"Host": host if is_usual else f"{host}:{origin.port}", **request.headers}
        connection.request(request.method, target, request.body or None, headers)
        return connection.getresponse()

    def _connected(self) -> http.client.HTTPConnection:
        place = self._proxy or self._origin
        if self._origin.is_tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                place.host, place.port, timeout=self._limits.connect_s, context=self._context
            )
            if self._proxy is not None:
                connection.set_tunnel(self._origin.host, self._origin.port)
        else:
            connection = http.client.HTTPConnection(place.host, place.port, timeout=self._limits.connect_s)
        # The socket under it stays the same while the tunnel and TLS are made, which may come byte by byte.
        under = _FirstSocket(connection)
        limit_s = self._limits.connect_s
        try:
            with _deadline(limit_s, under.fileno) as is_over:
                connection.connect()
            if is_over.is_set():
                raise TimeoutError(f"not connected within {limit_s:g} s")
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | http.client.HTTPException) and is_over.is_set():
                raise TimeoutError(f"not connected within {limit_s:g} s") from error
            raise
        finally:
            under.close()
        connection.sock.settimeout(self._limits.request_s)
        return connection

    def _take(self) -> http.client.HTTPConnection | None:
        """Return an idle connection that the server has not closed; None if there is none."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.sock is not None and not _is_readable(connection.sock):
                return connection
            # Its end, or an answer that nobody asked for.
            connection.close()

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._idle.append(connection)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise what a connection raises as the errors of the sink's interface; they show no header."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            doubt = tls.distrust(error)
            if doubt is not None:
                raise SinkConfigError(f"{self._origin.host}: {doubt}") from error
            # The text of a protocol's error holds what the server sent.
            told = f": {error}" if isinstance(error, OSError) else ""
            kind = type(error).__name__
            raise Unavailable(f"no answer from {self._origin.host}:{self._origin.port}: {kind}{told}") from None


def _is_readable(sock: socket.socket) -> bool:
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    return bool(waiting.poll(0))


class _FirstSocket:
    """A copy of the socket that a connection opens first."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._descriptor = -1
        connection._create_connection = self._connect  # type: ignore[attr-defined] # what the library calls

    def fileno(self) -> int:
        """Return its descriptor; -1 before there is one."""
        return self._descriptor

    def close(self) -> None:
        """Close the copy."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _connect(self, *arguments: Any) -> socket.socket:
        opened = socket.create_connection(*arguments)
        self._descriptor = os.dup(opened.fileno())
        return opened


@contextmanager
def _deadline(limit_s: float, fileno: Callable[[], int]) -> Iterator[threading.Event]:
    """Break a connection at the limit: a limit of the socket does not end what comes byte by byte.

    `fileno` returns its descriptor, or -1. The event is set when that happened.
    """
    is_over = threading.Event()
    timer = threading.Timer(limit_s, _break, (fileno, is_over))
    timer.daemon = True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()
        # One that is breaking the connection must not meet another one under the same descriptor.
        timer.join()


def _break(fileno: Callable[[], int], is_over: threading.Event) -> None:
    is_over.set()
    # A copy: closing a TLS socket in two threads at once is not safe.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def _shown(body: bytes, mask: Callable[[str], str]) -> str:
    """Return the beginning of an answer's text; servers repeat requests in their answers, headers too."""
    text = mask(body.decode("utf-8", "replace"))[:_SHOWN_CHARACTERS]
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()
