"""Device metadata: the newest record of each key in the compacted topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import MapType, StringType, StructField, StructType

from isotherm.aggregator.frames import confluent_avro
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.schemas import schema

READER = schema("Device", 2)
_ENTRIES = "attributes"
"""The field whose entries are attributes too; `attributes.floor` names one of them."""
_ENTRIES_TYPE = MapType(StringType(), StringType())


def last_values(records: DataFrame) -> DataFrame:
    """Return the value of the newest record of each key, as columns `device_id` and `value`; a tombstone's is null."""
    return (
        records.groupBy(F.col("key").cast("string").alias("device_id"))
        # The struct is needed because max_by skips null values, and the value of a tombstone is null.
        .agg(F.max_by(F.struct("value"), "offset").alias("newest"))
        .select("device_id", F.col("newest.value").alias("value"))
        .where(F.col("device_id").isNotNull())
    )


def newest(records: DataFrame) -> DataFrame:
    """Return the newest record of each key, as columns `device_id` and `value`; a tombstone removes the device."""
    return last_values(records).where(F.col("value").isNotNull())


def updated(table: DataFrame, changes: DataFrame, changed: DataFrame) -> DataFrame:
    """Return a table of devices after changes.

    `changes` are the `last_values` of the records that came since then, `changed` is the table that is made of them.
    """
    return table.join(changes.select("device_id"), "device_id", "left_anti").unionByName(changed)


def decode(newest: DataFrame, ids: SchemaIds, attributes: Sequence[str]) -> DataFrame:
    """Return `device_id` and one column for each attribute, for the devices whose record can be decoded.

    An attribute is a field of Device, or `attributes.<name>` for an entry of its field `attributes`.
    """
    fields = ["device_id", *dict.fromkeys(name.partition(".")[0] for name in attributes)]
    shape = StructType([StructField(name, _ENTRIES_TYPE if name == _ENTRIES else StringType()) for name in fields])
    device = confluent_avro.decode(F.col("value"), ids, confluent_avro.projected(READER, fields), shape)
    return (
        newest.select("device_id", device.alias("device"))
        .where(F.col("device.device_id").isNotNull())
        .select("device_id", *(_attribute(name).alias(name) for name in attributes))
    )


def _attribute(name: str) -> Column:
    field, _, entry = name.partition(".")
    column = F.col(f"device.{field}")
    return F.try_element_at(column, F.lit(entry)) if entry else column
