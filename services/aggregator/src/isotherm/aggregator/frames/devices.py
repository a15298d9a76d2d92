"""What is known of the devices: the newest record of each key in the compacted topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import StringType, StructField, StructType

from isotherm.aggregator.frames import confluent_avro
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.schemas import schema

READER = schema("Device", 1)


def newest(records: DataFrame) -> DataFrame:
    """The newest record of each key, as columns `device_id` and `value`; a record without value removes the device."""
    return (
        records.groupBy(F.col("key").cast("string").alias("device_id"))
        # A struct, because max_by on its own passes over the null value of a tombstone.
        .agg(F.max_by(F.struct("value"), "offset").alias("newest"))
        .select("device_id", F.col("newest.value").alias("value"))
        .where(F.col("value").isNotNull() & F.col("device_id").isNotNull())
    )


def decode(newest: DataFrame, ids: SchemaIds, attributes: Sequence[str]) -> DataFrame:
    """`device_id` and one column for each attribute, of those devices of which the record can be read."""
    fields = ["device_id", *attributes]
    shape = StructType([StructField(name, StringType()) for name in fields])
    device = confluent_avro.decode(F.col("value"), ids, confluent_avro.projected(READER, fields), shape)
    return (
        newest.select("device_id", device.alias("device"))
        .where(F.col("device.device_id").isNotNull())
        .select("device_id", *(F.col(f"device.{name}").alias(name) for name in attributes))
    )
