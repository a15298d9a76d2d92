"""Follows the topics of readings and windows for the ledger, from some time ago on, in no group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.console.records.consumer import translate_kafka_errors
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.kafka.errors import reason_of
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_BATCH = 5_000
_REQUEST_S = 10.0
_NEW_PARTITIONS_S = 20.0
_FRESH_MS = 1_000


class FollowedTopic(NamedTuple):
    """How the records of one topic are used."""

    use: Callable[[Message], None]
    """Raises WireFormatError for a bad record, RegistryUnavailableError for one to retry later."""
    is_optional: bool = False
    """Whether the topic may not exist yet."""
    is_awaited: bool = True
    """Whether nothing is compared before the topic was read."""


class LedgerFollower:
    """Reads topics, and tells until when all of them were read."""

    def __init__(
        self,
        consumer: Consumer,
        topics: Mapping[str, FollowedTopic],
        health: Health,
        now_ms: Callable[[], int],
        on_bad: Callable[[str], None],
    ) -> None:
        """`consumer` reports partition ends. `on_bad` is told the topic of each record that cannot be decoded."""
        self._consumer, self._topics, self._health = consumer, topics, health
        self._now_ms, self._on_bad = now_ms, on_bad
        self._read_ms: dict[tuple[str, int], int] = {}
        """By partition, the time until which it was read."""
        self._next_offset: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], int] = {}
        """The ends of the partitions that were read to their end, as they were then."""
        self._next_look_s = time.monotonic() + _NEW_PARTITIONS_S

    @property
    def read_until_ms(self) -> int:
        """The time until which every partition was read, in epoch milliseconds."""
        awaited = (at for (topic, _), at in self._read_ms.items() if self._topics[topic].is_awaited)
        return min(awaited, default=0)

    @property
    def ends(self) -> Mapping[tuple[str, int], int]:
        """The ends of the partitions, by topic and number, of which everything was read."""
        return self._ends

    def start(self, since_ms: int, stop: Stop) -> bool:
        """Begin to read what was appended since a time, once the topics exist; False if the stop came before."""
        backoff = Backoff(cap_ms=5_000)
        while not stop.is_set():
            self._health.beat()
            try:
                missing = self._assign_new(since_ms)
            except KafkaException as error:
                self._health.not_ready("kafka", reason_of(error))
            else:
                self._health.ready("kafka")
                if not missing:
                    self._health.ready("readings")
                    return True
                self._health.not_ready("readings", f"no topic {', '.join(missing)}; run `isotherm apply`")
            stop.wait(backoff.next_ms() / 1000)
        return False

    def poll(self, timeout_s: float, stop: Stop) -> None:
        """Use what is there, after waiting up to `timeout_s` seconds for the first record."""
        self._health.beat()
        if time.monotonic() > self._next_look_s:
            self._next_look_s = time.monotonic() + _NEW_PARTITIONS_S
            self._look_for_new_partitions()
        messages = consume_available(self._consumer, _BATCH, timeout_s)
        now_ms = self._now_ms()
        for message in messages:
            self._take(message, now_ms, stop)

    def verify_ends(self) -> None:
        """Ask Kafka whether partitions that were read to their end still have that end: no record tells it.

        Raises UnavailableError.
        """
        for where, end in self._ends.items():
            asked_ms = self._now_ms()
            if asked_ms - self._read_ms[where] < _FRESH_MS or not self._topics[where[0]].is_awaited:
                continue
            with translate_kafka_errors():
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*where), timeout=_REQUEST_S)
            if high == end:
                self._read_ms[where] = asked_ms

    def _take(self, message: Message, now_ms: int, stop: Stop) -> None:
        error = message.error()
        where = (message.topic() or "", message.partition() or 0)
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._read_ms[where] = now_ms
                self._note_end(where, message.offset() or 0)
            else:
                _log.warning("cannot follow a topic", topic=where[0], reason=error.str())
            return
        offset = message.offset() or 0
        # Where Kafka has removed what comes next, the consumer may begin at the first record again.
        if offset < self._next_offset.get(where, 0):
            return
        self._use(where[0], message, stop)
        self._next_offset[where] = offset + 1
        # A producer's clock may be ahead.
        self._read_ms[where] = min(message.timestamp()[1], now_ms)
        if self._ends:
            self._ends.pop(where, None)

    def _note_end(self, where: tuple[str, int], end: int) -> None:
        if end < self._next_offset.get(where, 0):
            _log.error("a topic ends before what was read of it", topic=where[0], partition=where[1], end=end)
            self._next_offset[where] = end
        self._ends[where] = end

    def _use(self, topic: str, message: Message, stop: Stop) -> None:
        try:
            self._topics[topic].use(message)
        except WireFormatError:
            self._on_bad(topic)
        except RegistryUnavailableError as error:
            self._use_later(topic, message, error, stop)

    def _use_later(self, topic: str, message: Message, error: RegistryUnavailableError, stop: Stop) -> None:
        """Use a message when the registry answers."""
        backoff = Backoff(cap_ms=5_000)
        while not stop.is_set():
            self._health.beat()
            self._health.not_ready("registry", str(error))
            stop.wait(backoff.next_ms() / 1000)
            try:
                self._topics[topic].use(message)
            except RegistryUnavailableError as again:
                error = again
            except WireFormatError:
                self._on_bad(topic)
                break
            else:
                break
        self._health.ready("registry")

    def _look_for_new_partitions(self) -> None:
        try:
            self._assign_new(0)
        except KafkaException as error:
            _log.warning("partitions not known", reason=reason_of(error))

    def _assign_new(self, since_ms: int) -> Sequence[str]:
        """Assign what is not assigned yet, and return the topics that should be there. Raises KafkaException."""
        known = self._consumer.list_topics(timeout=_REQUEST_S).topics
        missing = [name for name, topic in self._topics.items() if name not in known and not topic.is_optional]
        if missing:
            return missing
        found = [(name, number) for name in self._topics if name in known for number in known[name].partitions]
        new = [TopicPartition(*one, since_ms) for one in found if one not in self._read_ms]
        if new:
            starts = (
                list(self._starts(new)) if since_ms else [TopicPartition(one.topic, one.partition, 0) for one in new]
            )
            self._consumer.incremental_assign(starts)
            self._read_ms.update(((one.topic, one.partition), since_ms) for one in starts)
        return ()

    def _starts(self, asked: Sequence[TopicPartition]) -> Iterator[TopicPartition]:
        for one in asked:
            try:
                yield self._start(one)
            except KafkaException as error:
                if self._topics[one.topic].is_awaited:
                    raise
                _log.warning("a partition is not read yet", topic=one.topic, reason=reason_of(error))

    def _start(self, asked: TopicPartition) -> TopicPartition:
        """Return where a partition has its first record since a time; without one its end as it is now."""
        # First the end: a record that comes meanwhile is behind it.
        _, end = self._consumer.get_watermark_offsets(asked, timeout=_REQUEST_S)
        (found,) = self._consumer.offsets_for_times([asked], timeout=_REQUEST_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return TopicPartition(asked.topic, asked.partition, found.offset if found.offset >= 0 else end)
