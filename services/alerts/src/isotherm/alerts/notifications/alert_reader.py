"""Reads all partitions of the alerts topic in one member of a route's consumer group, and commits its offsets."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.alerts.notifications.offset_tracker import OffsetTracker
from isotherm.alerts.notifications.storms.placement import Storms
from isotherm.servicekit import logs
from isotherm.servicekit.kafka.consuming import consume_available

_REQUEST_S = 10.0
_BATCH = 1_000
_COMMIT_S = 1.0
_CHECKED_COMMIT_MS = 60_000
"""How far the stored time of silences' ends may be behind on a topic where nothing happens."""
_CHECKED = "silences-checked-ms="
"""Before the time in the commit's metadata of partition 0, up to which the ends of silences are dealt with."""

_log = logs.logger(__name__)


class AlertReader:
    """Reads for a route.

    A group of alerts may lie in all partitions, so one process has to see all of them. The member that Kafka gives
    partition 0 reads every partition, the other members stand by. A group without any offset starts at the end: a new
    route never tells what happened before it existed.
    """

    def __init__(self, consumer: Consumer, topic: str, route: str, storm_limit: int | None = None) -> None:
        """Subscribe. The consumer uses an eager assignor and has `enable.partition.eof` unset.

        `storm_limit` is None for a route without storms.
        """
        self._storm_limit = storm_limit
        self._consumer, self._topic, self._route = consumer, topic, route
        self._tracker = OffsetTracker()
        self._is_held, self._commit_s = False, 0.0
        self.checked_ms = 0
        """Up to when the ends of silences are dealt with; it is committed with the offsets."""
        self._stored_ms = 0
        self.storms = Storms(0)
        """What is committed beside the offsets of each partition."""
        self.starts: dict[int, int] = {}
        """The offsets from which the partitions are read since the last assignment."""
        self.generation = 0
        """Grows with each assignment and revocation: what was read before is another reader's now."""
        consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    @property
    def is_reading(self) -> bool:
        """Whether this member reads the topic, and does not stand by."""
        return self._tracker.is_started

    def read(self, limit_s: float) -> list[Message]:
        """Wait at most `limit_s` for alerts. Raises KafkaException when the group or the topic cannot be used."""
        found = consume_available(self._consumer, _BATCH, limit_s)
        records = []
        for message in found:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    continue
                raise KafkaException(error)
            if self._tracker.read(message.partition() or 0, message.offset() or 0):
                records.append(message)
        return records

    def settle(self, partition: int, offset: int) -> None:
        """Note that nothing is left to do for an alert, so its offset may be committed."""
        self._tracker.settle(partition, offset)

    def hold(self, is_held: bool) -> None:
        """Fetch no more alerts, or go on; the group keeps its member."""
        if is_held != self._is_held:
            self._is_held = is_held
            assigned = self._consumer.assignment()
            (self._consumer.pause if is_held else self._consumer.resume)(assigned)

    def read_until(self) -> dict[int, int]:
        """Return the offset behind the last record that was read, by partition."""
        return self._tracker.read_until()

    def commit(self, *, at_once: bool = False) -> bool:
        """Commit what is settled, at most once a second unless it is to be `at_once`; return False when Kafka refuses.

        With storms that have changed every partition is committed.
        """
        now_s = time.monotonic()
        if not at_once and now_s < self._commit_s:
            return True
        self._commit_s = now_s + _COMMIT_S
        offsets = self._tracker.to_commit()
        is_old = self.checked_ms > self._stored_ms + _CHECKED_COMMIT_MS
        if self.is_reading and (is_old or (at_once and self.checked_ms > self._stored_ms)):
            offsets = self._tracker.positions({0}) | offsets
        if self.is_reading and self.storms.is_changed:
            offsets = self._tracker.positions(self.starts)
        if not offsets:
            return True
        try:
            answers = self._consumer.commit(offsets=self._partitions(offsets), asynchronous=False)
        except KafkaException as error:
            # Nothing is lost: the alerts are told again, or the next commit includes them.
            _log.warning("the offsets are not committed", route=self._route, reason=str(error))
            return False
        # librdkafka raises only what concerns all partitions.
        refused = {one.partition: one.error for one in answers or () if one.error is not None}
        offsets = {number: offset for number, offset in offsets.items() if number not in refused}
        self._tracker.committed(offsets)
        if refused:
            _log.warning("some offsets are not committed", route=self._route, reason=str(next(iter(refused.values()))))
            return False
        if 0 in offsets:
            self._stored_ms = self.checked_ms
        if offsets.keys() >= self.starts.keys():
            self.storms.is_changed = False
        return True

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.generation += 1
        self._is_held = False
        if not any(one.partition == 0 for one in partitions):
            self._tracker.start({})
            consumer.assign([])
            return
        starts = self.starts = self._starts(consumer)
        self._tracker.start(starts)
        consumer.assign(self._partitions(starts))
        _log.info("the route is told by this process", route=self._route, partitions=len(starts))

    def _starts(self, consumer: Consumer) -> dict[int, int]:
        """Return the offset from which each partition is read, and commit those that are not committed."""
        numbers = sorted(consumer.list_topics(self._topic, timeout=_REQUEST_S).topics[self._topic].partitions)
        asked = [TopicPartition(self._topic, number) for number in numbers]
        committed = consumer.committed(asked, timeout=_REQUEST_S)
        for one in committed:
            # Without an answer the partition would pass for one that was never read, and its alerts for history.
            if one.error is not None:
                raise KafkaException(one.error)
        found = {one.partition: one.offset for one in committed}
        self.storms = Storms(self._storm_limit or 0)
        if self._storm_limit is not None:
            stored = {one.partition: one.metadata for one in committed}
            self.storms.restore(stored, time.monotonic(), time.time_ns() // 1_000_000)
        self.checked_ms = self._stored_ms = _checked_ms(next(one.metadata for one in committed if one.partition == 0))
        starts = {number: offset for number, offset in found.items() if offset >= 0}
        # A partition that was added to a topic in use has no history: its first alert is a new one.
        is_new = not starts
        for number in numbers:
            if number not in starts:
                first, end = consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=_REQUEST_S)
                starts[number] = end if is_new else first
        if any(found[number] < 0 for number in numbers):
            # At once: alerts that are written before the first commit would be history at the next start.
            consumer.commit(offsets=self._partitions(starts), asynchronous=False)
        return starts

    def _revoke(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.generation += 1
        self._tracker.start({})
        consumer.unassign()

    def _partitions(self, offsets: dict[int, int]) -> list[TopicPartition]:
        checked = f"{_CHECKED}{self.checked_ms}"
        return [
            TopicPartition(self._topic, number, offset, checked + self.storms.stored(number))
            for number, offset in sorted(offsets.items())
        ]


def _checked_ms(metadata: str | None) -> int:
    """Return the time in a commit's metadata; now, for a route that has committed none."""
    text = (metadata or "").partition(";")[0].removeprefix(_CHECKED)
    return int(text) if text.isascii() and text.isdigit() else int(time.time() * 1000)
