"""What the aggregator needs: readings to average, and the attributes of devices to group by."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pact import match
from pyspark.sql import Row

from isotherm.aggregator.frames import devices, readings
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.connector.distributed.publishing import CONNECTORS
from isotherm.contracts.consumers.standalone import reconciles
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, UnusableError, expect
from isotherm.contracts.providers.aggregator import (
    APPENDED,
    SETTINGS,
    known_ids,
    records,
)

_TOPIC = SETTINGS.input_topics[0]


def read(harness: Harness, found: Sequence[Message], appended: datetime = APPENDED) -> list[tuple[Row, str | None]]:
    """Return each reading as the windows see it, and its reject reason: None when it is aggregated."""
    ids = _ids(harness)
    decoded = readings.decode(records(harness, found, appended), ids)
    reason = readings.reject_reason(ids, SETTINGS.timeliness).alias("reason")
    rows = decoded.select("offset", "reading", reason).orderBy("offset").collect()
    return [(row["reading"], row["reason"]) for row in rows]


def _ids(harness: Harness) -> SchemaIds:
    """Return the schema ids of both topics with readings, because `recompute` reads the late topic, too."""
    return SchemaIds({**known_ids(harness, _TOPIC).known, **known_ids(harness, SETTINGS.late_topic).known})


def _aggregates(harness: Harness, found: Message) -> None:
    ((reading, reason),) = read(harness, [found])
    if reason not in (None, readings.LATE):
        raise UnusableError(f"reject reason {reason}")
    for name in readings.FIELDS:
        if reading[name] is None:
            raise UnusableError(f"no {name}")


def read_devices(harness: Harness, found: Sequence[Message]) -> list[Row]:
    """Return the devices with which groups are made."""
    ids = known_ids(harness, SETTINGS.devices_topic)
    return devices.decode(devices.newest(records(harness, found)), ids, SETTINGS.group_attributes).collect()


def _joins(harness: Harness, found: Message) -> None:
    (device,) = read_devices(harness, [found])
    # The join uses the record's key.
    expect("device_id", device["device_id"], found.key)


def _reading(provider: str, name: str, key: str, event_time_ms: int) -> Need:
    value = {
        "device_id": key,
        "metric": "temperature",
        "value": match.number(21.5),
        # Not read, but needed: the values of one metric are averaged, so they must have one unit.
        "unit": "Cel",
        "event_time": event_time_ms,
        "ingest_time": scenario.TAKEN_IN_MS,
    }
    return Need("aggregator", provider, name, _TOPIC, "SensorReading", 1, key, value, _aggregates)


NEEDS = (
    _reading("mqtt-proxy", scenario.READING, scenario.DEVICE, scenario.MEASURED_MS),
    _reading("coap-ingest", scenario.COAP_READING, "Sensor4", 1_486_997_194_029),
    Need(
        "aggregator",
        "aggregator",
        scenario.LATE,
        SETTINGS.late_topic,
        "SensorReading",
        1,
        key=scenario.OTHER_DEVICE,
        # `recompute` adds it to its window.
        value={
            "device_id": scenario.OTHER_DEVICE,
            "metric": "temperature",
            "value": match.number(20.0),
            "unit": "Cel",
            "event_time": scenario.MEASURED_MS,
            "ingest_time": scenario.MEASURED_MS + SETTINGS.allowed_lateness_ms + 1,
        },
        process=_aggregates,
    ),
    Need(
        "aggregator",
        "cli",
        scenario.DEVICE_KNOWN,
        SETTINGS.devices_topic,
        "Device",
        1,
        key=scenario.DEVICE,
        value={"device_id": scenario.DEVICE, "home": "home-01", "room": "kitchen", "region": "north", "model": "T1"},
        process=_joins,
    ),
    Need(
        "aggregator",
        "cli",
        scenario.DEVICE_UNKNOWN,
        SETTINGS.devices_topic,
        "Device",
        1,
        key=scenario.OTHER_DEVICE,
        value={"device_id": scenario.OTHER_DEVICE, "home": None, "room": None, "region": None, "model": None},
        process=_joins,
    ),
    Need(
        "aggregator",
        "persisters",
        scenario.CONNECTOR,
        CONNECTORS,
        "ConnectorConfig",
        2,
        key="coap-to-hazelcast",
        value={"name": "coap-to-hazelcast", "target_state": "STARTED", "restart_count": match.integer(0)},
        process=reconciles,
    ),
)
