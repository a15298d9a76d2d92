"""The position from which each partition is read, and the check that it is read at all. See docs/adr/0049.

The loop, not the client, chooses positions. With `auto.offset.reset` the client would replace a committed offset that
retention has overtaken by the first offset that is left, without any report of the records between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaException,
    TopicPartition,
)

from isotherm.persisters.buffers.partition_buffer import Partition, PartitionBuffer
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)

_TIMEOUT_S = 5.0
_LONGEST_CHECK_INTERVAL_MS = 5_000.0
_MAX_REFETCHES = 3
"""How often a stalled partition is fetched anew before the task gives up."""
START_OFFSETS: Mapping[str, int | None] = {
    "earliest": OFFSET_BEGINNING,
    "smallest": OFFSET_BEGINNING,
    "beginning": OFFSET_BEGINNING,
    "latest": OFFSET_END,
    "largest": OFFSET_END,
    "end": OFFSET_END,
    "error": None,
    "none": None,
}
"""By `auto.offset.reset`, where a partition without a committed offset begins; None ends the task."""


class OffsetGapError(Exception):
    """Records that were to be read are gone from the topic, and the settings say to stop in this case."""


class NoCommittedOffsetError(Exception):
    """A partition has no committed offset, and the connector says not to choose a position for it."""


class NothingReadError(Exception):
    """A partition has records, but the client delivers none of them, even after it was asked anew several times."""


class _Refetch(NamedTuple):
    """How often a partition was fetched anew, and when last."""

    number: int
    at_ms: float


_NO_REFETCH = _Refetch(0, 0.0)


class FetchPositions:
    """Positions of the assigned partitions; only for the thread that polls."""

    def __init__(
        self,
        consumer: Consumer,
        health: Health,
        *,
        start: str = "earliest",
        stops_at_gap: bool = False,
        stall_ms: float = 60_000.0,
    ) -> None:
        """Take the consumer whose positions are set.

        Args:
            consumer: the task's.
            health: is told of stalled partitions.
            start: a key of START_OFFSETS.
            stops_at_gap: whether records that are gone from the topic stop the task.
            stall_ms: after so long without a record, a partition that has records is fetched anew; milliseconds.
        """
        self._consumer = consumer
        self._health = health
        self._start = start
        self._stops_at_gap = stops_at_gap
        self._stall_ms = stall_ms
        self._check_interval_ms = min(_LONGEST_CHECK_INTERVAL_MS, stall_ms)
        self._next_check_ms = 0.0
        self._refetches: dict[Partition, _Refetch] = {}
        self._out_of_range: set[Partition] = set()

    def assign(self, found: Sequence[TopicPartition]) -> None:
        """Read each partition from its committed offset, or from the start offset if it has none.

        Raises NoCommittedOffsetError.
        """
        begin = START_OFFSETS[self._start]
        if begin is None and any(one.offset < 0 for one in found):
            names = [f"{one.topic}-{one.partition}" for one in found if one.offset < 0]
            raise NoCommittedOffsetError(f"auto.offset.reset={self._start}: no committed offset for {names}")
        self._consumer.incremental_assign(
            [TopicPartition(one.topic, one.partition, one.offset if one.offset >= 0 else begin or 0) for one in found]
        )
        # The client keeps a partition paused that was revoked while it was paused, even when it is assigned again.
        self._consumer.resume([TopicPartition(one.topic, one.partition) for one in found])

    def mark_out_of_range(self, buffer: PartitionBuffer) -> None:
        """Note that the topic does not hold the partition's position any more; the next `check` deals with it."""
        self._out_of_range.add(buffer.partition)
        self._next_check_ms = 0.0

    def check(self, buffers: Mapping[Partition, PartitionBuffer], now_ms: float) -> None:
        """Move the positions that are out of range, and fetch stalled partitions anew.

        Most calls do nothing: it looks once in five seconds, or once in `stall_ms` if that is shorter.

        Raises OffsetGapError, NothingReadError.
        """
        if now_ms < self._next_check_ms:
            return
        self._next_check_ms = now_ms + self._check_interval_ms
        self._out_of_range.intersection_update(buffers)
        if self._refetches:
            self._forget_recovered(buffers)
        try:
            for partition in sorted(self._out_of_range):
                self._skip_gap(buffers[partition], now_ms)
            self._refetch_stalled(self._silent(buffers.values(), now_ms), now_ms)
        except KafkaException as error:
            # Kafka does not answer: the next check repeats this one.
            _log.warning("positions not known", reason=str(error))

    def _forget_recovered(self, buffers: Mapping[Partition, PartitionBuffer]) -> None:
        """Forget the refetches of partitions that deliver records again or are not assigned any more."""
        self._refetches = {
            partition: refetch
            for partition, refetch in self._refetches.items()
            if partition in buffers and buffers[partition].read_ms <= refetch.at_ms
        }
        if not self._refetches:
            self._health.ready("reading")

    def _silent(self, buffers: Iterable[PartitionBuffer], now_ms: float) -> list[PartitionBuffer]:
        return [
            buffer
            for buffer in buffers
            if now_ms - buffer.read_ms >= self._stall_ms
            and not (buffer.paused or buffer.halted or buffer.waiting or buffer.partition in self._out_of_range)
        ]

    def _offsets_at(self, buffers: Sequence[PartitionBuffer], place: int) -> dict[Partition, int]:
        """Return the first or last offset (OFFSET_BEGINNING, OFFSET_END) of each partition whose leader knows it.

        One request for all of them: it waits behind the fetch that Kafka holds on the same connection.
        """
        if not buffers:
            return {}
        asked = [TopicPartition(*buffer.partition, place) for buffer in buffers]
        found = self._consumer.offsets_for_times(asked, timeout=_TIMEOUT_S)
        return {(one.topic, one.partition): one.offset for one in found if one.error is None and one.offset >= 0}

    def _bounds(self, buffer: PartitionBuffer) -> tuple[int, int]:
        where = TopicPartition(*buffer.partition)
        found: tuple[int, int] = self._consumer.get_watermark_offsets(where, timeout=_TIMEOUT_S)
        return found

    def _skip_gap(self, buffer: PartitionBuffer, now_ms: float) -> None:
        topic, partition = buffer.partition
        first, end = self._bounds(buffer)
        expected = buffer.next_offset
        name = f"{topic}-{partition}"
        if expected is None or first <= expected <= end:
            # The position is in the topic: the leader changed, or nothing was read yet.
            self._read_from(buffer, first if expected is None else expected, now_ms)
            return
        lost = max(0, first - expected)
        what = (
            f"{name}: offsets {expected} to {first - 1} are gone from the topic, which begins at {first}: it keeps its "
            "records for a shorter time than the connector was behind"
            if lost
            else f"{name}: the topic ends at {end}, before the committed offset {expected}: it was deleted and created "
            "again, or has lost records"
        )
        if self._stops_at_gap:
            raise OffsetGapError(f"{what}; `isotherm-persisters replay` sets the connector to another position")
        if not lost and not buffer.is_settled:
            # Offsets start again at the topic's first: one batch must not hold equal offsets of both topics.
            return
        _log.error("offset out of range", topic=topic, partition=partition, lost_offsets=lost, reason=what)
        buffer.skip_gap(first, lost)
        self._read_from(buffer, first, now_ms)

    def _refetch_stalled(self, silent: Sequence[PartitionBuffer], now_ms: float) -> None:
        """Fetch those of the silent partitions anew that have records."""
        ends = self._offsets_at(silent, OFFSET_END)
        is_from_beginning = START_OFFSETS[self._start] == OFFSET_BEGINNING
        never_read = [buffer for buffer in silent if buffer.next_offset is None and ends.get(buffer.partition)]
        starts = self._offsets_at(never_read if is_from_beginning else (), OFFSET_BEGINNING)
        starts |= {buffer.partition: offset for buffer in silent if (offset := buffer.next_offset) is not None}
        for buffer in silent:
            if buffer.partition in ends:
                self._refetch_if_stalled(buffer, starts.get(buffer.partition), ends[buffer.partition], now_ms)

    def _refetch_if_stalled(self, buffer: PartitionBuffer, expected: int | None, end: int, now_ms: float) -> None:
        """Fetch a silent partition anew if it has records between the `expected` offset and its `end`."""
        if expected is None or end <= expected or buffer.end_of_partition == end:
            buffer.read_ms = now_ms
            return
        number = self._refetches.get(buffer.partition, _NO_REFETCH).number + 1
        self._refetches[buffer.partition] = _Refetch(number, now_ms)
        topic, partition = buffer.partition
        what = f"{topic}-{partition}: no record for {self._stall_ms / 1000:g} s, though there are offsets to {end}"
        if number > _MAX_REFETCHES:
            raise NothingReadError(f"{what}; fetched anew {_MAX_REFETCHES} times")
        self._health.not_ready("reading", what)
        _log.error("a partition delivers nothing, fetching it anew", topic=topic, partition=partition, reason=what)
        self._read_from(buffer, expected, now_ms)

    def _read_from(self, buffer: PartitionBuffer, offset: int, now_ms: float) -> None:
        where = TopicPartition(*buffer.partition, offset)
        self._consumer.incremental_unassign([TopicPartition(*buffer.partition)])
        self._consumer.incremental_assign([where])
        self._consumer.resume([TopicPartition(*buffer.partition)])
        buffer.paused, buffer.read_ms = False, now_ms
        self._out_of_range.discard(buffer.partition)
