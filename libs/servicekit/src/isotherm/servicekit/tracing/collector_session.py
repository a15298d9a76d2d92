"""The HTTP session to a collector of spans: it reads bounded answers, and takes no redirect for a success."""

from __future__ import annotations

from typing import Any

import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

_MAX_ANSWER_BYTES = 65_536


class RefusedError(requests.RequestException):
    """The collector does not take spans at this address."""


class CollectorSession(requests.Session):
    """A session of the exporter's, which has one request at a time.

    Attributes:
        rejected: how many spans of the last request the collector has rejected, though it answered with success
            (OTLP, "Partial Success").
    """

    def __init__(self) -> None:
        super().__init__()
        self.rejected = 0

    def request(self, *arguments: Any, **more: Any) -> requests.Response:
        """Send a request. Raises RequestException."""
        self.rejected = 0
        answer = super().request(*arguments, **{**more, "stream": True})
        body = answer.raw.read(_MAX_ANSWER_BYTES + 1, decode_content=True)
        if len(body) > _MAX_ANSWER_BYTES:
            answer.close()
            body = b""
        # What the exporter and requests read from here on.
        answer._content, answer._content_consumed = body, True
        if 300 <= answer.status_code < 400:
            # The exporter would take it for a success.
            raise RefusedError(f"status {answer.status_code}: the spans go elsewhere, to {_place(answer)}")
        if answer.status_code == requests.codes.ok and body:
            self.rejected = _rejected(body)
        return answer


def _place(answer: requests.Response) -> str:
    return repr(answer.headers.get("Location", "nowhere")[:200])


def _rejected(body: bytes) -> int:
    try:
        return int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
    except DecodeError:
        return 0
