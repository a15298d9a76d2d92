"""The control topics: followed into the fleet from a thread, and written so that the writer sees its own change."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from prometheus_client import CollectorRegistry, Counter

from connector import publishing, status, targets, worker_status
from connector.dead_letters import Headers
from console.errors import UnavailableError
from console.fleet import Fleet
from servicekit import kafka, logs
from servicekit.avro import Decoder, RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry, WireFormatError
from servicekit.backoff import Backoff
from servicekit.health import Health
from servicekit.settings import KafkaSettings

_log = logs.logger(__name__)

CONNECTORS, PLUGINS, STATUS = publishing.CONNECTORS, publishing.PLUGINS, status.TOPIC
_WRITE_ID = "console-write-id"
_POLL_S = 0.5
_REQUEST_S = 10.0
_JOIN_S = 5.0
_SEEN_S = 5.0
_NAME = "console"


class Writes:
    """Changes of this console that its follower has not read back yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, threading.Event] = {}

    def expect(self, write_id: str) -> threading.Event:
        """The event that is set when the write was read back."""
        with self._lock:
            return self._waiting.setdefault(write_id, threading.Event())

    def done(self, write_id: str) -> None:
        """It was read back, or nobody waits for it any more."""
        with self._lock:
            event = self._waiting.pop(write_id, None)
        if event is not None:
            event.set()


class Follower:
    """Reads the control topics from their beginning and goes on for ever, into a fleet."""

    def __init__(
        self,
        settings: KafkaSettings,
        schemas: SchemaRegistry,
        fleet: Fleet,
        writes: Writes,
        health: Health,
        registry: CollectorRegistry,
    ) -> None:
        self._settings, self._fleet, self._writes, self._health = settings, fleet, writes, health
        decoders = {CONNECTORS: targets.READER, PLUGINS: publishing.PLUGIN_SCHEMA, STATUS: worker_status.SCHEMA}
        self._decoders = {topic: Decoder(schemas, schema) for topic, schema in decoders.items()}
        self._ended = threading.Event()
        self._behind: set[tuple[str, int]] = set()
        self._thread = threading.Thread(target=self._run, name="control-topics", daemon=True)
        self._read = Counter("isotherm_console_read", "Records read.", ["topic"], registry=registry)
        self._bad = Counter("isotherm_console_bad", "Records that could not be used.", ["topic"], registry=registry)
        health.not_ready("topics", "the control topics were not read yet")

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Follow no more."""
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        consumer = kafka.consumer(self._settings, _NAME, _NAME, enable_partition_eof=True)
        try:
            partitions = self._partitions(consumer)
            self._behind = {(one.topic, one.partition) for one in partitions}
            consumer.assign(partitions)
            while not self._ended.is_set():
                self._health.beat()
                message = consumer.poll(_POLL_S)
                if message is not None:
                    self._take(message)
        finally:
            consumer.close()

    def _partitions(self, consumer: Consumer) -> list[TopicPartition]:
        """All partitions of the control topics from their first record; waits for the topics."""
        backoff = Backoff(cap_ms=5_000)
        while not self._ended.is_set():
            self._health.beat()
            try:
                known = consumer.list_topics(timeout=_REQUEST_S).topics
            except KafkaException as error:
                self._health.not_ready("kafka", error.args[0].str())
            else:
                self._health.ready("kafka")
                missing = [topic for topic in self._decoders if topic not in known]
                if not missing:
                    return [
                        TopicPartition(topic, one, 0) for topic in self._decoders for one in known[topic].partitions
                    ]
                self._health.not_ready("topics", f"no topic {', '.join(missing)}; run `isotherm apply`")
            self._ended.wait(backoff.next_ms() / 1000)
        return []

    def _take(self, message: Message) -> None:
        topic, error = message.topic() or "", message.error()
        if error is None:
            self._read.labels(topic).inc()
            self._use(topic, message)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._behind.discard((topic, message.partition() or 0))
            if not self._behind:
                self._health.ready("topics")
        else:
            _log.warning("control topic", topic=topic, reason=error.str())

    def _use(self, topic: str, message: Message) -> None:
        key = (message.key() or b"").decode(errors="replace")
        try:
            self._pass_on(topic, key, self._record(topic, message.value()), message.timestamp()[1])
        except (WireFormatError, ValueError, KeyError) as error:
            self._bad.labels(topic).inc()
            _log.error(
                "record of a control topic not used", topic=topic, key=key, offset=message.offset(), reason=str(error)
            )
        headers: Headers = list(message.headers() or [])  # type: ignore[arg-type]  # always pairs when read
        for name, value in headers:
            if name == _WRITE_ID and isinstance(value, bytes):
                self._writes.done(value.decode(errors="replace"))

    def _record(self, topic: str, value: bytes | None) -> Mapping[str, Any] | None:
        backoff = Backoff(cap_ms=5_000)
        while value is not None and not self._ended.is_set():
            self._health.beat()
            try:
                record: Mapping[str, Any] = self._decoders[topic](value).record
            except RegistryUnavailableError as error:
                self._health.not_ready("registry", str(error))
                self._ended.wait(backoff.next_ms() / 1000)
            else:
                self._health.ready("registry")
                return record
        return None

    def _pass_on(self, topic: str, key: str, record: Mapping[str, Any] | None, at_ms: int) -> None:
        if self._ended.is_set():
            return
        if topic == CONNECTORS:
            self._fleet.take_connector(key, record, at_ms)
        elif topic == PLUGINS:
            self._fleet.take_plugin(key, record)
        else:
            self._fleet.take_status(key, record)


class KafkaJournal:
    """Writes the control topics; a change is done when Kafka has it and the follower has read it back."""

    def __init__(
        self,
        producer: Callable[[], Producer],
        schemas: SchemaRegistry,
        writes: Writes,
        *,
        timeout_ms: int,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """`producer` is called at the first write; its `delivery.timeout.ms` should be `timeout_ms`."""
        self._make, self._schemas, self._writes = producer, schemas, writes
        self._timeout_s, self._new_id = timeout_ms / 1000, new_id
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._encode: Callable[[Mapping[str, Any]], bytes] | None = None

    def write(self, name: str, record: Mapping[str, Any] | None) -> None:
        """As `console.control.Journal.write`."""
        value = None if record is None else self._encoded(record)
        write_id = self._new_id()
        seen = self._writes.expect(write_id)
        try:
            self._produce(CONNECTORS, name, value, [(_WRITE_ID, write_id.encode())])
            if not seen.wait(_SEEN_S):
                # Kafka has it, so it is done; only what is shown is older for a while.
                _log.warning("a change was written but not read back yet", connector=name)
        finally:
            self._writes.done(write_id)

    def forget_statuses(self, keys: list[str]) -> None:
        """Remove these statuses from their topic. Raises UnavailableError."""
        for key in keys:
            self._produce(STATUS, key, None, [])

    def _encoded(self, record: Mapping[str, Any]) -> bytes:
        try:
            with self._lock:
                if self._encode is None:
                    self._encode = self._schemas.encoder(CONNECTORS, targets.READER)
            return self._encode(record)
        except (RegistryUnavailableError, SchemaNotRegisteredError) as error:
            raise UnavailableError(f"the schema registry: {error}") from error

    def _produce(self, topic: str, key: str, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        outcome: list[KafkaError | None] = []
        with self._lock:
            self._producer = self._producer or self._make()
        try:
            self._producer.produce(
                topic, key=key, value=value, headers=list(headers), on_delivery=lambda error, _: outcome.append(error)
            )
        except (BufferError, KafkaException) as error:
            raise UnavailableError(f"Kafka did not take the change: {error}") from error
        # The delivery time-out ends the wait: every record is reported, well or failed.
        while not outcome:
            self._producer.poll(0.05)
        if outcome[0] is not None:
            raise UnavailableError(f"Kafka did not take the change in {self._timeout_s:.0f} s: {outcome[0].str()}")
