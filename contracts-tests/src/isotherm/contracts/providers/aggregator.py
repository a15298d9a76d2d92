"""The aggregator as a provider: readings pass its pure functions in a real Spark, up to the bytes for Kafka's sink."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import devices, headers, readings, windows
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.kafka_clients import open_output_producer
from isotherm.aggregator.progress import Progress
from isotherm.aggregator.recompute.corrections import AGGREGATE_IDENTITY
from isotherm.aggregator.rollups import merging
from isotherm.aggregator.service import Aggregator
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.kafka_options import SINK_OPTIONS, java_options
from isotherm.aggregator.windowing.measures import NUMBERS
from isotherm.contracts import seam
from isotherm.contracts.harness import PARTITIONER, Harness, Message, message
from isotherm.contracts.pact import scenario
from isotherm.contracts.providers import cli
from isotherm.servicekit.avro import split
from isotherm.stack.artifacts import Artifacts

RECORDS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
SETTINGS = AggregatorSettings.model_validate(
    {
        "checkpoint_dir": ".",
        "jars_dir": Artifacts().folder("spark"),
        "windows": {"hour": {"length_ms": 3_600_000}},
    }
)
APPENDED = datetime.fromtimestamp(scenario.MEASURED_MS / 1000, UTC)
"""Default time at which the broker appended a record."""
_VALUES = (20.0, 22.0, 21.0)


def known_ids(harness: Harness, topic: str) -> SchemaIds:
    """Return every schema id of a topic's subject, as the cache of writer schemas learns them."""
    versions = harness.catalog.schemas[harness.catalog.records[topic]].values()
    return SchemaIds({harness.registry.schema_id(f"{topic}-value", schema): json.dumps(schema) for schema in versions})


def written_ids(harness: Harness, topic: str, found: Sequence[Message]) -> SchemaIds:
    """Return the ids of a topic's subject, and those that messages were written with."""
    used = {split(one.value) for one in found}
    new = {schema_id: json.dumps(harness.registry.schema(schema_id).json) for schema_id in used}
    return SchemaIds({**known_ids(harness, topic).known, **new})


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
    """Return windows of two devices, the group of one region, a late reading, a dead letter, and statuses."""
    topic = SETTINGS.input_topics[0]
    on_time = [
        reading(harness, device, value, scenario.MEASURED_MS + index)
        for device in (scenario.DEVICE, scenario.OTHER_DEVICE)
        for index, value in enumerate(_VALUES)
    ]
    late = reading(
        harness, scenario.OTHER_DEVICE, 20.0, scenario.MEASURED_MS, after_ms=SETTINGS.allowed_lateness_ms + 1
    )
    unreadable = late._replace(key=scenario.DEVICE, value=b"warm")
    ids = known_ids(harness, topic)
    decoded = readings.decode(records(harness, [*on_time, late, unreadable]), ids)
    reason = readings.reject_reason(ids, SETTINGS.timeliness)
    made = windows.aggregate(readings.on_time(decoded, reason), SETTINGS.window_ms, SETTINGS.slide_ms)
    aggregates = windows.with_revision(made, scenario.MEASURED_MS + SETTINGS.watermark_delay_ms).persist()
    judged_by = str(SETTINGS.judgement)
    of_spark = headers.made({headers.JUDGED_BY: F.lit(judged_by)})
    escaped, plain = _rows(
        windows.to_aggregate_topic(aggregates, _id(harness, SETTINGS.output_topic, windows.AGGREGATE), of_spark)
    )
    members = windows.with_devices(aggregates, _devices(harness))
    groups = windows.group(members, ["region"], unknown_group="")
    (group,) = _rows(windows.to_group_topic(groups, _id(harness, SETTINGS.grouped_topic, windows.GROUP)))
    hour, hour_of_group = _rolled_up(harness, aggregates)
    rejected = readings.to_reject_topics(
        readings.rejected(decoded, reason), SETTINGS.late_topic, SETTINGS.dead_letter_topic, SETTINGS.judgement
    )
    too_late, dead = sorted(map(_rejected, rejected.collect()), key=lambda one: one.topic != SETTINGS.late_topic)
    with seam.recorded_kafka(harness) as found:
        # The windows of a small batch are sent by the driver's own producer.
        producer = open_output_producer(SETTINGS.kafka)
        rows = [(SETTINGS.output_topic, key.encode(), value) for key, value in (plain, escaped)]
        producer.send(rows, {headers.JUDGED_BY: judged_by.encode()})
        producer.send([(SETTINGS.grouped_topic, group[0].encode(), group[1])])
        window, window_escaped, window_group = found
        del found[:]
        statuses = seam.reported(_running()._reporter(), found)
    return {
        scenario.WINDOW: window,
        scenario.WINDOW_ESCAPED: window_escaped,
        scenario.GROUP: window_group,
        scenario.HOUR: hour,
        scenario.HOUR_OF_GROUP: hour_of_group,
        scenario.LATE: too_late,
        scenario.DEAD_LETTER: dead,
        **statuses,
    }


def _rolled_up(harness: Harness, aggregates: DataFrame) -> tuple[Message, Message]:
    """Return the hour of the device without | in its id, and that of its region."""
    (rollup,) = SETTINGS.rollups
    newest = F.struct(*NUMBERS, "revision").alias("newest")
    parts = aggregates.where(F.col("device_id") == scenario.DEVICE).select(*AGGREGATE_IDENTITY, newest)
    made = merging.rolled_up(parts, rollup, {rollup.start_of(scenario.MEASURED_MS)})
    numbered = windows.with_revision(made, scenario.MEASURED_MS + rollup.length_ms + SETTINGS.watermark_delay_ms)
    groups = windows.group(windows.with_devices(numbered, _devices(harness)), ["region"], unknown_group="")
    window_id, group_id = (
        _id(harness, topic, writer)
        for topic, writer in ((rollup.output_topic, windows.AGGREGATE), (rollup.grouped_topic, windows.GROUP))
    )
    ((key, value),) = _rows(windows.to_aggregate_topic(numbered, window_id, headers.made({})))
    ((group_key, group_value),) = _rows(windows.to_group_topic(groups, group_id))
    return (
        _of_spark(rollup.output_topic, key.encode(), value),
        _of_spark(rollup.grouped_topic, group_key.encode(), group_value),
    )


def _rejected(row: Row) -> Message:
    return _of_spark(
        row["topic"],
        bytes(row["key"]),
        bytes(row["value"]),
        [(header["key"], bytes(header["value"])) for header in row["headers"]],
    )


def _of_spark(topic: str, key: bytes, value: bytes, given: Sequence[tuple[str, bytes]] = ()) -> Message:
    """Return a record for Spark's Kafka sink, whose producer is Java's."""
    options = {**java_options(SETTINGS.kafka), **SINK_OPTIONS}
    made = message(topic, key, value, given)
    return made._replace(partitioner=options.get("kafka.partitioner.class", PARTITIONER))


def _running() -> Aggregator:
    """Return the service as it is while its queries run."""
    aggregator = Aggregator(SETTINGS)
    aggregator._health.ready()
    aggregator._metrics.lags = {"windows": {(SETTINGS.input_topics[0], 0): 12}}
    aggregator._metrics.batches = {"windows": _batch()}
    aggregator._metrics.read_until_ms = scenario.TAKEN_IN_MS
    aggregator._metrics.complete_after_ms = scenario.MEASURED_MS
    return aggregator


def _batch() -> Progress:
    """Return the progress of the windowed query's last batch."""
    offsets = {(SETTINGS.input_topics[0], 0): 5}
    return Progress(1, "2026-01-01T00:00:00.000Z", 5, 40, scenario.MEASURED_MS, offsets, 1, 0, {})


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
    imported = cli.messages(harness)
    known = [imported[name] for name in (scenario.DEVICE_KNOWN, scenario.DEVICE_UNKNOWN)]
    newest = devices.newest(records(harness, known))
    return devices.decode(newest, known_ids(harness, SETTINGS.devices_topic), SETTINGS.group_attributes)


def _rows(rows: DataFrame) -> list[tuple[str, bytes]]:
    return sorted((row["key"], bytes(row["value"])) for row in rows.collect())
