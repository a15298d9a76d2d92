"""The trace of a publish: its context from MQTT 5 user properties into the headers of its records.

The names are those of W3C's draft for MQTT: the user properties `traceparent` and `tracestate`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.ingest.headers import user_properties
from isotherm.mqtt_proxy.ingest.producer_record import headers_bytes
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.servicekit.tracing.trace_headers import carrier_of

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTrace, IngestTraces

_DEAD_LETTER = "isotherm.dead_letter.reason"


def trace_publish(
    traces: IngestTraces, publish: Publish, client_id: str, arrived_ms: int, translated: TranslatedPublish
) -> None:
    """Begin the trace of a publish if it is to have one, and give each of its records the context."""
    trace = traces.begin(
        "mqtt publish",
        carrier_of(user_properties(publish.properties)) if publish.properties else {},
        lambda: {
            "messaging.system": "mqtt",
            "messaging.operation.name": "publish",
            "messaging.destination.name": publish.topic,
            "messaging.client.id": client_id,
            "messaging.message.body.size": len(publish.payload),
            "isotherm.mqtt.qos": publish.qos,
            "isotherm.mqtt.packet_id": publish.packet_id,
        },
        arrived_ms=arrived_ms,
    )
    if trace is None:
        return
    translated.trace = trace
    _hand_on(trace, translated)
    if (reason := translated.invalid_reason) is not None:
        trace.note(_DEAD_LETTER, reason)


def replace_by_dead_letter(translated: TranslatedPublish, dead_letter: TranslatedPublish, detail: str) -> None:
    """Let the trace of a publish whose record Kafka refuses go on with its dead letter."""
    trace = translated.trace
    if trace is None:
        return
    trace.refuse(detail)
    trace.note(_DEAD_LETTER, "refused")
    dead_letter.trace = trace
    _hand_on(trace, dead_letter)


def _hand_on(trace: IngestTrace, translated: TranslatedPublish) -> None:
    """Give each record the context."""
    counts = Counter(record.topic for record in translated.records)
    added = {topic: trace.headers_for(topic, number) for topic, number in counts.items()}
    translated.records = [
        record._replace(headers=[*record.headers, *added[record.topic]]) for record in translated.records
    ]
    translated.bytes += sum(headers_bytes(added[topic]) * number for topic, number in counts.items())
