"""What the aggregator needs: readings to average, and the attributes of devices to group by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pact import match
from pyspark.sql import Row

from isotherm.aggregator.frames import devices, headers, readings
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.recompute import corrections
from isotherm.connector.distributed.publishing import CONNECTORS
from isotherm.contracts.consumers.standalone import reconciles
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, UnusableError, expect
from isotherm.contracts.partitions import murmur2_partition, partition_of
from isotherm.contracts.providers.aggregator import (
    APPENDED,
    SETTINGS,
    known_ids,
    records,
    written_ids,
)
from isotherm.contracts.providers.alerts import PARTITIONS

_TOPIC = SETTINGS.input_topics[0]
_ATTRIBUTES = (*SETTINGS.group_attributes, "attributes.floor")
"""The device's attributes by which windows are grouped: those of the default, and one of a device's own."""


def read(harness: Harness, found: Sequence[Message], appended: datetime = APPENDED) -> list[tuple[Row, str | None]]:
    """Return each reading as the windows see it, and its reject reason: None when it is aggregated."""
    ids = SchemaIds({**_ids(harness).known, **written_ids(harness, _TOPIC, found).known})
    decoded = readings.decode(records(harness, found, appended), ids)
    reason = readings.reject_reason(ids, SETTINGS.timeliness).alias("reason")
    rows = decoded.select("offset", "reading", reason).orderBy("offset").collect()
    return [(row["reading"], row["reason"]) for row in rows]


def _ids(harness: Harness) -> SchemaIds:
    """Return the schema ids of both topics with readings, because `recompute` reads the late topic, too."""
    return SchemaIds({**known_ids(harness, _TOPIC).known, **known_ids(harness, SETTINGS.late_topic).known})


def _aggregates(harness: Harness, found: Message) -> object:
    ((reading, reason),) = read(harness, [found])
    if reason not in (None, readings.LATE):
        raise UnusableError(f"reject reason {reason}")
    for name in readings.FIELDS:
        if reading[name] is None:
            raise UnusableError(f"no {name}")
    return reading, reason


def read_late(harness: Harness, found: Sequence[Message]) -> list[tuple[Row, str | None, datetime, str | None]]:
    """Return each late reading, its reject reason, and by what and how corrections judge it."""
    ids = SchemaIds({**_ids(harness).known, **written_ids(harness, SETTINGS.late_topic, found).known})
    decoded = readings.decode(corrections.as_appended_to_input(records(harness, found)), ids)
    reason = readings.reject_reason(ids, SETTINGS.timeliness).alias("reason")
    judged = "timestamp", corrections.JUDGED_BY
    rows = decoded.select("offset", "reading", reason, *judged).orderBy("offset").collect()
    return [(row["reading"], row["reason"], *(row[name] for name in judged)) for row in rows]


def _corrects(harness: Harness, found: Message) -> object:
    _aggregates(harness, found)
    (late,) = read_late(harness, [found])
    _, reason, _, judged_by = late
    expect("reject reason", reason, readings.LATE)
    # An earlier release wrote none; corrections then take the present settings.
    expect("judgement", judged_by, found.headers.get(headers.JUDGED_BY))
    return late


def _correct_all(harness: Harness, found: Sequence[Message]) -> list[object]:
    return list(read_late(harness, found))


def _aggregate_all(harness: Harness, found: Sequence[Message]) -> list[object]:
    return list(read(harness, found))


def read_devices(harness: Harness, found: Sequence[Message]) -> list[Row]:
    """Return the devices with which groups are made."""
    ids = written_ids(harness, SETTINGS.devices_topic, found)
    return devices.decode(devices.newest(records(harness, found)), ids, _ATTRIBUTES).collect()


def _joins(harness: Harness, found: Message) -> object:
    (device,) = read_devices(harness, [found])
    # The join uses the record's key.
    expect("device_id", device["device_id"], found.key)
    return device


def _join_all(harness: Harness, found: Sequence[Message]) -> list[object]:
    """Join each device alone, after an earlier record of its key that another producer wrote.

    Of a key's records the one with the highest offset counts. In another partition the earlier one may have it.
    """
    sent: list[Message] = []
    for number, one in enumerate(found):
        key, alone = one.key, f"{number}\0{one.key}"
        earlier = one._replace(key=alone, value=harness.encode(one.topic, "Device", 1, {**_EARLIER, "device_id": key}))
        both = [earlier, one._replace(key=alone)]
        is_on_its_partition = partition_of(one, PARTITIONS) == murmur2_partition(key, PARTITIONS)
        sent += both if is_on_its_partition else reversed(both)
    rows = {row["device_id"]: row.asDict() for row in read_devices(harness, sent)}
    made = [rows.get(f"{number}\0{one.key}") for number, one in enumerate(found)]
    return [None if row is None else {**row, "device_id": one.key} for row, one in zip(made, found, strict=True)]


_EARLIER: Mapping[str, Any] = {"home": "home-00", "room": None, "region": "south", "model": None, "thresholds": {}}


def _reading(provider: str, name: str, key: str, event_time_ms: int) -> Need:
    value = {
        "device_id": key,
        "metric": "temperature",
        "value": match.number(21.5),
        "event_time": event_time_ms,
        "ingest_time": scenario.TAKEN_IN_MS,
    }
    return Need(
        "aggregator",
        provider,
        name,
        _TOPIC,
        "SensorReading",
        1,
        key,
        value,
        _aggregates,
        process_all=_aggregate_all,
        fields=readings.FIELDS,
    )


def _device(name: str, key: str, value: Mapping[str, Any]) -> Need:
    return Need(
        "aggregator",
        "cli",
        name,
        SETTINGS.devices_topic,
        "Device",
        2,
        key=key,
        value=value,
        process=_joins,
        process_all=_join_all,
        fields=("device_id", *SETTINGS.group_attributes, "attributes"),
        needs_partition=True,
    )


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
        key=None,
        # `recompute` adds it to its window.
        value={
            "device_id": scenario.OTHER_DEVICE,
            "metric": "temperature",
            "value": match.number(20.0),
            "event_time": scenario.MEASURED_MS,
            "ingest_time": scenario.MEASURED_MS + SETTINGS.allowed_lateness_ms + 1,
        },
        process=_corrects,
        process_all=_correct_all,
        # They say whether the reading was late for the window that is corrected.
        headers={
            headers.APPENDED_MS: str(scenario.MEASURED_MS),
            headers.JUDGED_BY: str(SETTINGS.judgement),
        },
        later_headers=frozenset({headers.APPENDED_MS, headers.JUDGED_BY}),
        fields=readings.FIELDS,
    ),
    _device(
        scenario.DEVICE_KNOWN,
        scenario.DEVICE,
        {"home": "home-01", "room": "kitchen", "region": "north", "model": "T1", "attributes": {}},
    ),
    _device(
        scenario.DEVICE_UNKNOWN,
        scenario.OTHER_DEVICE,
        {"home": None, "room": None, "region": None, "model": None, "attributes": {}},
    ),
    _device(scenario.DEVICE_ATTRIBUTES, scenario.DEVICE, {"home": "home-01", "attributes": {"floor": "3"}}),
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
