"""Decodes Kafka records to readings, and finds the reason for which a record is rejected. Pure.

The reason depends on the record alone, its append time included (ADR 0030). Every query that reads a record therefore
finds the same reason, whenever it reads the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import (
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from isotherm.aggregator.frames import conditions, confluent_avro, headers
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.reading_condition import fields_of
from isotherm.aggregator.watermark.judgement import Judgement
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.connector.errors.dead_letters import PREFIX
from isotherm.kcql import Condition
from isotherm.schemas import schema

READER = schema("SensorReading", 1)
FIELDS = ("device_id", "metric", "value", "event_time", "ingest_time")
_TYPES: Mapping[str, DataType] = {
    "device_id": StringType(),
    "metric": StringType(),
    "value": DoubleType(),
    "unit": StringType(),
    "event_time": TimestampType(),
    "ingest_time": TimestampType(),
    "sequence": LongType(),
    "attributes": MapType(StringType(), StringType()),
}

LATE = "late"
FILTERED = "filtered"
"""The reason of a reading of which the condition `where` is not true. It goes to no topic."""
DEAD_LETTER_REASONS = (
    "no-value",
    "not-framed",
    "unknown-schema",
    "corrupt",
    "out-of-range",
    "not-finite",
    "too-large",
    "future",
)
REASONS = (LATE, FILTERED, *DEAD_LETTER_REASONS)

LATEST_TIME_MS = 253_402_300_799_999
"""The end of the year 9999. Times before 1970 or after this overflow Spark's window arithmetic."""

LARGEST_VALUE = 1e100
"""No measurement is larger. Below it, the sum of all values in a topic, and that of their squares, stay finite."""

_DEAD_LETTER_OFFSET_HEADERS = ("topic", "partition", "offset")


def decode(records: DataFrame, ids: SchemaIds, where: Condition | None = None, others: Sequence[str] = ()) -> DataFrame:
    """Add the column `reading` to Kafka records: a struct, all null when the value cannot be read.

    It has FIELDS, and behind them the other fields that `where` names, and `others`.
    """
    names = list(dict.fromkeys([*FIELDS, *fields_of(where), *others]))
    shape = StructType([StructField(name, _TYPES[name]) for name in names])
    reading = confluent_avro.decode(F.col("value"), ids, confluent_avro.projected(READER, names), shape)
    return records.withColumn("reading", reading)


def reject_reason(ids: SchemaIds, timeliness: Timeliness, where: Condition | None = None) -> Column:
    """Return why a decoded record is not aggregated, one of REASONS; null when it is aggregated.

    Only readings of which the condition `where` is true are aggregated; None: all. Records that are no readings, or lie
    in the future, are dead letters whatever the condition says.

    `timestamp` is the record's append time where the topic has `message.timestamp.type=LogAppendTime`.
    """
    value = F.col("value")
    event_ms, ingest_ms = F.unix_millis("reading.event_time"), F.unix_millis("reading.ingest_time")
    appended_ms = F.unix_millis("timestamp")
    measured = F.col("reading.value")
    is_wanted = F.lit(True) if where is None else conditions.is_true(where, "reading")
    return (
        F.when(value.isNull(), "no-value")
        .when(~confluent_avro.is_framed(value), "not-framed")
        .when(F.col("reading.device_id").isNull() & ~confluent_avro.is_known(value, ids), "unknown-schema")
        .when(F.col("reading.device_id").isNull(), "corrupt")
        .when(~event_ms.between(0, LATEST_TIME_MS) | ~ingest_ms.between(0, LATEST_TIME_MS), "out-of-range")
        .when(F.isnan(measured) | (F.abs(measured) == float("inf")), "not-finite")
        .when(F.abs(measured) > LARGEST_VALUE, "too-large")
        .when(event_ms > ingest_ms + timeliness.max_skew_ms, "future")
        .when(~is_wanted, FILTERED)
        .when(
            (event_ms < ingest_ms - timeliness.allowed_lateness_ms)
            | (appended_ms > ingest_ms + timeliness.max_publish_delay_ms),
            LATE,
        )
    )


def judged(decoded: DataFrame, reason: Column) -> DataFrame:
    """Return the readings whose `reason` is null, as columns, and their `appended_time`; for every other record nulls.

    A generator is used instead of a filter: Spark pushes a filter below the projection that decodes, and decodes twice.
    """
    row = F.struct("reading.*", F.col("timestamp").alias("appended_time"))
    return decoded.select(F.inline_outer(F.when(reason.isNull(), F.array(row))))


def is_rejected() -> Column:
    """Return whether a row of `judged` stands for a record that is no reading on time."""
    return F.col("device_id").isNull()


def on_time(decoded: DataFrame, reason: Column) -> DataFrame:
    """Return the readings whose `reason` is null, as columns, and their `appended_time`."""
    return judged(decoded, reason).where(~is_rejected())


def rejected(decoded: DataFrame, reason: Column) -> DataFrame:
    """Return the records whose `reason` is not null, with the column `reason`. Uses a generator as `on_time` does.

    Those of the reason FILTERED are to be counted, and written nowhere.
    """
    return decoded.select("*", F.explode(F.when(reason.isNotNull(), F.array(reason))).alias("reason"))


def to_reject_topics(rows: DataFrame, late_topic: str, dead_letter_topic: str, judgement: Judgement) -> DataFrame:
    """Return rows for the Kafka sink, with the original key, value and headers.

    Late readings get the headers APPENDED_MS and JUDGED_BY, by which corrections judge them again. Dead-letter records
    get Kafka Connect's `__connect.errors.*` headers with the reason.
    """
    is_late = F.col("reason") == LATE
    original = headers.without(F.col("headers"))
    other_headers = F.filter(original, lambda header: ~header["key"].startswith(PREFIX))
    judged = {headers.APPENDED_MS: F.unix_millis("timestamp"), headers.JUDGED_BY: F.lit(str(judgement))}
    late_headers = F.concat(headers.without(F.col("headers"), *judged), headers.made(judged))
    error = {name: F.col(name).cast("string") for name in _DEAD_LETTER_OFFSET_HEADERS} | {
        "connector.name": F.lit("aggregator"),
        "task.id": F.lit("0"),
        "stage": F.lit("VALUE_CONVERTER"),
        "class.name": F.lit("aggregator.readings"),
        "exception.class.name": F.concat(F.lit("aggregator.readings."), F.col("reason")),
        "exception.message": _message(judgement.timeliness),
    }
    errors = headers.made({PREFIX + name: text for name, text in error.items()})
    return rows.select(
        F.when(is_late, F.lit(late_topic)).otherwise(F.lit(dead_letter_topic)).alias("topic"),
        "key",
        "value",
        F.when(is_late, late_headers).otherwise(F.concat(other_headers, errors)).alias("headers"),
    )


def _message(timeliness: Timeliness) -> Column:
    value, reason = F.col("value"), F.col("reason")
    times = [
        F.lit("event_time "),
        F.unix_millis("reading.event_time"),
        F.lit(", ingest_time "),
        F.unix_millis("reading.ingest_time"),
    ]
    length = F.length(value).cast("string")
    return (
        F.when(reason == "no-value", "the record has no value")
        .when(reason == "not-framed", F.concat(length, F.lit(" bytes do not begin with magic byte 0 and a schema id")))
        .when(
            reason == "unknown-schema",
            F.concat(F.lit("the registry has no schema with id "), confluent_avro.schema_id(value)),
        )
        .when(reason == "corrupt", F.concat(F.lit("the body does not fit schema id "), confluent_avro.schema_id(value)))
        .when(reason == "out-of-range", F.concat(*times, F.lit(" (epoch ms): not within the years 1970 to 9999")))
        .when(reason == "not-finite", F.concat(F.lit("the value is "), F.col("reading.value").cast("string")))
        .when(
            reason == "too-large",
            F.concat(F.lit("the value is "), F.col("reading.value").cast("string"), F.lit(f", beyond {LARGEST_VALUE}")),
        )
        # "future" is the last reason: late readings carry no message.
        .otherwise(F.concat(*times, F.lit(f" (epoch ms): more than {timeliness.max_skew_ms} ms ahead")))
    )
