"""Reads a topic to its end and then follows it, in a thread, for a table in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer, Message, TopicPartition

from isotherm.alerts.input.unread_partitions import UnreadPartitions, offsets_since, partitions_of
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.consuming import consume_available

_POLL_S = 0.5
_BATCH = 1_000
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
            is_at_end = not unread.numbers
            if is_at_end:
                self._note_end(backoff)
            while not self._ended.is_set():
                for message in consume_available(consumer, _BATCH, _POLL_S):
                    if unread.note(message):
                        self._apply_record(message)
                    if not (unread.numbers or is_at_end):
                        is_at_end = True
                        self._note_end(backoff)
        finally:
            consumer.close()

    def _note_end(self, backoff: Backoff) -> None:
        self._on_end()
        self._current.set()
        backoff.reset()

    def _assign(self, consumer: Consumer) -> UnreadPartitions:
        """Assign all partitions; return those that have records to read. Raises KafkaException."""
        numbers = partitions_of(consumer, self._topic)
        starts = dict.fromkeys(numbers, 0)
        if self._since_ms is not None:
            starts = offsets_since(consumer, self._topic, numbers, self._since_ms())
        unread = UnreadPartitions(consumer, self._topic, starts)
        consumer.assign([TopicPartition(self._topic, number, starts[number]) for number in numbers])
        return unread
