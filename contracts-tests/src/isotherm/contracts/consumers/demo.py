"""Needs of the demo's reconciliation report: identities, counts, and the header of readings from CoAP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pact import match

from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import AS_WRITTEN, Need, expect
from isotherm.demo.evidence import (
    Topic,
    add_record,
    identity_of,
    latest_of,
    plain,
)
from isotherm.servicekit.avro import Decoder

_READING = ("device_id", "metric", "event_time", "sequence")
_WINDOW = ("device_id", "metric", "window_start", "window_end")
_GROUP = ("attribute", "group", "metric", "window_start", "window_end")
_SPAN = {"window_start": scenario.START_MS, "window_end": scenario.START_MS + scenario.WINDOW_MS}


def identifies(harness: Harness, found: Message) -> object:
    """Raise UnusableError unless the report can tell this record from others."""
    decoded = Decoder(harness.registry)(found.value)
    fields = tuple(decoded.writer.json["isotherm.identity"])
    identity = identity_of(decoded.record, fields)
    expect("identity", len(identity), len(Topic(identity_fields=fields).identity_fields))
    for name, part in zip(fields, identity, strict=True):
        expect(name, part, plain(decoded.record[name]))
    topic = Topic(identity_fields=fields)
    add_record(topic, decoded, list(found.headers.items()))
    return topic


def tells_the_newest(harness: Harness, found: Message) -> object:
    """Raise UnusableError unless the report finds a device's newest readings in its state."""
    record = Decoder(harness.registry)(found.value).record
    newest = [(device, metric) for device, metric, _time in latest_of(record)]
    expect("readings", newest, [(record["device_id"], metric) for metric in record["latest"]])
    return list(latest_of(record))


def _need(provider: str, name: str, topic: str, record: str, value: Mapping[str, Any], **more: Any) -> Need:
    process = more.pop("process", identifies)
    return Need(
        "demo", provider, name, topic, record, 1, key=None, value=value, process=process, fields=AS_WRITTEN, **more
    )


def _reading(device_id: str, metric: str, event_time_ms: int, sequence: int) -> Mapping[str, Any]:
    return dict(zip(_READING, (device_id, metric, event_time_ms, sequence), strict=True))


_COAP = {"coap.uri": match.regex("coap://localhost:5633/sensors", regex=".*")}
"""The header by which the report recognizes readings from CoAP."""

_LATEST = {
    "value": match.number(21.5),
    "unit": match.type("Cel"),
    "event_time": match.integer(scenario.MEASURED_MS),
}
"""An inner record needs every field; the report reads only the last one."""

NEEDS = (
    _need(
        "mqtt-proxy",
        scenario.READING,
        "thermostat.data",
        "SensorReading",
        _reading(scenario.DEVICE, "temperature", scenario.MEASURED_MS, 17),
    ),
    _need(
        "mqtt-proxy",
        scenario.BRIGHTNESS,
        "brightness",
        "SensorReading",
        _reading(scenario.DEVICE, "brightness", scenario.MEASURED_MS, 17),
    ),
    _need(
        "coap-ingest",
        scenario.COAP_BRIGHTNESS,
        "brightness",
        "SensorReading",
        _reading("Sensor4", "brightness", 1_486_997_194_029, 0),
        headers=_COAP,
    ),
    _need(
        "coap-ingest",
        scenario.COAP_READING,
        "thermostat.data",
        "SensorReading",
        _reading("Sensor4", "temperature", 1_486_997_194_029, 0),
        headers=_COAP,
    ),
    _need(
        "coap-ingest",
        scenario.COAP_MESSAGE,
        "coap_sensor_topic",
        "CoapMessage",
        {"payload": match.regex('{"sensorId":"Sensor4","timestamp":1}', regex=r'^\{.*"sensorId".*"timestamp".*\}$')},
    ),
    _need(
        "aggregator",
        scenario.WINDOW,
        "temperatures.aggregated",
        "TemperatureAggregate",
        {"device_id": scenario.DEVICE, "metric": "temperature", **_SPAN, "count": 3, "revision": match.integer(1)},
    ),
    _need(
        "aggregator",
        scenario.GROUP,
        "temperatures.grouped",
        "TemperatureGroup",
        {"attribute": "region", "group": "north", "metric": "temperature", **_SPAN, "count": 3}
        | {"revision": match.integer(1)},
    ),
    _need(
        "aggregator",
        scenario.LATE,
        "thermostat.late",
        "SensorReading",
        _reading(scenario.OTHER_DEVICE, "temperature", scenario.MEASURED_MS, 0),
    ),
    *(
        _need(
            "alerts",
            name,
            "alerts",
            "Alert",
            {"alert_id": match.type("dev-1/above/temperature/1"), "state": state},
        )
        for name, state in ((scenario.ALERT_OPENED, "opened"), (scenario.ALERT_CLOSED, "closed"))
    ),
    _need(
        "alerts",
        scenario.DEVICE_STATE,
        "devices.latest",
        "DeviceState",
        {
            "device_id": scenario.DEVICE,
            "latest": {"temperature": _LATEST},
        },
        process=tells_the_newest,
    ),
)
