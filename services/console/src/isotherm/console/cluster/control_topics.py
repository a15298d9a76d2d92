"""The control topics: a follower that fills the cluster's state, and a writer that waits for its own change."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from isotherm.connector.distributed import publishing, worker_status
from isotherm.connector.errors.dead_letters import Headers
from isotherm.connector.state import status, target_follower
from isotherm.console.cluster.state import ClusterState
from isotherm.console.errors import UnavailableError
from isotherm.console.records.topic_follower import (
    FollowerMetrics,
    TopicFollower,
    TopicHandler,
    avro_handler,
    key_of,
)
from isotherm.servicekit import logs
from isotherm.servicekit.avro import JsonSchema, RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)

CONNECTORS, PLUGINS, STATUS = publishing.CONNECTORS, publishing.PLUGINS, status.TOPIC
_WRITE_ID = "console-write-id"
_SEEN_S = 5.0


class PendingWrites:
    """Changes that this console has written and its follower has not read back yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, threading.Event] = {}

    def expect(self, write_id: str) -> threading.Event:
        """Return the event that is set when the follower has read the write back."""
        with self._lock:
            return self._waiting.setdefault(write_id, threading.Event())

    def complete(self, write_id: str) -> None:
        """Set the write's event and forget the write."""
        with self._lock:
            event = self._waiting.pop(write_id, None)
        if event is not None:
            event.set()


def control_topic_follower(
    make_consumer: Callable[[], Consumer],
    schemas: SchemaRegistry,
    cluster: ClusterState,
    writes: PendingWrites,
    health: Health,
    counters: FollowerMetrics,
    others: Mapping[str, TopicHandler],
) -> TopicFollower:
    """Return the follower that stores the control topics' records in the cluster's state.

    `others` handles further topics: the consumer that is there anyway brings their records at once.
    """

    def take_connector(message: Message, record: Any) -> None:
        try:
            cluster.update_connector(key_of(message), record, message.timestamp()[1])
        finally:
            _complete_write(message, writes)

    def take_plugin(message: Message, record: Any) -> None:
        cluster.update_plugin(key_of(message), record)

    def take_status(message: Message, record: Any) -> None:
        cluster.update_status(key_of(message), record)

    topics = {
        CONNECTORS: avro_handler(schemas, target_follower.READER, take_connector),
        PLUGINS: avro_handler(schemas, publishing.PLUGIN_SCHEMA, take_plugin),
        STATUS: avro_handler(schemas, worker_status.SCHEMA, take_status),
        **others,
    }
    return TopicFollower("console", make_consumer, topics, health, counters)


def _complete_write(message: Message, writes: PendingWrites) -> None:
    headers: Headers = list(message.headers() or [])  # type: ignore[arg-type]  # always pairs when read
    for name, value in headers:
        if name == _WRITE_ID and isinstance(value, bytes):
            writes.complete(value.decode(errors="replace"))


class ControlTopicWriter:
    """Writes the control topics. A change is complete when Kafka has stored it and the follower has read it back."""

    def __init__(
        self,
        producer: Callable[[], Producer],
        schemas: SchemaRegistry,
        writes: PendingWrites,
        *,
        timeout_ms: int,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """Prepare the writer.

        Args:
            producer: makes the producer at the first write; its `delivery.timeout.ms` should be `timeout_ms`.
            schemas: finds the id of the ConnectorConfig schema.
            writes: the follower completes writes there.
            timeout_ms: named in errors.
            new_id: makes the id of a write.
        """
        self._make, self._schemas, self._writes = producer, schemas, writes
        self._timeout_s, self._new_id = timeout_ms / 1000, new_id
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._encoders: dict[str, Callable[[Mapping[str, Any]], bytes]] = {}

    def write(self, name: str, record: Mapping[str, Any] | None) -> None:
        """Write a ConnectorConfig record as `connectors.control.ConfigStore.write` requires."""
        value = None if record is None else self._encoded(CONNECTORS, target_follower.READER, record)
        write_id = self._new_id()
        seen = self._writes.expect(write_id)
        try:
            self._produce(CONNECTORS, name, value, [(_WRITE_ID, write_id.encode())])
            if not seen.wait(_SEEN_S):
                # Kafka has stored the change, so it is valid. Only the shown state is older for a while.
                _log.warning("change written but not read back yet", connector=name)
        finally:
            self._writes.complete(write_id)

    def put(self, topic: str, schema: JsonSchema, key: str, record: Mapping[str, Any]) -> None:
        """Write a record of another topic, and wait until Kafka has stored it. Raises UnavailableError."""
        self.put_all(topic, schema, {key: record})

    def put_all(self, topic: str, schema: JsonSchema, records: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Write records of another topic by their keys, and wait until Kafka has stored all; None is a tombstone.

        Raises UnavailableError.
        """
        values = {
            key: None if record is None else self._encoded(topic, schema, record) for key, record in records.items()
        }
        self._produce_all(topic, values, [])

    def remove(self, topic: str, key: str) -> None:
        """Write a tombstone, and wait until Kafka has stored it. Raises UnavailableError."""
        self._produce(topic, key, None, [])

    def delete_statuses(self, keys: list[str]) -> None:
        """Delete these keys of `isotherm.status` with tombstones. Raises UnavailableError."""
        self._produce_all(STATUS, dict.fromkeys(keys), [])

    def _encoded(self, topic: str, schema: JsonSchema, record: Mapping[str, Any]) -> bytes:
        try:
            with self._lock:
                if topic not in self._encoders:
                    self._encoders[topic] = self._schemas.encoder(topic, schema)
            return self._encoders[topic](record)
        except (RegistryUnavailableError, SchemaNotRegisteredError) as error:
            raise UnavailableError(f"the schema registry: {error}") from error

    def _produce(self, topic: str, key: str, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        self._produce_all(topic, {key: value}, headers)

    def _produce_all(self, topic: str, values: Mapping[str, bytes | None], headers: list[tuple[str, bytes]]) -> None:
        outcomes: list[KafkaError | None] = []
        with self._lock:
            self._producer = self._producer or self._make()
        try:
            for key, value in values.items():
                self._producer.produce(
                    topic,
                    key=key,
                    value=value,
                    headers=list(headers),
                    on_delivery=lambda error, _: outcomes.append(error),
                )
        except (BufferError, KafkaException) as error:
            raise UnavailableError(f"Kafka did not accept the change: {error}") from error
        # librdkafka reports every record within the delivery timeout, so this loop ends.
        while len(outcomes) < len(values):
            self._producer.poll(0.05)
        failed = next((error for error in outcomes if error is not None), None)
        if failed is not None:
            raise UnavailableError(f"Kafka did not acknowledge the change in {self._timeout_s:.0f} s: {failed.str()}")
