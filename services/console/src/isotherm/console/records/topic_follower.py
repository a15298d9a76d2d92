"""Topics read from their beginning and on and on, from a thread, in no group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from prometheus_client import CollectorRegistry, Counter

from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import (
    Decoder,
    JsonSchema,
    RegistryUnavailableError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.settings import KafkaSettings

_log = logs.logger(__name__)

_POLL_S = 0.5
_REQUEST_S = 10.0
_JOIN_S = 5.0


class Followed(NamedTuple):
    """What becomes of a topic's records."""

    decode: Callable[[bytes], Any]
    """Raises WireFormatError for what is no record, RegistryUnavailableError for what has to be tried again."""
    use: Callable[[Message, Any], None]
    """Takes a message, and its value decoded or None. Raises ValueError or KeyError for what it cannot use."""


def avro(schemas: SchemaRegistry, schema: JsonSchema, use: Callable[[Message, Any], None]) -> Followed:
    """Records of a schema in the wire format."""
    decoder = Decoder(schemas, schema)
    return Followed(lambda value: decoder(value).record, use)


class Counters:
    """What was read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.read = Counter("isotherm_console_read", "Records read.", ["topic"], registry=registry)
        self.bad = Counter("isotherm_console_bad", "Records that could not be used.", ["topic"], registry=registry)


class Follower:
    """Reads topics for ever. What it waits for it says to `health`: the parts `topics`, `kafka` and `registry`.

    `topics` is ready when everything was read that was there when it came to the end. Records that nobody can use are
    logged, counted and passed over.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        client_id: str,
        topics: Mapping[str, Followed],
        health: Health,
        counters: Counters,
    ) -> None:
        self._settings, self._client_id, self._topics = settings, client_id, topics
        self._health, self._counters = health, counters
        # A topic without records has a count, too: who looks for the console finds it.
        for topic in topics:
            counters.read.labels(topic)
        self._ended = threading.Event()
        self._behind: set[tuple[str, int]] = set()
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)
        health.not_ready("topics", f"{', '.join(topics)}: not read yet")

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Follow no more."""
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        # Never a member of its group: the partitions are given to it, nothing is committed.
        consumer = kafka.consumer(self._settings, self._client_id, self._client_id, enable_partition_eof=True)
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
        """All partitions of the topics from their first record; waits for the topics."""
        backoff = Backoff(cap_ms=5_000)
        while not self._ended.is_set():
            self._health.beat()
            try:
                known = consumer.list_topics(timeout=_REQUEST_S).topics
            except KafkaException as error:
                self._health.not_ready("kafka", error.args[0].str())
            else:
                self._health.ready("kafka")
                missing = [topic for topic in self._topics if topic not in known]
                if not missing:
                    return [TopicPartition(topic, one, 0) for topic in self._topics for one in known[topic].partitions]
                self._health.not_ready("topics", f"no topic {', '.join(missing)}; run `isotherm apply`")
            self._ended.wait(backoff.next_ms() / 1000)
        return []

    def _take(self, message: Message) -> None:
        topic, error = message.topic() or "", message.error()
        if error is None:
            self._counters.read.labels(topic).inc()
            self._use(topic, message)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._behind.discard((topic, message.partition() or 0))
            if not self._behind:
                self._health.ready("topics")
        else:
            _log.warning("topic not followed", topic=topic, reason=error.str())

    def _use(self, topic: str, message: Message) -> None:
        followed, value = self._topics[topic], message.value()
        try:
            record = None if value is None else self._decoded(followed, value)
            if not self._ended.is_set():
                followed.use(message, record)
        except (WireFormatError, ValueError, KeyError) as error:
            self._counters.bad.labels(topic).inc()
            _log.error("record not used", topic=topic, key=key_of(message), offset=message.offset(), reason=str(error))

    def _decoded(self, followed: Followed, value: bytes) -> Any:
        backoff = Backoff(cap_ms=5_000)
        while not self._ended.is_set():
            self._health.beat()
            try:
                record = followed.decode(value)
            except RegistryUnavailableError as error:
                self._health.not_ready("registry", str(error))
                self._ended.wait(backoff.next_ms() / 1000)
            else:
                self._health.ready("registry")
                return record
        return None


def key_of(message: Message) -> str:
    """A message's key as text."""
    return (message.key() or b"").decode(errors="replace")
