"""A question to a server: its answer, or that there is none."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from isotherm.stack import ports
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes

TIMEOUT_S = 20.0


class Handler(BaseHTTPRequestHandler):
    """Answers GET by the path, and PUT with what it was sent."""

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/ready" else 503, b'{"path": "%s"}' % self.path.encode())

    def do_PUT(self) -> None:
        self._answer(200, self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer((LOOPBACK, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_an_answer_has_its_status_and_body(port: int) -> None:
    ready, away = probes.get(port, "/ready", TIMEOUT_S), probes.get(port, "/away", TIMEOUT_S)
    assert ready is not None
    assert (ready.is_ok, ready.json()) == (True, {"path": "/ready"})
    assert away is not None
    assert (away.is_ok, away.status) == (False, 503)


def test_content_is_sent_as_json(port: int) -> None:
    answer = probes.request("PUT", port, "/config", TIMEOUT_S, {"compatibility": "FULL"})
    assert json.loads(answer.body) == {"compatibility": "FULL"}


def test_where_nobody_answers_there_is_no_answer() -> None:
    nobody = ports.hold_free_port()
    assert probes.get(nobody, "/ready", TIMEOUT_S) is None
    with pytest.raises((OSError, http.client.HTTPException)):
        probes.request("PUT", nobody, "/config", TIMEOUT_S, {})
    ports.release(nobody)
