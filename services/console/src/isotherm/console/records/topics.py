"""Kafka's topics for the topic browser: their sizes, and readers of their records.

A few consumers are pooled for later requests: a new consumer fetches all metadata again, and each one holds memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from isotherm.connector.offsets import replay
from isotherm.connector.offsets.topic_sizes import INTERNAL_PREFIX, TopicSize, topic_sizes
from isotherm.console.errors import BadRequestError, NotFoundError, UnavailableError
from isotherm.console.records.consumer import consume_spans, translate_kafka_errors
from isotherm.console.records.paging import (
    Bounds,
    FetchedRecords,
    Positions,
    Span,
    TooLargeError,
    TopicReader,
)
from isotherm.console.records.record import Record

_POOL_SIZE = 4


class Topics(Protocol):
    """Kafka's topics. Every method raises UnavailableError."""

    def listed(self) -> list[TopicSize]:
        """Return all topics except Kafka's internal ones, sorted by name."""

    def reader(self, topic: str) -> AbstractContextManager[TopicReader]:
        """Open a reader of a topic. Raises NotFoundError, and BadRequestError for an internal topic of Kafka."""


class KafkaTopics:
    """`Topics` of a Kafka cluster. `make_consumer` returns a consumer that reports partition ends."""

    def __init__(self, admin: AdminClient, make_consumer: Callable[[], Consumer], *, timeout_ms: int) -> None:
        self._admin, self._make_consumer, self._timeout_s = admin, make_consumer, timeout_ms / 1000
        self._free = threading.Semaphore(_POOL_SIZE)
        self._idle: list[Consumer] = []

    def listed(self) -> list[TopicSize]:
        """Return all topics as `Topics.listed` does."""
        with translate_kafka_errors():
            return topic_sizes(self._admin, self._timeout_s)

    def close(self) -> None:
        """Close the pooled consumers."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def reader(self, topic: str) -> Iterator[TopicReader]:
        """Open a reader as `Topics.reader` does."""
        if topic.startswith(INTERNAL_PREFIX):
            raise BadRequestError(f"{topic} is an internal topic of Kafka; the console does not read it")
        with translate_kafka_errors():
            known = self._admin.list_topics(timeout=self._timeout_s).topics
            if topic not in known:
                raise NotFoundError(f"Topic {topic} does not exist")
            partitions = [TopicPartition(topic, number) for number in sorted(known[topic].partitions)]
            bounds = {number: Bounds(*of) for (_, number), of in replay.offset_bounds(self._admin, partitions).items()}
            with self._consumer() as consumer:
                yield _Reader(consumer, topic, bounds, self._timeout_s)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        if not self._free.acquire(timeout=self._timeout_s):
            raise UnavailableError(f"{_POOL_SIZE} other requests are reading topics; try again in a moment")
        try:
            consumer = self._idle.pop() if self._idle else self._make_consumer()
            is_reusable = False
            try:
                yield consumer
                consumer.unassign()
                is_reusable = True
            finally:
                if is_reusable:
                    self._idle.append(consumer)
                else:
                    consumer.close()
        finally:
            self._free.release()


class _Reader:
    """`TopicReader` of one Kafka topic."""

    def __init__(self, consumer: Consumer, topic: str, bounds: Mapping[int, Bounds], timeout_s: float) -> None:
        self._consumer, self._topic, self._timeout_s = consumer, topic, timeout_s
        self.bounds = bounds

    def read(self, spans: Mapping[int, Span], key_prefix: bytes, max_bytes: int | None) -> FetchedRecords:
        """Read spans as `TopicReader.read` does."""
        records: dict[int, list[Record]] = {}
        first_ms: dict[int, int] = {}
        last_ms: dict[int, int] = {}
        records_read = read_bytes = 0
        for message in consume_spans(self._consumer, self._topic, spans, self._timeout_s):
            partition, time_ms, key = message.partition() or 0, message.timestamp()[1], message.key()
            first_ms.setdefault(partition, time_ms)
            last_ms[partition] = time_ms
            records_read, read_bytes = records_read + 1, read_bytes + len(message)
            if max_bytes is not None and read_bytes > max_bytes:
                raise TooLargeError(read_bytes)
            if not key_prefix or (isinstance(key, bytes) and key.startswith(key_prefix)):
                records.setdefault(partition, []).append(Record.of(message))
        return FetchedRecords(records, first_ms, last_ms, records_read, read_bytes)

    def offsets_at(self, time_ms: int) -> Positions:
        """Find offsets as `TopicReader.offsets_at` does."""
        asked = [TopicPartition(self._topic, number, time_ms) for number in self.bounds]
        with translate_kafka_errors():
            found = self._consumer.offsets_for_times(asked, timeout=self._timeout_s)
        return {one.partition: one.offset if one.offset >= 0 else self.bounds[one.partition].high for one in found}
