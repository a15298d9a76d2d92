"""Reads a topic to its end and then follows it, in a thread, for a table in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.consuming import consume_available

_POLL_S = 0.5
_BATCH = 1_000
_REQUEST_S = 10.0
_JOIN_S = 2.0

_log = logs.logger(__name__)


def _do_nothing() -> None:
    """Default action at the begin and at the end of the topic."""


class TopicFollower:
    """Gives every record of a topic to `apply`, which decides what becomes of it, until it is closed.

    When Kafka, or `apply`, raises an exception, the topic is read again after a pause. What was applied stays.
    """

    def __init__(
        self,
        topic: str,
        about: str,
        make_consumer: Callable[[], Consumer],
        apply: Callable[[Message], None],
        *,
        since_ms: Callable[[], int] | None = None,
        on_begin: Callable[[], None] = _do_nothing,
        on_end: Callable[[], None] = _do_nothing,
    ) -> None:
        """Take what the follower needs.

        Args:
            topic: the topic.
            about: what its records are about, for the log and the name of the thread.
            make_consumer: makes a consumer that reports the ends of partitions; it is called in the thread.
            apply: takes a record.
            since_ms: returns the time (epoch ms) of the first record that is read; None: the topic is read whole.
            on_begin: is called before the topic is read, each time.
            on_end: is called when each record that the topic held then is applied, each time.
        """
        self._topic, self._about, self._make_consumer = topic, about, make_consumer
        self._apply_record, self._since_ms = apply, since_ms
        self._on_begin, self._on_end = on_begin, on_end
        self._current, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=about.replace(" ", "-"), daemon=True)

    def start(self) -> None:
        """Start to follow the topic, unless it is followed."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Stop to follow the topic."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def is_current(self) -> bool:
        """Return whether every record that the topic held at the start was applied."""
        return self._current.is_set()

    def _run(self) -> None:
        backoff = Backoff(base_ms=200, cap_ms=10_000)
        while not self._ended.is_set():
            try:
                self._follow(backoff)
            except Exception as error:
                _log.warning(f"the topic of {self._about} is read again", reason=str(error))
                self._ended.wait(backoff.next_ms() / 1000)

    def _follow(self, backoff: Backoff) -> None:
        """Read until the close. Raises KafkaException, and what `apply` raises."""
        consumer = self._make_consumer()
        try:
            self._on_begin()
            unread = self._assign(consumer)
            is_at_end = not unread
            if is_at_end:
                self._note_end(backoff)
            while not self._ended.is_set():
                for message in consume_available(consumer, _BATCH, _POLL_S):
                    self._take(message, unread)
                    if not (unread or is_at_end):
                        is_at_end = True
                        self._note_end(backoff)
        finally:
            consumer.close()

    def _take(self, message: Message, unread: dict[int, int]) -> None:
        error, number = message.error(), message.partition() or 0
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if error is None:
            self._apply_record(message)
        # The end is reported only after a fetch that brought nothing; compaction may have removed the last record.
        if error is not None or (message.offset() or 0) + 1 >= unread.get(number, 0):
            unread.pop(number, None)

    def _note_end(self, backoff: Backoff) -> None:
        self._on_end()
        self._current.set()
        backoff.reset()

    def _assign(self, consumer: Consumer) -> dict[int, int]:
        """Assign all partitions; return the end of each that has records to read. Raises KafkaException."""
        found = consumer.list_topics(self._topic, timeout=_REQUEST_S).topics[self._topic]
        if found.error is not None or not found.partitions:
            raise KafkaException(found.error or KafkaError(KafkaError._UNKNOWN_TOPIC))
        starts = [TopicPartition(self._topic, number, 0) for number in sorted(found.partitions)]
        if self._since_ms is not None:
            since_ms = self._since_ms()
            asked = [TopicPartition(self._topic, one.partition, since_ms) for one in starts]
            # Where there is no such record, the offset is -1: the end.
            starts = consumer.offsets_for_times(asked, timeout=_REQUEST_S)
        ends = {}
        for one in starts:
            if one.error is not None:
                raise KafkaException(one.error)
            asked_of = TopicPartition(self._topic, one.partition)
            first, end = consumer.get_watermark_offsets(asked_of, timeout=_REQUEST_S)
            if one.offset >= 0 and max(first, one.offset) < end:
                ends[one.partition] = end
        consumer.assign(starts)
        return ends
