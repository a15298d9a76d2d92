"""The compacted topic of devices as a Spark table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.checkpoint.writer_schema_cache import writer_schema
from isotherm.aggregator.frames import confluent_avro, devices
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.records import Attributes
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.servicekit.avro import SchemaRegistry

MAX_DEVICES_IN_DRIVER = 20_000
"""Most devices whose attributes are kept in Python as well: about 10 MB."""


class DevicesTable:
    """The devices as they were when a batch first ran. The topic is read again only after it has grown."""

    def __init__(
        self,
        settings: AggregatorSettings,
        kafka_options: Mapping[str, str],
        broker: Broker,
        registry: SchemaRegistry,
        folder: CheckpointFolder,
    ) -> None:
        self._settings = settings
        self._kafka = dict(kafka_options)
        self._broker = broker
        self._registry = registry
        self._folder = folder
        self._cached: tuple[dict[str, int], DataFrame] | None = None
        self._attributes: Attributes | None = None

    def as_of(self, session: SparkSession, batch_id: int) -> DataFrame:
        """Return `device_id` and the attributes. A batch that is run again gets the same rows as before.

        Raises BrokerError or RegistryUnavailableError.
        """
        ends = self._folder.devices_snapshot(batch_id)
        if ends is None:
            ends = end_offsets_by_number(self._broker, self._settings.devices_topic)
            self._folder.save_devices_snapshot(batch_id, ends)
        if self._cached is None or self._cached[0] != ends:
            table = read_devices(
                session,
                self._kafka,
                self._registry,
                self._settings.devices_topic,
                ends,
                self._settings.group_attributes,
            )
            # This reads Kafka, and may fail. Until it is done, the table before counts.
            attributes = _attributes(table) if table.count() <= MAX_DEVICES_IN_DRIVER else None
            if self._cached is not None:
                self._cached[1].unpersist()
            self._cached, self._attributes = (ends, table), attributes
        return self._cached[1]

    def attributes_as_of(self, session: SparkSession, batch_id: int) -> Attributes | None:
        """Return what `as_of` returns, for Python; None when there are too many devices for that.

        Raises BrokerError or RegistryUnavailableError.
        """
        self.as_of(session, batch_id)
        return self._attributes


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
    records = (
        session.read.format("kafka")
        .options(**kafka_options)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", json.dumps({topic: ends}))
        .load()
    )
    newest = devices.newest(records).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        ids = registered_ids(newest, registry)
        table = devices.decode(newest, ids, attributes).persist(StorageLevel.MEMORY_AND_DISK)
        table.count()
    finally:
        newest.unpersist()
    return table


def registered_ids(records: DataFrame, registry: SchemaRegistry) -> SchemaIds:
    """Return the schema ids in the column `value` that the registry knows; all others count as unknown.

    Runs a Spark job. Raises RegistryUnavailableError.
    """
    texts = {schema_id: writer_schema(registry, schema_id) for schema_id in confluent_avro.schema_ids(records)}
    return SchemaIds({schema_id: text for schema_id, text in texts.items() if text is not None}, closed=True)
