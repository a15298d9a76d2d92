"""Test harness: runs the services' real code without servers, with a registry in memory, a fake producer, and Spark."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session
from isotherm.contracts.schema_catalog import JsonSchema, SchemaCatalog
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.registry_client import Schema, SchemaRegistryClient
from isotherm.servicekit.settings import RegistrySettings
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.class_archives import spark_classes
from isotherm.stack.java import find_java

PARTITIONER = "murmur2_random"
"""librdkafka's name of Java's default partitioner, by which every producer must choose partitions."""
_LIBRDKAFKA_PARTITIONER = "consistent_random"
"""What librdkafka takes where nothing is said."""


class Message(NamedTuple):
    """A record as a writer passes it to its Kafka producer, and the partitioner of this producer."""

    topic: str
    key: str
    value: bytes
    headers: Mapping[str, str]
    partitioner: str = PARTITIONER


class OfflineRegistry(SchemaRegistry):
    """The services' registry client, with the client library's in-memory registry instead of a server.

    It holds every version of every declared topic, as after `isotherm apply`.
    """

    def __init__(self, catalog: SchemaCatalog) -> None:
        super().__init__(RegistrySettings())
        self.close()
        self.client = SchemaRegistryClient.new_client({"url": "mock://"})
        for topic, record in catalog.records.items():
            for version in catalog.versions(record):
                self.register(topic, catalog.schema(record, version))

    def register(self, topic: str, schema: JsonSchema) -> int:
        """Register another version for a topic's subject; its id."""
        return int(self.client.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO")))

    def schema_id(self, subject: str, schema: JsonSchema) -> int:
        """Return the id under which `subject` holds exactly this schema. Raises SchemaNotRegisteredError.

        A registry in memory is never unavailable; for a schema that it does not have, its code is not that of a server.
        """
        try:
            return super().schema_id(subject, schema)
        except RegistryUnavailableError as error:
            raise SchemaNotRegisteredError(str(error)) from error


class Delivered:
    """What a delivery report tells of a record that no broker has: it has no offset."""

    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def value(self) -> bytes | None:
        """Return the record's value."""
        return self._value

    def offset(self) -> None:
        """Return the record's offset, which is not known."""


class RecordingProducer:
    """A fake Kafka producer: keeps every record, and reports its delivery at the next poll."""

    def __init__(self, config: Mapping[str, Any] | None = None, messages: list[Message] | None = None) -> None:
        """`config` is librdkafka's; the records go to `messages`, if given."""
        self.messages: list[Message] = [] if messages is None else messages
        self._partitioner = PARTITIONER if config is None else config.get("partitioner", _LIBRDKAFKA_PARTITIONER)
        self._reports: list[Callable[[], object]] = []

    def as_producer(self) -> Producer:
        """The same object, typed as a producer."""
        return cast(Producer, self)

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: str | bytes | None = None,
        headers: object = (),
        on_delivery: Callable[[None, object], object] | None = None,
        **_more: object,
    ) -> None:
        """Take one record, as `confluent_kafka.Producer.produce` does."""
        self.messages.append(message(topic, key, value, headers)._replace(partitioner=self._partitioner))
        if on_delivery is not None:
            self._reports.append(lambda: on_delivery(None, Delivered(value)))

    def init_transactions(self, _timeout_s: float = 0) -> None:
        """Every record counts, in a transaction or not."""

    def begin_transaction(self) -> None:
        """As `init_transactions`."""

    def send_offsets_to_transaction(self, _offsets: object, _group: object, _timeout_s: float = 0) -> None:
        """Nobody reads offsets here."""

    def commit_transaction(self, _timeout_s: float = 0) -> None:
        """As `init_transactions`."""

    def poll(self, _timeout_s: float = 0) -> int:
        """Call the outstanding delivery reports; their number."""
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return len(reports)

    def flush(self, _timeout_s: float = 0) -> int:
        """Call all delivery reports; 0, because none is left."""
        self.poll()
        return 0


def message(topic: str, key: str | bytes | None, value: bytes | None, headers: object = ()) -> Message:
    """A record in any form that producers accept, with key and headers as texts."""
    pairs = cast("list[tuple[str, str | bytes | None]]", headers or [])
    return Message(topic, _text(key), value or b"", {name: _text(text) for name, text in pairs})


def _text(text: str | bytes | None) -> str:
    return text.decode() if isinstance(text, bytes) else text or ""


class Harness:
    """Runs real code; a context manager. Spark starts at its first use."""

    def __init__(self, catalog: SchemaCatalog, spark_of: Harness | None = None) -> None:
        """`spark_of` lends its Spark, as a process can have only one."""
        self.catalog = catalog
        self.registry = OfflineRegistry(catalog)
        self._spark_of = spark_of
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_spark()

    def stop_spark(self) -> None:
        """Stop Spark if it runs; the next use starts it again."""
        self._open.close()
        if self._spark_of is None and self.__dict__.pop("spark", None) is not None:
            # pyspark leaves the socket of every collect() to the garbage collector.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()

    @cached_property
    def spark(self) -> SparkSession:
        """A small local Spark session with the aggregator's configuration."""
        if self._spark_of is not None:
            return self._spark_of.spark
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="isotherm-contracts-")))
        os.environ.setdefault("JAVA_HOME", str(find_java().home))
        chosen = AggregatorSettings.model_validate(
            {
                "checkpoint_dir": folder,
                "jars_dir": Artifacts().folder("spark"),
                "shuffle_partitions": 1,
                "spark": {
                    "master": "local[1]",
                    "driver_memory": "512m",
                    "java_options": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
                    "class_archive": spark_classes(),
                },
            }
        )
        spark = session.Spark(chosen, folder / "spark")
        self._open.callback(spark.stop)
        return spark.session

    def encode(self, topic: str, record: str, version: int, value: Mapping[str, Any]) -> bytes:
        """The bytes of a value as a writer with this schema version produces them."""
        return self.registry.encoder(topic, self.catalog.schema(record, version))(value)

    def decode(self, value: bytes, reader: JsonSchema | None = None) -> dict[str, Any]:
        """A value, read with a pinned schema or with the writer's; times as epoch milliseconds.

        Raises WireFormatError when the reader cannot read what the writer wrote.
        """
        decoded: dict[str, Any] = plain(Decoder(self.registry, reader)(value).record)
        return decoded


def text_of(value: bytes) -> str:
    """A value without a schema, such as a dead letter's, as a text that has one character for each byte."""
    return value.decode("latin-1")


def plain(value: Any) -> Any:
    """A decoded value as JSON, with times as epoch milliseconds."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return epoch_ms(value) if hasattr(value, "tzinfo") else value
