"""An HTTP server for the sink's tests: it notes what it gets, stores rows, and answers as a test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HIGHEST_LEVEL = 32_767


class Received(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of a body in any of the sink's formats."""
        if self.headers["Content-Type"] == "application/x-ndjson":
            return [json.loads(line) for line in self.body.splitlines()]
        found = json.loads(self.body)
        return found if isinstance(found, list) else [found]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def answer(self) -> None:
        """Read a request, and answer it with the next planned answer, else as the store does."""
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        received = Received(self.command, self.path, dict(self.headers.items()), body)
        with receiver.lock:
            receiver.received.append(received)
            receiver.connections.add(self.client_address)
            planned = receiver.planned.popleft() if receiver.planned else None
        if planned is not None:
            planned(self)
        else:
            self.reply(receiver.store(received))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = answer  # noqa: N815 - the names that the library calls

    def reply(self, status: int, text: str = "", **headers: str) -> None:
        """Answer with a status, a text and further headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that go away are part of the tests."""


class Receiver:
    """A store of rows behind HTTP. It remembers keys of idempotency, and keeps the highest revision of an id."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.lock = threading.Lock()
        self.received: list[Received] = []
        self.connections: set[Any] = set()
        self.planned: deque[Callable[[Handler], None]] = deque()
        """How the next requests are answered."""
        self.ids: dict[str, Sequence[str]] = {}
        """By path, the fields that make the id of a row; without them every row is kept."""
        self.limited: set[str] = set()
        """Paths that refuse a request with a level above HIGHEST_LEVEL in it."""
        self._rows: dict[str, dict[Any, dict[str, Any]]] = defaultdict(dict)
        self._keys: set[str] = set()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.receiver = self
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def store(self, received: Received) -> int:
        """Store the rows of a request, all or none, and return the status of the answer."""
        with self.lock:
            key = received.headers.get("Idempotency-Key")
            if key is not None and key in self._keys:
                return 200
            rows, path = received.rows, received.path
            if path in self.limited and any(row["level"] > HIGHEST_LEVEL for row in rows):
                return 422
            if key is not None:
                self._keys.add(key)
            held = self._rows[path]
            for row in rows:
                id_ = tuple(row[name] for name in self.ids[path]) if path in self.ids else len(held)
                if id_ not in held or row.get("revision", 0) >= held[id_].get("revision", 0):
                    held[id_] = row
            return 201

    def rows(self, path: str) -> list[dict[str, Any]]:
        """The rows that were stored under a path, in their order."""
        with self.lock:
            return list(self._rows[path].values())

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
