"""The compacted topic of devices as a Spark table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.checkpoint.writer_schema_cache import writer_schema
from isotherm.aggregator.frames import confluent_avro, devices
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.records import Attributes
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.noted_batches import NotedBatches
from isotherm.servicekit.avro import SchemaRegistry

MAX_DEVICES_IN_DRIVER = 20_000
"""Most devices whose attributes are kept in Python as well: about 10 MB."""
MAX_UPDATES = 50
"""How often the table takes in what has changed, before the whole topic is read again.

Spark keeps how each table was made of the one before it.
"""


class DevicesTable:
    """The devices as they were when a batch first ran. Of a topic that has grown only the new records are read."""

    def __init__(
        self,
        settings: AggregatorSettings,
        kafka_options: Mapping[str, str],
        broker: Broker,
        registry: SchemaRegistry,
        batches: NotedBatches,
    ) -> None:
        self._settings = settings
        self._kafka = dict(kafka_options)
        self._broker = broker
        self._registry = registry
        self._batches = batches
        self._cached: tuple[dict[str, int], DataFrame] | None = None
        self._attributes: Attributes | None = None
        self._updates = 0

    def as_of(self, session: SparkSession, batch_id: int) -> DataFrame:
        """Return `device_id` and the attributes. A batch that is run again gets the same rows as before.

        Raises BrokerError, LeaseLostError or RegistryUnavailableError.
        """
        ends = self._batches.devices(batch_id)
        if ends is None:
            ends = end_offsets_by_number(self._broker, self._settings.devices_topic)
            self._batches.note_devices(batch_id, ends)
        if self._cached is None or self._cached[0] != ends:
            table, updates = self._read(session, ends)
            # This reads Kafka, and may fail. Until it is done, the table before counts.
            attributes = _attributes(table) if table.count() <= MAX_DEVICES_IN_DRIVER else None
            if self._cached is not None:
                self._cached[1].unpersist()
            self._cached, self._attributes, self._updates = (ends, table), attributes, updates
        return self._cached[1]

    def _read(self, session: SparkSession, ends: dict[str, int]) -> tuple[DataFrame, int]:
        """Return the table at the end offsets, and of how many updates it is made."""
        topic, attributes = self._settings.devices_topic, self._settings.group_attributes
        if self._cached is not None and self._updates < MAX_UPDATES and _follows(self._cached[0], ends):
            begins, table = self._cached
            updated = update_devices(session, self._kafka, self._registry, topic, (begins, ends), attributes, table)
            return updated, self._updates + 1
        return read_devices(session, self._kafka, self._registry, topic, ends, attributes), 0

    def attributes_as_of(self, session: SparkSession, batch_id: int) -> Attributes | None:
        """Return what `as_of` returns, for Python; None when there are too many devices for that.

        Raises BrokerError, LeaseLostError or RegistryUnavailableError.
        """
        self.as_of(session, batch_id)
        return self._attributes


def _follows(begins: Mapping[str, int], ends: Mapping[str, int]) -> bool:
    """Return whether offsets lie behind others, in the same partitions."""
    return begins.keys() == ends.keys() and all(begins[number] <= end for number, end in ends.items())


def _attributes(table: DataFrame) -> Attributes:
    return {device_id: tuple(values) for device_id, *values in table.collect()}


def end_offsets_by_number(broker: Broker, topic: str) -> dict[str, int]:
    """Return the committed end offsets of a topic by partition number (as text). Raises BrokerError."""
    return {str(number): end for (_, number), end in broker.end_offsets([topic], committed=True).items()}


def read_devices(
    session: SparkSession,
    kafka_options: Mapping[str, str],
    registry: SchemaRegistry,
    topic: str,
    ends: Mapping[str, int],
    attributes: Sequence[str],
) -> DataFrame:
    """Return the devices in the compacted `topic` up to the end offsets (by partition number), cached in memory.

    Raises RegistryUnavailableError.
    """
    newest = devices.newest(_records(session, kafka_options, topic, "earliest", ends))
    newest = newest.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        ids = registered_ids(newest, registry)
        table = devices.decode(newest, ids, attributes).persist(StorageLevel.MEMORY_AND_DISK)
        table.count()
    finally:
        newest.unpersist()
    return table


def update_devices(
    session: SparkSession,
    kafka_options: Mapping[str, str],
    registry: SchemaRegistry,
    topic: str,
    span: tuple[Mapping[str, int], Mapping[str, int]],
    attributes: Sequence[str],
    table: DataFrame,
) -> DataFrame:
    """Return what `read_devices` returns at the end of a span of offsets, from the `table` at its begin.

    Reads only the span. Raises RegistryUnavailableError.
    """
    begins, ends = span
    changes = devices.last_values(_records(session, kafka_options, topic, json.dumps({topic: begins}), ends))
    changes = changes.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        values = changes.where(F.col("value").isNotNull())
        changed = devices.decode(values, registered_ids(values, registry), attributes)
        updated = devices.updated(table, changes, changed).persist(StorageLevel.MEMORY_AND_DISK)
        updated.count()
    finally:
        changes.unpersist()
    return updated


def _records(
    session: SparkSession, kafka_options: Mapping[str, str], topic: str, begin: str, ends: Mapping[str, int]
) -> DataFrame:
    return (
        session.read.format("kafka")
        .options(**kafka_options)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", begin)
        .option("endingOffsets", json.dumps({topic: ends}))
        .load()
    )


def registered_ids(records: DataFrame, registry: SchemaRegistry) -> SchemaIds:
    """Return the schema ids in the column `value` that the registry knows; all others count as unknown.

    Runs a Spark job. Raises RegistryUnavailableError.
    """
    texts = {schema_id: writer_schema(registry, schema_id) for schema_id in confluent_avro.schema_ids(records)}
    return SchemaIds({schema_id: text for schema_id, text in texts.items() if text is not None}, closed=True)
