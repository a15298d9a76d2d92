"""What the console and the demo's report need of dead letters: the original, and Kafka Connect's headers about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pact import match

from isotherm.connector.errors.dead_letters import PREFIX
from isotherm.console.dead_letters.record import QueuedRecord
from isotherm.console.trace import fates
from isotherm.contracts.consumers.console import fresh_console
from isotherm.contracts.consumers.partitions import expect_partition
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, expect
from isotherm.demo.evidence import origin_of

ORIGIN = ("topic", "partition", "offset")
_OFFSET = 3
_SHOWN = ("connector.name", "task.id", "stage", "exception.class.name", "exception.message")
"""Headers that `isotherm dlq` and the console's pages show, without PREFIX."""
TRACE = "exception.stacktrace"


def queued(found: Message) -> QueuedRecord:
    """Return a dead letter as the console reads it from its topic."""
    headers: list[tuple[str, str | bytes | None]] = [(name, text.encode()) for name, text in found.headers.items()]
    return QueuedRecord(found.topic, 0, _OFFSET, scenario.TAKEN_IN_MS, found.key.encode(), found.value, headers)


def _is_work(harness: Harness, found: Message) -> object:
    """Show a dead letter through the REST API, and make the original record that a replay would produce."""
    console = fresh_console(harness)
    record = queued(found)
    console.queues.records = [record]
    answer = console.http.get(f"/isotherm/dead-letter-queues/{found.topic}/records/0/{_OFFSET}")
    expect("status", answer.status_code, 200)
    expect_partition(found)
    return answer.json(), fates.dead_letter_step(record).text, record.origin, record.failed_record, record.original()


def _is_counted(_harness: Harness, found: Message) -> object:
    """Find the origin, by which the report tells copies of one failed record."""
    return origin_of(found.topic, 0, _OFFSET, [(name, text.encode()) for name, text in found.headers.items()])


def _need(
    consumer: str, provider: str, topic: str, key: Any, value: Any, names: tuple[str, ...], original: tuple[str, ...]
) -> Need:
    headers: Mapping[str, Any] = {
        **{PREFIX + name: match.type("text") for name in names},
        **{name: match.type("text") for name in original},
    }
    process = _is_work if consumer == "console" else _is_counted
    # A trace looks for the dead-letter records of a record on its key's partition.
    is_traced = consumer == "console"
    return Need(
        consumer,
        provider,
        scenario.DEAD_LETTER,
        topic,
        "",
        0,
        key,
        value,
        process,
        headers,
        needs_partition=is_traced,
    )


_MQTT = ("mqtt.topic", "mqtt.qos", "mqtt.client_id")
_COAP_URI = "coap://localhost:5633/sensors"
_DEVICE_MESSAGE = '{"id": "dev-0001", "t": "warm", "ts": 1767225612000, "seq": 17}'
_NOT_FRAMED = '{"t":21.5}'
_LETTERS: Mapping[str, tuple[str, str, Any, tuple[str, ...], tuple[str, ...]]] = {
    "mqtt-proxy": ("mqtt-proxy.dead-letters", "kitchen", _DEVICE_MESSAGE, (*_SHOWN, "topic"), _MQTT),
    "coap-ingest": (
        "coap-ingest.dead-letters",
        _COAP_URI,
        '{"sensorId":"Sensor4","temperature":"warm"}',
        (*_SHOWN, TRACE),
        ("coap.uri", "coap.code", "coap.content_format", "coap.observe"),
    ),
    "aggregator": ("aggregator.dead-letters", scenario.DEVICE, "warm", (*_SHOWN, *ORIGIN), _MQTT),
    "persisters": (
        "coap-to-hazelcast.dead-letters",
        _COAP_URI,
        "warm",
        (*_SHOWN, TRACE, *ORIGIN),
        ("coap.uri",),
    ),
    "alerts": ("alerts.dead-letters", scenario.DEVICE, _NOT_FRAMED, (*_SHOWN, TRACE, *ORIGIN), ("mqtt.topic",)),
}
"""By provider: topic, key, value, error headers, and headers of the original."""

NEEDS = tuple(
    need
    for provider, (topic, key, value, names, original) in _LETTERS.items()
    for need in (
        _need("console", provider, topic, key, value, names, original),
        _need("demo", provider, topic, match.type(""), match.type(""), tuple(set(ORIGIN) & set(names)), ()),
    )
)
