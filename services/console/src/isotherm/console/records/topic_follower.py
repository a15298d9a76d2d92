"""A follower of topics: a thread that reads what they have and then waits for new records, in no group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition
from prometheus_client import CollectorRegistry, Counter

from isotherm.servicekit import logs
from isotherm.servicekit.avro import (
    Decoder,
    JsonSchema,
    RegistryUnavailableError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka.consuming import consume_available

_log = logs.logger(__name__)

_POLL_S = 0.5
_BATCH = 500
_REQUEST_S = 10.0
_JOIN_S = 5.0


class TopicHandler(NamedTuple):
    """How the records of one topic are decoded and used."""

    decode: Callable[[bytes], Any]
    """Decodes a value. Raises WireFormatError for a bad one, RegistryUnavailableError for one to retry later."""
    use: Callable[[Message, Any], None]
    """Uses a message and its decoded value (None for a tombstone). Raises ValueError or KeyError for a bad one."""
    on_missing: Callable[[], None] | None = None
    """Called instead of waiting for a topic that does not exist at the start; the follower goes on without it then."""
    is_from_end: bool = False
    """Whether only records from after the start count."""
    from_ms: int | None = None
    """Only records that Kafka stored at this time (epoch milliseconds) or later are read; None: all of them."""


def avro_handler(schemas: SchemaRegistry, schema: JsonSchema, use: Callable[[Message, Any], None]) -> TopicHandler:
    """Return a handler of Avro records in the wire format, projected to `schema`."""
    decoder = Decoder(schemas, schema)
    return TopicHandler(lambda value: decoder(value).record, use)


class FollowerMetrics:
    """Counters of records that followers have read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.read = Counter("isotherm_console_read", "Records read.", ["topic"], registry=registry)
        self.bad = Counter(
            "isotherm_console_bad", "Records that could not be decoded or used.", ["topic"], registry=registry
        )


class TopicFollower:
    """Follows topics in a thread and reports its progress to `health`, in the parts `topics`, `kafka` and `registry`.

    `make_consumer` is called once, in the thread; the consumer reports partition ends, and is never a member of its
    group: partitions are assigned, and nothing is committed.

    The part `topics` is ready once the follower has reached the end of every partition. Records that cannot be used
    are logged, counted and skipped.
    """

    def __init__(
        self,
        name: str,
        make_consumer: Callable[[], Consumer],
        topics: Mapping[str, TopicHandler],
        health: Health,
        counters: FollowerMetrics,
    ) -> None:
        self._make_consumer, self._topics = make_consumer, topics
        self._health, self._counters = health, counters
        # Expose a counter for topics without records too, so that alert rules find the console.
        for topic in topics:
            counters.read.labels(topic)
        self._stopping = threading.Event()
        self._behind: dict[tuple[str, int], int | None] = {}
        """Partitions with records from before the start that were not read yet, and their ends then as far as known."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        health.not_ready("topics", f"{', '.join(topics)}: not read to the end yet")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        consumer = self._make_consumer()
        try:
            partitions = self._partitions(consumer)
            if not partitions:
                return
            # Before the first fetch, behind which Kafka would hold the answers.
            self._behind = _unread(consumer, [one for one in partitions if one.offset != OFFSET_END])
            self._note_reached()
            consumer.assign(partitions)
            while not self._stopping.is_set():
                self._health.beat()
                for message in consume_available(consumer, _BATCH, _POLL_S):
                    self._handle(message)
        finally:
            consumer.close()

    def _partitions(self, consumer: Consumer) -> list[TopicPartition]:
        """Wait until all topics exist, and return their partitions from offset 0."""
        backoff = Backoff(cap_ms=5_000)
        while not self._stopping.is_set():
            self._health.beat()
            try:
                known = consumer.list_topics(timeout=_REQUEST_S).topics
                missing = [topic for topic in self._topics if topic not in known]
                if all(self._topics[topic].on_missing for topic in missing):
                    found = {topic: list(known[topic].partitions) for topic in self._topics if topic in known}
                    partitions = self._starts(consumer, found)
                    self._health.ready("kafka")
                    for topic in missing:
                        self._do_without(topic)
                    return partitions
            except KafkaException as error:
                self._health.not_ready("kafka", error.args[0].str())
            else:
                self._health.ready("kafka")
                self._health.not_ready("topics", f"no topic {', '.join(missing)}; run `isotherm apply`")
            self._stopping.wait(backoff.next_ms() / 1000)
        return []

    def _starts(self, consumer: Consumer, partitions: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """Return where the reading of each partition begins. Raises KafkaException."""
        starts = []
        for topic, numbers in partitions.items():
            handler = self._topics[topic]
            if handler.from_ms is None:
                offset = OFFSET_END if handler.is_from_end else 0
                starts += [TopicPartition(topic, number, offset) for number in numbers]
            else:
                starts += _offsets_at(consumer, [TopicPartition(topic, number, handler.from_ms) for number in numbers])
        return starts

    def _do_without(self, topic: str) -> None:
        _log.warning("no such topic; run `isotherm apply`, and start the console again", topic=topic)
        on_missing = self._topics[topic].on_missing
        assert on_missing is not None
        on_missing()

    def _handle(self, message: Message) -> None:
        topic, error = message.topic() or "", message.error()
        if error is None:
            self._counters.read.labels(topic).inc()
            self._use(topic, message)
            end = self._behind.get((topic, message.partition() or 0))
            if end is not None and (message.offset() or 0) + 1 >= end:
                self._note_reached((topic, message.partition() or 0))
        elif error.code() == KafkaError._PARTITION_EOF:
            # It comes after a fetch that brought nothing, and where the last record was removed by compaction.
            self._note_reached((topic, message.partition() or 0))
        else:
            _log.warning("cannot follow a topic", topic=topic, reason=error.str())

    def _note_reached(self, partition: tuple[str, int] | None = None) -> None:
        """Note that a partition was read to its end."""
        if partition is not None:
            self._behind.pop(partition, None)
        if not self._behind:
            self._health.ready("topics")

    def _use(self, topic: str, message: Message) -> None:
        handler, value = self._topics[topic], message.value()
        try:
            record = None if value is None else self._decode(handler, value)
            if not self._stopping.is_set():
                handler.use(message, record)
        except (WireFormatError, ValueError, KeyError) as error:
            self._counters.bad.labels(topic).inc()
            _log.error(
                "record cannot be used", topic=topic, key=key_of(message), offset=message.offset(), reason=str(error)
            )

    def _decode(self, handler: TopicHandler, value: bytes) -> Any:
        backoff = Backoff(cap_ms=5_000)
        while not self._stopping.is_set():
            self._health.beat()
            try:
                record = handler.decode(value)
            except RegistryUnavailableError as error:
                self._health.not_ready("registry", str(error))
                self._stopping.wait(backoff.next_ms() / 1000)
            else:
                self._health.ready("registry")
                return record
        return None


def _unread(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[tuple[str, int], int | None]:
    """Return the partitions that have records, and their ends; None where Kafka did not answer."""
    found: dict[tuple[str, int], int | None] = {(one.topic, one.partition): None for one in partitions}
    try:
        for one in partitions:
            first, end = consumer.get_watermark_offsets(one, timeout=_REQUEST_S)
            found[one.topic, one.partition] = end
            if max(first, one.offset) >= end:
                del found[one.topic, one.partition]
    except KafkaException as error:
        _log.warning("ends of topics not known", reason=str(error))
    return found


def _offsets_at(consumer: Consumer, times: list[TopicPartition]) -> list[TopicPartition]:
    """Return the first offsets at times, which stand in the place of the offsets; where no record is so new, the end.

    Kafka's word for the end is not enough: it would mean the end when the reading begins. Raises KafkaException.
    """
    found = consumer.offsets_for_times(times, timeout=_REQUEST_S)
    for one in found:
        if one.error is not None:
            raise KafkaException(one.error)
        if one.offset < 0:
            one.offset = consumer.get_watermark_offsets(one, timeout=_REQUEST_S)[1]
    return found


def key_of(message: Message) -> str:
    """Return a message's key as text."""
    return (message.key() or b"").decode(errors="replace")
