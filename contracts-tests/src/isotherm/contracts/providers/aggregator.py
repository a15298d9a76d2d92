"""The aggregator as a provider: readings pass its pure functions in a real Spark, up to the bytes for Kafka's sink."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame

from isotherm.aggregator.frames import devices, readings, windows
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.status import Status
from isotherm.contracts.harness import (
    Harness,
    Message,
    heartbeat,
    message,
)
from isotherm.contracts.pact import scenario
from isotherm.contracts.providers import cli
from isotherm.servicekit.health import Health

RECORDS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
SETTINGS = AggregatorSettings.model_validate({"checkpoint_dir": ".", "jars_dir": "."})
APPENDED = datetime.fromtimestamp(scenario.MEASURED_MS / 1000, UTC)
"""Default time at which the broker appended a record."""
_VALUES = (20.0, 22.0, 21.0)


def known_ids(harness: Harness, topic: str) -> SchemaIds:
    """Return every schema id of a topic's subject, as the cache of writer schemas learns them."""
    versions = harness.catalog.schemas[harness.catalog.records[topic]].values()
    return SchemaIds({harness.registry.schema_id(f"{topic}-value", schema): json.dumps(schema) for schema in versions})


def records(harness: Harness, found: Sequence[Message], appended: datetime = APPENDED) -> DataFrame:
    """Return messages as Spark's Kafka source returns them, all appended at one time."""
    rows = [
        (
            one.key.encode(),
            one.value,
            one.topic,
            0,
            offset,
            appended,
            [(name, text.encode()) for name, text in one.headers.items()],
        )
        for offset, one in enumerate(found)
    ]
    return harness.spark.createDataFrame(rows, RECORDS)


def messages(harness: Harness) -> Mapping[str, Message]:
    """Return windows of two devices, the group of one region, a late reading, and a heartbeat."""
    topic = SETTINGS.input_topics[0]
    on_time = [
        reading(harness, device, value, scenario.MEASURED_MS + index)
        for device in (scenario.DEVICE, scenario.OTHER_DEVICE)
        for index, value in enumerate(_VALUES)
    ]
    late = reading(
        harness, scenario.OTHER_DEVICE, 20.0, scenario.MEASURED_MS, after_ms=SETTINGS.allowed_lateness_ms + 1
    )
    ids = known_ids(harness, topic)
    decoded = readings.decode(records(harness, [*on_time, late]), ids)
    reason = readings.reject_reason(ids, SETTINGS.timeliness)
    made = windows.aggregate(readings.on_time(decoded, reason), SETTINGS.window_ms, SETTINGS.slide_ms)
    aggregates = windows.with_revision(made, scenario.MEASURED_MS + SETTINGS.watermark_delay_ms).persist()
    rejected = readings.to_reject_topics(
        readings.rejected(decoded, reason),
        SETTINGS.late_topic,
        SETTINGS.dead_letter_topic,
        SETTINGS.timeliness,
    )
    escaped, plain = _rows(
        windows.to_aggregate_topic(aggregates, _id(harness, SETTINGS.output_topic, windows.AGGREGATE))
    )
    members = windows.with_devices(aggregates, _devices(harness))
    groups = windows.group(members, ["region"], unknown_group="")
    (group,) = _rows(windows.to_group_topic(groups, _id(harness, SETTINGS.grouped_topic, windows.GROUP)))
    (too_late,) = rejected.collect()
    status = Status(Health(), Metrics())
    headers = [(header["key"], bytes(header["value"])) for header in too_late["headers"]]
    return {
        scenario.WINDOW: message(SETTINGS.output_topic, *plain),
        scenario.WINDOW_ESCAPED: message(SETTINGS.output_topic, *escaped),
        scenario.GROUP: message(SETTINGS.grouped_topic, *group),
        scenario.LATE: message(too_late["topic"], bytes(too_late["key"]), bytes(too_late["value"]), headers),
        scenario.HEARTBEAT: heartbeat(harness, SETTINGS.name, status.state(), status.counts, status.lag),
    }


def reading(harness: Harness, device_id: str, value: float, measured_ms: int, after_ms: int = 350) -> Message:
    """Return a reading in the input topic whose ingest time is `after_ms` after its event time."""
    record = {
        "device_id": device_id,
        "metric": "temperature",
        "value": value,
        "unit": "Cel",
        "event_time": measured_ms,
        "ingest_time": measured_ms + after_ms,
        "sequence": 0,
        "attributes": {},
    }
    topic = SETTINGS.input_topics[0]
    headers = {"mqtt.topic": f"devices/{device_id}/temperature", "mqtt.qos": "1", "mqtt.client_id": "simulator-1"}
    return Message(topic, device_id, harness.encode(topic, "SensorReading", 1, record), headers)


def _id(harness: Harness, topic: str, writer: Mapping[str, Any]) -> int:
    return harness.registry.schema_id(f"{topic}-value", writer)


def _devices(harness: Harness) -> DataFrame:
    newest = devices.newest(records(harness, list(cli.messages(harness).values())))
    return devices.decode(newest, known_ids(harness, SETTINGS.devices_topic), SETTINGS.group_attributes)


def _rows(rows: DataFrame) -> list[tuple[str, bytes]]:
    return sorted((row["key"], bytes(row["value"])) for row in rows.collect())
