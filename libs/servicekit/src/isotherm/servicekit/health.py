"""Liveness and readiness of a process, and the small HTTP server that answers for both and for metrics.

Live: the service's main loop runs. Liveness never depends on another server, or its outage would restart the service.
Ready: the service can do its work now; otherwise every reason is listed.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest

from isotherm.servicekit.settings import HttpSettings


class Health:
    """Liveness and readiness of a service; safe to use from any thread."""

    def __init__(self, beat_limit_ms: int = 30_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._beat_limit_s = beat_limit_ms / 1000
        self._clock = clock
        self._last_beat = clock()
        self._not_ready: dict[str, str] = {"start": "starting"}
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Note that the main loop runs."""
        self._last_beat = self._clock()

    def ready(self, part: str = "start") -> None:
        """Note that `part` works."""
        with self._lock:
            self._not_ready.pop(part, None)

    def not_ready(self, part: str, reason: str) -> None:
        """Note that `part` does not work, because of `reason` (without secrets: `/ready` shows it)."""
        with self._lock:
            self._not_ready[part] = reason

    def is_live(self) -> bool:
        """Whether the main loop ran within the limit."""
        return self._clock() - self._last_beat <= self._beat_limit_s

    def problems(self) -> dict[str, str]:
        """Why the service is not ready, by part; empty when it is."""
        with self._lock:
            return dict(self._not_ready)


class MonitoringServer:
    """Answers `/live`, `/ready` (200 or 503, JSON) and `/metrics` (Prometheus text) from a daemon thread.

    With exemplars `/metrics` is in the format of OpenMetrics for whoever accepts it: Prometheus' text has none.
    """

    def __init__(
        self, settings: HttpSettings, health: Health, registry: CollectorRegistry, *, with_exemplars: bool = False
    ) -> None:
        handler = _handler(health, registry, with_exemplars=with_exemplars)
        self._server = _HttpServer((settings.host, settings.port), handler)
        self._thread = threading.Thread(target=self._server.serve_until_told_to_end, name="monitoring", daemon=True)

    @property
    def port(self) -> int:
        """The port that answers."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.tell_to_end()
        self._thread.join()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    """A server whose thread sleeps until a request or the end comes: `serve_forever` looks for the end all the time."""

    daemon_threads = True
    timeout = 0
    """`handle_request` does not wait, because the selector said that a request is there."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        # Before the base class, which calls `server_close` when the port is taken.
        self._end, self._ending = socket.socketpair()
        super().__init__(address, handler)

    def serve_until_told_to_end(self) -> None:
        """Answer requests until `tell_to_end` is called."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            selector.register(self._end, selectors.EVENT_READ)
            while all(key.fileobj is not self._end for key, _ in selector.select()):
                self.handle_request()

    def tell_to_end(self) -> None:
        """End `serve_until_told_to_end`; any thread may call this."""
        self._ending.close()

    def server_close(self) -> None:
        """Free the port."""
        super().server_close()
        self._end.close()
        self._ending.close()


def _handler(health: Health, registry: CollectorRegistry, *, with_exemplars: bool) -> type[BaseHTTPRequestHandler]:
    def live(_accept: str) -> tuple[int, str, bytes]:
        is_live = health.is_live()
        return (200 if is_live else 503), "application/json", json.dumps({"live": is_live}).encode()

    def ready(_accept: str) -> tuple[int, str, bytes]:
        problems = health.problems()
        body = json.dumps({"ready": not problems, "problems": problems}).encode()
        return (503 if problems else 200), "application/json", body

    def metrics(accept: str) -> tuple[int, str, bytes]:
        if with_exemplars:
            # The library raises for a version that is none.
            with suppress(Exception):
                encode, content_type = choose_encoder(accept)
                return 200, content_type, encode(registry)
        return 200, CONTENT_TYPE_LATEST, generate_latest(registry)

    pages = {"/live": live, "/ready": ready, "/metrics": metrics}

    class Handler(BaseHTTPRequestHandler):
        # A client that opens a connection and says nothing must not hold a thread for ever.
        timeout = 10

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, content_type, body = (
                page(self.headers.get("Accept", "")) if page else (404, "text/plain", b"not found\n")
            )
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes every few seconds are not worth a log line."""

    return Handler
