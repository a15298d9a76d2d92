"""A TCP relay between a client and a server: it can drop an answer, delay a request, and use TLS."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from contextlib import suppress

_CHUNK_BYTES = 65_536
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero: closing resets the connection."""


class Relay:
    """Forwards bytes in both directions; a test can make it drop an answer.

    A request whose answer is lost reaches the server whole; what the server answers to it is dropped, and the
    connection is reset on the client's side.
    """

    def __init__(self, server_port: int, *, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        """Takes connections from here on; on a free port unless told otherwise, with TLS when given a context."""
        self._server = ("127.0.0.1", server_port)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.lost = threading.Event()
        """Set when the answer was lost."""
        self.held = threading.Event()
        """Set when a request is held back."""
        self.answered = threading.Event()
        """Set when the server answered the request that had been held back."""
        self._hold: bytes | None = None
        self._released = threading.Event()
        self._marker: bytes | None = None
        self._guard = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def lose_next_answer(self, marker: bytes) -> None:
        """Lose the answer to the next request that contains `marker`, once."""
        self.lost.clear()
        self._marker = marker

    def hold_next(self, marker: bytes) -> None:
        """Hold the next request that contains `marker`, once, until `release`, also when its client is gone by then.

        As a server does that is frozen while the request lies in its socket.
        """
        self._hold = marker

    def release(self) -> None:
        """Forward the delayed request."""
        self._released.set()

    def close(self) -> None:
        """Close all connections and accept no more."""
        self._released.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            pairs = list(self._pairs)
        for pair in pairs:
            _cut(pair)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                # In a thread of its own: a client may take its time over the handshake.
                threading.Thread(target=self._serve, args=(client,), name="relay-serve", daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        client = accepted
        try:
            if self._context is not None:
                client = self._context.wrap_socket(accepted, server_side=True)
            server = socket.create_connection(self._server)
        except OSError:
            # Both: a handshake that failed has left the first one.
            accepted.close()
            client.close()
            return
        pair = (client, server)
        with self._guard:
            self._pairs.append(pair)
        losing, holding = threading.Event(), threading.Event()
        threading.Thread(target=self._up, args=(pair, losing, holding), name="relay-up", daemon=True).start()
        threading.Thread(target=self._down, args=(pair, losing, holding), name="relay-down", daemon=True).start()

    def _up(self, pair: tuple[socket.socket, socket.socket], losing: threading.Event, holding: threading.Event) -> None:
        client, server = pair
        before = b""
        with suppress(OSError):
            while data := client.recv(_CHUNK_BYTES):
                if self._holds(before + data):
                    holding.set()
                    self.held.set()
                    self._released.wait()
                # A marker may lie across two chunks.
                if self._takes(before + data):
                    losing.set()
                before = data[-100:]
                server.sendall(data)
        if not losing.is_set() and not holding.is_set():
            # A request that was held is answered by the server before its connection may break.
            _cut(pair)

    def _holds(self, data: bytes) -> bool:
        with self._guard:
            if self._hold is None or self._hold not in data:
                return False
            self._hold = None
            return True

    def _takes(self, data: bytes) -> bool:
        with self._guard:
            if self._marker is None or self._marker not in data:
                return False
            self._marker = None
            return True

    def _down(
        self, pair: tuple[socket.socket, socket.socket], losing: threading.Event, holding: threading.Event
    ) -> None:
        client, server = pair
        with suppress(OSError):
            while data := server.recv(_CHUNK_BYTES):
                if losing.is_set():
                    self.lost.set()
                    break
                if self._released.is_set():
                    self.answered.set()
                try:
                    client.sendall(data)
                except OSError:
                    # What a member says unasked to a client that is gone must not break the held request's connection.
                    if not holding.is_set():
                        raise
        _cut(pair)


def _cut(pair: tuple[socket.socket, socket.socket]) -> None:
    for one in pair:
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with suppress(OSError):
            # Wakes the thread that waits in `recv`, which closing alone does not.
            one.shutdown(socket.SHUT_RDWR)
        one.close()
