"""A collector of spans by OTLP over HTTP, as far as tests need one: it keeps what it gets, and can refuse it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

KINDS = {
    WireSpan.SPAN_KIND_SERVER: "server",
    WireSpan.SPAN_KIND_PRODUCER: "producer",
    WireSpan.SPAN_KIND_CONSUMER: "consumer",
}


class Span(NamedTuple):
    """A span as it came."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, str]
    error: str
    links: tuple[str, ...]
    """The traces that it links to."""


class Collector:
    """What has come, and how it is answered."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        self.status = 200
        self.headers: list[dict[str, str]] = []
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    def spans(self) -> list[Span]:
        """All spans that have come."""
        with self._lock:
            return list(self._spans)

    def by_trace(self) -> dict[str, list[Span]]:
        """The spans of each trace."""
        found: dict[str, list[Span]] = {}
        for span in self.spans():
            found.setdefault(span.trace, []).append(span)
        return found

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Take a request; return the status of its answer."""
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
        with self._lock:
            self.headers.append(headers)
            if self.status == 200:
                self._spans += _spans_of(request)
        return self.status


def _spans_of(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for of_resource in request.resource_spans:
        service = _texts(of_resource.resource.attributes)["service.name"]
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    service,
                    span.name,
                    KINDS.get(span.kind, "other"),
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    _texts(span.attributes),
                    span.status.message if span.status.code == 2 else "",
                    tuple(link.trace_id.hex() for link in span.links),
                )


def _texts(attributes: Iterator[KeyValue]) -> dict[str, str]:
    return {each.key: str(getattr(each.value, each.value.WhichOneof("value") or "string_value")) for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of the loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(collector.take({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
