"""Dead letters in Kafka: listed, replayed to where they came from, discarded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from isotherm.connector.config.dead_letter_topics import may_hold_dead_letters
from isotherm.connector.errors.dead_letters import DeadLetterQueue, DeadLettersUnavailableError, producer_overrides
from isotherm.connector.offsets.replay import TIMEOUT_S
from isotherm.console.dead_letters.record import (
    GROUP,
    SUFFIX,
    DeadLetterRecord,
    OpenRecords,
    PendingRecord,
    Progress,
    TooScatteredError,
    batches,
    progress_of,
    take_first,
    without_copies,
)
from isotherm.console.errors import ConflictError, NotFoundError, UnavailableError
from isotherm.console.records.consumer import consume_spans, translate_kafka_errors
from isotherm.servicekit import kafka
from isotherm.servicekit.settings import KafkaSettings

_NAME = "console-dead-letters"
_BATCH = 500
_MOST_REPLAYED = 100_000
_QUEUED_KBYTES = 16_384
"""What is fetched ahead: the client's own 64 MiB would be most of a small container's memory."""


class RecordPosition(NamedTuple):
    """One letter of a topic."""

    partition: int
    offset: int


class HandledRecords(NamedTuple):
    """What became of the letters of a request."""

    done: int
    left: int
    """Letters that could not be replayed, because they were never in a topic; they stay open."""


@dataclass(frozen=True)
class DeadLetterQueue:
    """A dead-letter topic."""

    topic: str
    most_open: int
    """Letters that are open at most; places in the topic that hold no record count too."""


class DeadLetterQueues(Protocol):
    """The work list. Everything raises UnavailableError; NotFoundError for a topic that is none."""

    def boxes(self, also: Collection[str]) -> list[DeadLetterQueue]:
        """Every dead-letter topic: those of that ending, and those in `also` that exist."""

    def open(self, topic: str, after: RecordPosition | None, limit: int) -> OpenRecords:
        """Letters that are not done, those behind `after`; fewer than `limit` where they are large."""

    def letter(self, topic: str, where: RecordPosition) -> DeadLetterRecord:
        """One letter. Raises NotFoundError."""

    def replay(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """Write letters (None: all that are open now) to where they came from, then count them as done.

        Who writes letters at least once, as the aggregator does, leaves copies: a record is replayed once.

        Raises ConflictError when so many separate ones are done that they cannot be remembered.
        """

    def discard(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """Count letters as done without a replay. Raises ConflictError as `replay`."""


class KafkaDeadLetterQueues:
    """The work list as it is in Kafka."""

    def __init__(
        self,
        settings: KafkaSettings,
        admin: AdminClient,
        *,
        timeout_ms: int,
        most: int,
        box_names: Callable[[], Collection[str]],
    ) -> None:
        """`most` bounds the letters of one request; `box_names` are topics that are configured to hold dead letters."""
        self._settings, self._admin, self._timeout_s, self._most = settings, admin, timeout_ms / 1000, most
        self._box_names = box_names
        self._one_at_a_time = threading.Lock()
        self._producer: Producer | None = None
        self._replayed: dict[tuple[str, ...], None] = {}
        """Records that were replayed, the oldest first: a copy of their letter is done without a replay."""

    def boxes(self, also: Collection[str]) -> list[DeadLetterQueue]:
        """As `DeadLetterQueues.boxes`."""
        with translate_kafka_errors():
            known = self._topics()
            names = sorted(name for name in known if _is_box(name, also))
            with self._consumer() as consumer:
                shares = {name: self._shares(consumer, name, known[name]).values() for name in names}
            return [DeadLetterQueue(name, sum(one.most_open for one in shares[name])) for name in names]

    def open(self, topic: str, after: RecordPosition | None, limit: int) -> OpenRecords:
        """As `DeadLetterQueues.open`."""
        with translate_kafka_errors(), self._consumer() as consumer:
            progress = self._progress(consumer, topic)
            starts = {
                partition: of.position if after is None or partition > after.partition else after.offset + 1
                for partition, of in progress.items()
                if after is None or partition >= after.partition
            }
            unfinished = (
                letter
                for partition in sorted(starts)
                for letter in self._read(consumer, topic, partition, starts[partition])
                if not progress[partition].is_done(letter.offset)
            )
            return take_first(unfinished, limit)

    def letter(self, topic: str, where: RecordPosition) -> DeadLetterRecord:
        """As `DeadLetterQueues.letter`."""
        with translate_kafka_errors(), self._consumer() as consumer:
            if where.partition in self._progress(consumer, topic):
                found = next(self._read(consumer, topic, where.partition, where.offset), None)
                if found is not None and found.offset == where.offset:
                    return found
        raise NotFoundError(f"{topic} has no letter {where.partition}/{where.offset}")

    def replay(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """As `DeadLetterQueues.replay`."""
        return self._handle(topic, chosen, self._send)

    def discard(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """As `DeadLetterQueues.discard`."""
        return self._handle(topic, chosen, lambda letters: letters)

    def _handle(
        self,
        topic: str,
        chosen: Collection[RecordPosition] | None,
        work: Callable[[Sequence[DeadLetterRecord]], Sequence[DeadLetterRecord]],
    ) -> HandledRecords:
        done = left = 0
        with self._one_at_a_time, translate_kafka_errors(), self._consumer() as consumer:
            for partition, progress in self._progress(consumer, topic).items():
                wanted = None if chosen is None else {one.offset for one in chosen if one.partition == partition}
                if wanted == set():
                    continue
                for batch in batches(self._wanted(consumer, topic, partition, progress, wanted), _BATCH):
                    settled = {one.offset for one in work([entry.letter for entry in batch])}
                    # Before the work would be lost work at a crash; after it is a letter that is replayed once more.
                    progress = progress.with_done(
                        (entry.first, entry.letter.offset) for entry in batch if entry.letter.offset in settled
                    )
                    self._commit(topic, partition, progress)
                    done, left = done + len(settled), left + len(batch) - len(settled)
                    if done + left >= self._most:
                        return HandledRecords(done, left)
        return HandledRecords(done, left)

    def _wanted(
        self, consumer: Consumer, topic: str, partition: int, progress: Progress, wanted: set[int] | None
    ) -> Iterator[PendingRecord]:
        """The letters that are to be handled."""
        start = progress.position if wanted is None else max(progress.position, min(wanted))
        last = None if wanted is None else max(wanted)
        before = start
        for letter in self._read(consumer, topic, partition, start):
            if last is not None and letter.offset > last:
                break
            # RecordPosition every letter is meant, places without a record (transaction markers) are done with the next one.
            first, before = (before if wanted is None else letter.offset), letter.offset + 1
            if not progress.is_done(letter.offset) and (wanted is None or letter.offset in wanted):
                yield PendingRecord(letter, first)

    def _send(self, letters: Sequence[DeadLetterRecord]) -> Sequence[DeadLetterRecord]:
        """Write them where they came from; those that went."""
        self._producer = self._producer or kafka.producer(self._settings, _NAME, **producer_overrides())
        sendable = [letter for letter in letters if letter.origin is not None]
        fresh = without_copies(sendable, self._replayed)
        for target in {letter.origin[0] for letter in fresh if letter.origin is not None}:
            chosen = [letter for letter in fresh if letter.origin is not None and letter.origin[0] == target]
            try:
                DeadLetterQueue(self._producer, target).send([letter.as_record() for letter in chosen])
            except DeadLettersUnavailableError as failure:
                raise UnavailableError(f"not all letters were replayed: {failure}") from failure
            self._remember(chosen)
        return sendable

    def _remember(self, letters: Sequence[DeadLetterRecord]) -> None:
        self._replayed.update((letter.refused_record, None) for letter in letters if letter.refused_record is not None)
        for oldest in list(self._replayed)[: max(0, len(self._replayed) - _MOST_REPLAYED)]:
            del self._replayed[oldest]

    def _progress(self, consumer: Consumer, topic: str) -> dict[int, Progress]:
        known = self._topics()
        if topic not in known or not _is_box(topic, self._box_names()):
            raise NotFoundError(f"There is no dead-letter topic {topic}")
        return {number: one.progress for number, one in self._shares(consumer, topic, known[topic]).items()}

    def _topics(self) -> dict[str, list[int]]:
        """Every topic's partitions."""
        known = self._admin.list_topics(timeout=self._timeout_s).topics
        return {name: sorted(of.partitions) for name, of in known.items()}

    def _shares(self, consumer: Consumer, topic: str, partitions: Sequence[int]) -> dict[int, _Share]:
        wanted = [TopicPartition(topic, number) for number in partitions]
        asked = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(GROUP, wanted)], request_timeout=TIMEOUT_S
        )
        found = {one.partition: one for one in asked[GROUP].result().topic_partitions}
        shares = {}
        for number in sorted(found):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=self._timeout_s)
            progress = progress_of(max(found[number].offset, 0), found[number].metadata or "").beyond(low)
            shares[number] = _Share(progress, high)
        return shares

    def _commit(self, topic: str, partition: int, progress: Progress) -> None:
        try:
            metadata = progress.metadata()
        except TooScatteredError as error:
            raise ConflictError(str(error)) from None
        wanted = [TopicPartition(topic, partition, progress.position, metadata=metadata)]
        asked = self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(GROUP, wanted)], request_timeout=TIMEOUT_S
        )
        for one in asked[GROUP].result().topic_partitions:
            if one.error is not None:
                raise KafkaException(one.error)

    def _read(self, consumer: Consumer, topic: str, partition: int, start: int) -> Iterator[DeadLetterRecord]:
        """The letters from `start` to what is the end now."""
        for message in consume_spans(consumer, topic, {partition: (start, None)}, self._timeout_s):
            yield DeadLetterRecord.of(message)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = kafka.consumer(
            self._settings, _NAME, GROUP, enable_partition_eof=True, queued_max_messages_kbytes=_QUEUED_KBYTES
        )
        try:
            yield consumer
        finally:
            consumer.close()


def _is_box(topic: str, configured: Collection[str]) -> bool:
    # Whatever is configured: what control topics hold is no letter, and is shown elsewhere, masked.
    return may_hold_dead_letters(topic) and (topic.endswith(SUFFIX) or topic in configured)


class _Share(NamedTuple):
    """What is known of one partition."""

    progress: Progress
    high: int
    """The offset after its last record."""

    @property
    def most_open(self) -> int:
        done = sum(last - first + 1 for first, last in self.progress.ranges)
        return max(0, self.high - self.progress.position) - done
