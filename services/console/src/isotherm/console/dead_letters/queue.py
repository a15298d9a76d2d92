"""Dead-letter queues in Kafka: list their open records, replay them to the topics of their origin, or discard them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition

from isotherm.connector.config.dead_letter_topics import SUFFIX, may_hold_dead_letters
from isotherm.connector.errors.dead_letters import DeadLetterQueue, DeadLettersUnavailableError
from isotherm.connector.offsets.replay import TIMEOUT_S, offset_bounds
from isotherm.console.dead_letters.progress import GROUP, Progress, TooScatteredError, progress_of
from isotherm.console.dead_letters.record import (
    OpenRecords,
    PendingRecord,
    QueuedRecord,
    batches,
    take_first,
    without_copies,
)
from isotherm.console.errors import ConflictError, NotFoundError, UnavailableError
from isotherm.console.records.consumer import consume_spans, translate_kafka_errors
from isotherm.console.records.topics import Topics
from isotherm.servicekit.kafka.group_offsets import GroupAdmin

_BATCH = 500
_MAX_REMEMBERED = 100_000


class RecordPosition(NamedTuple):
    """Partition and offset of one record of a queue."""

    partition: int
    offset: int


class HandledRecords(NamedTuple):
    """How many records of a request were handled."""

    done: int
    not_replayable: int
    """Records that were never in a topic and cannot be replayed; they stay open."""


@dataclass(frozen=True)
class QueueOverview:
    """A dead-letter queue and its number of open records."""

    topic: str
    max_open: int
    """Upper bound of the open records: offsets without a record count too."""


class DeadLetterQueues(Protocol):
    """The dead-letter queues. Methods raise UnavailableError, and NotFoundError for a topic that is not a queue."""

    def queues(self, configured: Collection[str]) -> list[QueueOverview]:
        """Return all queues: topics with the usual suffix, and existing topics in `configured`."""

    def open_records(self, topic: str, after: RecordPosition | None, limit: int) -> OpenRecords:
        """Return open records after a position; fewer than `limit` where records are large."""

    def record(self, topic: str, position: RecordPosition) -> QueuedRecord:
        """Return one record. Raises NotFoundError."""

    def replay(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """Write the originals of records (None: all open ones) to their topics, and mark the records as handled.

        Services that write dead letters at least once, like the aggregator, leave copies; an original is replayed once.

        Raises ConflictError when too many separate ranges are handled to be stored in a commit.
        """

    def discard(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """Mark records (None: all open ones) as handled without a replay. Raises ConflictError as `replay` does."""


class KafkaDeadLetterQueues:
    """`DeadLetterQueues` of a Kafka cluster."""

    def __init__(
        self,
        admin: GroupAdmin,
        make_consumer: Callable[[], Consumer],
        make_producer: Callable[[], Producer],
        *,
        timeout_ms: int,
        max_records: int,
        configured_topics: Callable[[], Collection[str]],
    ) -> None:
        """Prepare the queues; nothing is sent yet.

        Args:
            admin: reads and commits the group's offsets.
            make_consumer: called for each request that reads records; the consumer reports partition ends.
            make_producer: called once, at the first replay; the producer takes records as large as dead letters.
            timeout_ms: how long one request to Kafka may take.
            max_records: how many records one request may handle.
            configured_topics: returns the topics that connectors are configured to use as dead-letter queues.
        """
        self._admin, self._make_consumer, self._make_producer = admin, make_consumer, make_producer
        self._timeout_s, self._max_records = timeout_ms / 1000, max_records
        self._configured_topics = configured_topics
        self._one_at_a_time = threading.Lock()
        self._producer: Producer | None = None
        self._replayed: dict[tuple[str, ...], None] = {}
        """Identities of replayed records, the oldest first: their copies are handled without a replay."""

    def queues(self, configured: Collection[str]) -> list[QueueOverview]:
        """List queues as `DeadLetterQueues.queues` does."""
        with translate_kafka_errors():
            topics = self._topics()
            names = sorted(name for name in topics if is_queue(name, configured))
            states = self._partition_states({name: topics[name] for name in names})
            return [QueueOverview(name, sum(one.max_open for one in states[name].values())) for name in names]

    def open_records(self, topic: str, after: RecordPosition | None, limit: int) -> OpenRecords:
        """List open records as `DeadLetterQueues.open_records` does."""
        with translate_kafka_errors(), self._consumer() as consumer:
            progress = self._progress(topic)
            starts = {
                partition: of.position if after is None or partition > after.partition else after.offset + 1
                for partition, of in progress.items()
                if after is None or partition >= after.partition
            }
            unhandled = (
                record
                for partition in sorted(starts)
                for record in self._read(consumer, topic, partition, starts[partition])
                if not progress[partition].is_handled(record.offset)
            )
            return take_first(unhandled, limit)

    def record(self, topic: str, position: RecordPosition) -> QueuedRecord:
        """Read one record as `DeadLetterQueues.record` does."""
        with translate_kafka_errors(), self._consumer() as consumer:
            if position.partition in self._progress(topic):
                found = next(self._read(consumer, topic, position.partition, position.offset), None)
                if found is not None and found.offset == position.offset:
                    return found
        raise NotFoundError(f"{topic} has no record {position.partition}/{position.offset}")

    def replay(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """Replay records as `DeadLetterQueues.replay` does."""
        return self._handle(topic, chosen, self._send)

    def discard(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """Discard records as `DeadLetterQueues.discard` does."""
        return self._handle(topic, chosen, lambda records: records)

    def _handle(
        self,
        topic: str,
        chosen: Collection[RecordPosition] | None,
        work: Callable[[Sequence[QueuedRecord]], Sequence[QueuedRecord]],
    ) -> HandledRecords:
        done = not_replayable = 0
        with self._one_at_a_time, translate_kafka_errors(), self._consumer() as consumer:
            for partition, progress in self._progress(topic).items():
                offsets = None if chosen is None else {one.offset for one in chosen if one.partition == partition}
                if offsets == set():
                    continue
                for batch in batches(self._pending(consumer, topic, partition, progress, offsets), _BATCH):
                    handled = {one.offset for one in work([entry.record for entry in batch])}
                    # Commit after the work: a crash in between replays a batch again. The other order would lose it.
                    progress = progress.with_handled(
                        (entry.first, entry.record.offset) for entry in batch if entry.record.offset in handled
                    )
                    self._commit(topic, partition, progress)
                    done, not_replayable = done + len(handled), not_replayable + len(batch) - len(handled)
                    if done + not_replayable >= self._max_records:
                        return HandledRecords(done, not_replayable)
        return HandledRecords(done, not_replayable)

    def _pending(
        self, consumer: Consumer, topic: str, partition: int, progress: Progress, offsets: set[int] | None
    ) -> Iterator[PendingRecord]:
        """Yield the open records with these offsets; None means all."""
        start = progress.position if offsets is None else max(progress.position, min(offsets))
        last = None if offsets is None else max(offsets)
        before = start
        for record in self._read(consumer, topic, partition, start):
            if last is not None and record.offset > last:
                break
            # When all records are chosen, offsets without a record (transaction markers) are handled with the next one.
            first, before = (before if offsets is None else record.offset), record.offset + 1
            if not progress.is_handled(record.offset) and (offsets is None or record.offset in offsets):
                yield PendingRecord(record, first)

    def _send(self, records: Sequence[QueuedRecord]) -> Sequence[QueuedRecord]:
        """Produce the originals to their topics, and return the records that are now handled."""
        self._producer = self._producer or self._make_producer()
        replayable = [record for record in records if record.origin is not None]
        fresh = without_copies(replayable, self._replayed)
        for target in {record.origin[0] for record in fresh if record.origin is not None}:
            chosen = [record for record in fresh if record.origin is not None and record.origin[0] == target]
            try:
                # It produces to any topic, not only to a dead-letter queue, and waits for the acknowledgements.
                DeadLetterQueue(self._producer, target).send([record.original() for record in chosen])
            except DeadLettersUnavailableError as failure:
                raise UnavailableError(f"not all records were replayed: {failure}") from failure
            self._remember(chosen)
        return replayable

    def _remember(self, records: Sequence[QueuedRecord]) -> None:
        self._replayed.update((record.failed_record, None) for record in records if record.failed_record is not None)
        for oldest in list(self._replayed)[: max(0, len(self._replayed) - _MAX_REMEMBERED)]:
            del self._replayed[oldest]

    def _progress(self, topic: str) -> dict[int, Progress]:
        topics = self._topics()
        if topic not in topics or not is_queue(topic, self._configured_topics()):
            raise NotFoundError(f"{topic} is not a dead-letter queue")
        states = self._partition_states({topic: topics[topic]})
        return {partition: state.progress for partition, state in states[topic].items()}

    def _topics(self) -> dict[str, list[int]]:
        """Return the partitions of every topic."""
        topics = self._admin.list_topics(timeout=self._timeout_s).topics
        return {name: sorted(of.partitions) for name, of in topics.items()}

    def _partition_states(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, _PartitionState]]:
        """Return the states of these partitions of each topic, in the order of their numbers."""
        states: dict[str, dict[int, _PartitionState]] = {topic: {} for topic in topics}
        asked = [TopicPartition(topic, partition) for topic, partitions in topics.items() for partition in partitions]
        if not asked:
            return states
        bounds = offset_bounds(self._admin, asked)
        commits = self._admin.committed_offsets(GROUP, asked, timeout_s=TIMEOUT_S)
        for commit in sorted(commits, key=lambda one: (one.topic, one.partition)):
            low, high = bounds[commit.topic, commit.partition]
            progress = progress_of(max(commit.offset, 0), commit.metadata or "").starting_at(low)
            states[commit.topic][commit.partition] = _PartitionState(progress, high)
        return states

    def _commit(self, topic: str, partition: int, progress: Progress) -> None:
        try:
            metadata = progress.metadata()
        except TooScatteredError as error:
            raise ConflictError(str(error)) from None
        commit = [TopicPartition(topic, partition, progress.position, metadata=metadata)]
        futures = self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(GROUP, commit)], request_timeout=TIMEOUT_S
        )
        for one in futures[GROUP].result().topic_partitions:
            if one.error is not None:
                raise KafkaException(one.error)

    def _read(self, consumer: Consumer, topic: str, partition: int, start: int) -> Iterator[QueuedRecord]:
        """Yield the records from `start` to the partition's current end."""
        for message in consume_spans(consumer, topic, {partition: (start, None)}, self._timeout_s):
            yield QueuedRecord.of(message)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = self._make_consumer()
        try:
            yield consumer
        finally:
            consumer.close()


def is_queue(topic: str, configured: Collection[str]) -> bool:
    """Whether a topic is a dead-letter queue: by its name, or because it is in `configured`."""
    # A configuration may name a control topic. Its records may hold secrets, so it is never shown as a queue.
    return may_hold_dead_letters(topic) and (topic.endswith(SUFFIX) or topic in configured)


def queue_names(topics: Topics, configured: Collection[str]) -> list[str]:
    """Return the topics that are dead-letter queues, sorted. Raises UnavailableError."""
    return [one.name for one in topics.listed() if is_queue(one.name, configured)]


class _PartitionState(NamedTuple):
    """The progress in one partition, and its end."""

    progress: Progress
    high: int
    """The offset after the partition's last record."""

    @property
    def max_open(self) -> int:
        """Upper bound of the partition's open records."""
        handled = sum(last - first + 1 for first, last in self.progress.ranges)
        return max(0, self.high - self.progress.position) - handled
