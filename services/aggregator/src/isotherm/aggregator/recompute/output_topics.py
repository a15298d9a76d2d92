"""What was published, the devices that groups are made of, and the way back into Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import Scope
from isotherm.aggregator.recompute.topic_reader import TopicReader
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.devices_table import end_offsets_by_number, read_devices
from isotherm.aggregator.spark.kafka_options import SINK_OPTIONS, java_options
from isotherm.servicekit.avro import SchemaRegistry


class OutputTopics:
    """The topics with windows and groups, in one Spark session. For one thread."""

    def __init__(
        self, settings: AggregatorSettings, spark: SparkSession, broker: Broker, registry: SchemaRegistry
    ) -> None:
        self._settings = settings
        self._spark = spark
        self._broker = broker
        self._registry = registry
        self._kafka = java_options(settings.kafka)
        self._topics = TopicReader(settings, spark, broker, registry)
        self._devices: tuple[dict[str, int], DataFrame] | None = None

    def published(
        self, end: ExitStack, topic: str, schema: Mapping[str, Any], identity: tuple[str, ...], scope: Scope
    ) -> DataFrame:
        """Return what was published of the scope, as `corrections.published` does; it is kept until `end`.

        Raises BrokerError and RegistryUnavailableError.
        """
        # The service writes a window after the window has begun, apart from the difference between clocks.
        records = self._topics.records([topic], scope.span.from_ms - self._settings.max_skew_ms)
        ids = self._topics.written_ids(topic)
        present = self._settings.judgement
        return persisted(end, corrections.published(records, ids, schema, identity, scope, present))

    def devices(self) -> DataFrame:
        """Return the devices as of now. The topic is read again only after it has grown.

        Raises BrokerError and RegistryUnavailableError.
        """
        topic, before = self._settings.devices_topic, self._devices
        ends = end_offsets_by_number(self._broker, topic)
        if before is None or before[0] != ends:
            attributes = self._settings.group_attributes
            table = read_devices(self._spark, self._kafka, self._registry, topic, ends, attributes)
            if before is not None:
                before[1].unpersist()
            self._devices = ends, table
            return table
        return before[1]

    def write(self, rows: DataFrame, topic: str) -> None:
        """Write the keys, values and headers in `rows` to a topic."""
        rows.write.format("kafka").options(**self._kafka, **SINK_OPTIONS).option("topic", topic).save()


def persisted(end: ExitStack, frame: DataFrame) -> DataFrame:
    """Keep the rows of a frame until `end`."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    end.callback(kept.unpersist)
    return kept
