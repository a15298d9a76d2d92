"""Shared by the tests of routes: alerts, and real servers that behave as a test says."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OPENED = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLOSED = datetime(2026, 1, 1, 13, tzinfo=UTC)


def alert(device_id: str = "dev-1", state: str = "opened", **fields: Any) -> dict[str, Any]:
    """An Alert record with the attributes of its device."""
    return {
        "alert_id": f"{device_id}/above/temperature/1",
        "device_id": device_id,
        "rule": "above",
        "severity": "warning",
        "state": state,
        "opened_at": OPENED,
        "updated_at": CLOSED if state == "closed" else OPENED,
        "closed_at": CLOSED if state == "closed" else None,
        "metric": "temperature",
        "value": 31.0,
        "threshold": 30.0,
        "message": "temperature 31.0 Cel is above 30.0 Cel",
        "attributes": {"home": "home-1", "region": "north", "model": None},
        **fields,
    }


@dataclass(frozen=True)
class Received:
    """A request as a server got it."""

    path: str
    headers: dict[str, str]
    body: bytes


class HttpServer:
    """Answers each request with the next status of `answers`, 200 when there is none left."""

    def __init__(self, headers: dict[str, str] | None = None, body: bytes = b"ok") -> None:
        self.answers: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.received: queue.SimpleQueue[Received] = queue.SimpleQueue()
        sent = {"Content-Length": str(len(body)), **(headers or {})}
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                status = 200 if server.answers.empty() else server.answers.get()
                self.send_response(status)
                for name, value in sent.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                server.received.put(Received(self.path, dict(self.headers), content))

            def log_message(self, format: str, *args: object) -> None:
                """The requests are kept."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()


class Incidents:
    """A server that keeps incidents as PagerDuty's Events API v2 does: one for each `dedup_key`."""

    def __init__(self) -> None:
        self.is_open: dict[str, bool] = {}
        self.pages: list[str] = []
        """Keys in the order in which their incidents have opened, also again."""
        self.summaries: list[str] = []
        self.events = 0
        self.at_s: list[float] = []
        self.answer: Callable[[], int] = lambda: 202
        """Returns the status of the next answer."""
        self.on_event: Callable[[], None] = lambda: None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.at_s.append(time.monotonic())
                status = server.answer()
                if status == 202:
                    server.take(event)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if status == 429:
                    self.send_header("Retry-After", "1")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """The incidents are kept."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, event: dict[str, Any]) -> None:
        """Open or resolve an incident. The end of one that it does not know has no effect."""
        key, is_trigger = event["dedup_key"], event["event_action"] == "trigger"
        self.events += 1
        self.summaries.append(event["payload"]["summary"])
        if is_trigger and not self.is_open.get(key):
            self.pages.append(key)
        if is_trigger or key in self.is_open:
            self.is_open[key] = is_trigger
        self.on_event()

    @property
    def open(self) -> list[str]:
        """The keys of the open incidents."""
        return [key for key, is_open in self.is_open.items() if is_open]

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()


class RawServer:
    """Runs `behave` for each connection, in a thread."""

    def __init__(self, behave: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self._behave = behave
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Free the port."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._behave(connection)


def hang(connection: socket.socket) -> None:
    """Read what comes and never answer."""
    while connection.recv(65_536):
        pass


def drip(text: bytes) -> Callable[[socket.socket], None]:
    """Return a server that says `text` for ever, a letter every 20 ms, so that no single read takes long."""

    def behave(connection: socket.socket) -> None:
        pause = threading.Event()
        while True:
            for number in range(len(text)):
                connection.sendall(text[number : number + 1])
                pause.wait(0.02)

    return behave


def smtp_replies(replies: dict[str, str], mails: queue.SimpleQueue[bytes]) -> Callable[[socket.socket], None]:
    """Return a server that speaks SMTP (RFC 5321): `replies` by command replace the positive ones."""

    def behave(connection: socket.socket) -> None:
        with connection.makefile("rwb", buffering=0) as stream:
            converse(stream)

    def converse(stream: Any) -> None:
        stream.write(replies.get("", "220 test ESMTP").encode() + b"\r\n")
        for line in iter(stream.readline, b""):
            command = line.decode().split(":")[0].split()[0].upper()
            usual = {"EHLO": "250-test\r\n250 8BITMIME", "DATA": "354 go on", "QUIT": "221 bye"}.get(command, "250 ok")
            reply = replies.get(command, usual)
            stream.write(reply.encode() + b"\r\n")
            if command == "DATA" and reply.startswith("354"):
                mail = b"".join(iter(stream.readline, b".\r\n"))
                reply = replies.get(".", "250 stored")
                if reply.startswith("250"):
                    mails.put(mail)
                stream.write(reply.encode() + b"\r\n")

    return behave
