"""What the console needs to trace a reading: where its record is, what is in it, and from where it came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pact import match

from isotherm.console.records.record import Record
from isotherm.console.trace import fates
from isotherm.console.trace.model import LATE_TOPIC, SCHEMA, StoredReading, reading_of
from isotherm.contracts.consumers.partitions import expect_partition
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, expect
from isotherm.servicekit.avro import Decoder

_JUDGED_BY = "aggregator.judged_by"
_COAP_EVENT_MS = 1_486_997_194_029


def _is_traced(harness: Harness, found: Message) -> object:
    """Decode a reading and tell from where it came; it must be found by its device."""
    reading = reading_of(Decoder(harness.registry, SCHEMA)(found.value).record)
    expect("device", reading.device_id, found.key)
    expect_partition(found)
    headers: list[tuple[str, str | bytes | None]] = [(name, text.encode()) for name, text in found.headers.items()]
    record = Record(found.topic, 0, 0, scenario.TAKEN_IN_MS, found.key.encode(), found.value, headers)
    if found.topic == LATE_TOPIC:
        return reading, fates.late_step(record)
    step = fates.received(StoredReading(reading, record))
    expect("hop", step.hop, "mqtt-proxy" if "mqtt.client_id" in found.headers else "coap-ingest")
    return reading, step.text


def _reading(
    provider: str, name: str, topic: str, of: tuple[str, str, int, int], headers: Mapping[str, Any], **more: Any
) -> Need:
    device_id, metric, event_time_ms, sequence = of
    value = {
        "device_id": device_id,
        "metric": metric,
        "value": match.number(21.5),
        "unit": match.type("Cel"),
        "event_time": event_time_ms,
        "ingest_time": match.integer(scenario.TAKEN_IN_MS),
        "sequence": sequence,
    }
    return Need(
        "console",
        provider,
        name,
        topic,
        "SensorReading",
        1,
        device_id,
        value,
        _is_traced,
        headers,
        needs_partition=True,
        **more,
    )


_MQTT = {name: match.type("text") for name in ("mqtt.client_id", "mqtt.topic", "mqtt.qos")}
_COAP = {"coap.uri": match.type("coap://localhost:5633/sensors")}
_MEASURED = scenario.MEASURED_MS

NEEDS = (
    _reading("mqtt-proxy", scenario.READING, "thermostat.data", (scenario.DEVICE, "temperature", _MEASURED, 17), _MQTT),
    _reading("mqtt-proxy", scenario.BRIGHTNESS, "brightness", (scenario.DEVICE, "brightness", _MEASURED, 17), _MQTT),
    _reading(
        "mqtt-proxy",
        scenario.TEMPERATURE_BY_REGEX,
        "temperature",
        ("kitchen", "temperature", scenario.TAKEN_IN_MS, 0),
        _MQTT,
    ),
    _reading(
        "coap-ingest", scenario.COAP_READING, "thermostat.data", ("Sensor4", "temperature", _COAP_EVENT_MS, 0), _COAP
    ),
    _reading(
        "coap-ingest", scenario.COAP_TEMPERATURE, "temperature", ("Sensor4", "temperature", _COAP_EVENT_MS, 0), _COAP
    ),
    _reading(
        "coap-ingest", scenario.COAP_BRIGHTNESS, "brightness", ("Sensor4", "brightness", _COAP_EVENT_MS, 0), _COAP
    ),
    _reading(
        "aggregator",
        scenario.LATE,
        LATE_TOPIC,
        (scenario.OTHER_DEVICE, "temperature", _MEASURED, 0),
        {fates.APPENDED: match.regex("1767225612000", regex=r"^\d+$"), _JUDGED_BY: match.type("text")},
        later_headers=frozenset({fates.APPENDED, _JUDGED_BY}),
    ),
)
