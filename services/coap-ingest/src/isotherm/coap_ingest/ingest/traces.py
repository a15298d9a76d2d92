"""The traces of requests and notifications: from a CoAP option into the headers of their records (ADR 271)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.ingest.outlets import KafkaRecord
from isotherm.coap_ingest.ingest.records import Headers
from isotherm.servicekit.tracing.trace_headers import TRACEPARENT

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTrace, IngestTraces

DEAD_LETTER = "isotherm.dead_letter.reason"


def begin_trace(traces: IngestTraces | None, name: str, notification: Notification) -> IngestTrace | None:
    """Begin the trace of a request or notification that has just arrived; None if it is to have none."""
    if traces is None:
        return None
    return traces.begin(
        name,
        {} if notification.traceparent is None else {TRACEPARENT: notification.traceparent},
        lambda: {
            "messaging.system": "coap",
            "messaging.destination.name": "/" + "/".join(notification.resource.path),
            "messaging.message.body.size": len(notification.payload),
            "server.address": notification.resource.server.authority,
            "isotherm.coap.code": notification.code,
        },
        arrived_ms=notification.arrived_ms,
    )


def with_trace(trace: IngestTrace | None, records: Sequence[KafkaRecord]) -> Sequence[KafkaRecord]:
    """Return the records of a traced message with its context in their headers."""
    if trace is None:
        return records
    added = headers_by_topic(trace, (record.topic for record in records))
    return [record._replace(headers=[*record.headers, *added[record.topic]]) for record in records]


def headers_by_topic(trace: IngestTrace, topics: Iterable[str]) -> dict[str, Headers]:
    """Begin to send a record to each of `topics`; return what their headers get, by topic."""
    return {topic: trace.headers_for(topic, number) for topic, number in Counter(topics).items()}


class NotificationTrace:
    """The trace of a notification until Kafka has all its records."""

    __slots__ = ("_left", "_trace", "end")

    def __init__(self, trace: IngestTrace, records: int) -> None:
        self._trace = trace
        self._left = records
        self.end = trace.end

    def refused(self, dead_letter_topic: str, reason: str) -> Headers:
        """Note that Kafka refuses a record for this reason; return what the headers of its dead letter get."""
        self._trace.note(DEAD_LETTER, f"refused: {reason}")
        return self._trace.headers_for(dead_letter_topic, 1)

    def stored(self) -> None:
        """Note that Kafka has one of the records."""
        self._left -= 1
        if not self._left:
            self.end()
