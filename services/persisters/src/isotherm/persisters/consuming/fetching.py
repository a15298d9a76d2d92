"""Where each partition is read from, and whether it is read at all. See docs/adr/0049.

The client itself never chooses a position: with `auto.offset.reset` a committed offset that retention has overtaken
would be replaced by the first one that is left, and nobody would know of the records between.
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

from isotherm.persisters.task.partition_buffers import Lane, Partition
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)

_TIMEOUT_S = 5.0
_LOOK_MS = 5_000.0
_CURES = 3
"""So often a partition that gives nothing is fetched anew before the task gives up."""
STARTS: Mapping[str, int | None] = {
    "earliest": OFFSET_BEGINNING,
    "smallest": OFFSET_BEGINNING,
    "beginning": OFFSET_BEGINNING,
    "latest": OFFSET_END,
    "largest": OFFSET_END,
    "end": OFFSET_END,
    "error": None,
    "none": None,
}
"""By `auto.offset.reset`, where a partition begins of which nothing was committed; None ends the task."""


class OffsetGapError(Exception):
    """Records that were to be read are gone from the topic, and the settings say to stop then."""


class NoCommittedOffsetError(Exception):
    """Nothing was committed of a partition, and the connector says not to choose a position for it."""


class NothingReadError(Exception):
    """A partition has records, and the client gives none of them, however often it is asked anew."""


class _Cure(NamedTuple):
    """How often a partition was fetched anew, and when last."""

    number: int
    at_ms: float


_NO_CURE = _Cure(0, 0.0)


class Fetching:
    """Positions and liveness of the assigned partitions; only for the thread that polls."""

    def __init__(
        self,
        consumer: Consumer,
        health: Health,
        *,
        start: str = "earliest",
        stops_at_gap: bool = False,
        stall_ms: float = 60_000.0,
    ) -> None:
        """`start` is one of STARTS. A partition that gives nothing for `stall_ms`, and has records, is fetched anew."""
        self._consumer = consumer
        self._health = health
        self._start = start
        self._stops_at_gap = stops_at_gap
        self._stall_ms = stall_ms
        self._next_look_ms = 0.0
        self._cures: dict[Partition, _Cure] = {}
        self._out_of_range: set[Partition] = set()

    def assign(self, found: Sequence[TopicPartition]) -> None:
        """Read each partition from its committed offset, or from where a new one begins.

        Raises NoCommittedOffsetError.
        """
        begin = STARTS[self._start]
        if begin is None and any(one.offset < 0 for one in found):
            names = [f"{one.topic}-{one.partition}" for one in found if one.offset < 0]
            raise NoCommittedOffsetError(f"auto.offset.reset={self._start}: nothing was committed of {names}")
        self._consumer.incremental_assign(
            [TopicPartition(one.topic, one.partition, one.offset if one.offset >= 0 else begin or 0) for one in found]
        )
        # The client keeps a partition paused that was taken away while it was, also when it comes back.
        self._consumer.resume([TopicPartition(one.topic, one.partition) for one in found])

    def out_of_range(self, lane: Lane) -> None:
        """The partition's position is not in the topic any more."""
        self._out_of_range.add(lane.partition)
        self._next_look_ms = 0.0

    def look(self, lanes: Mapping[Partition, Lane], now_ms: float) -> None:
        """Put right what does not go on by itself.

        Raises OffsetGapError, NothingReadError.
        """
        if now_ms < self._next_look_ms:
            return
        self._next_look_ms = now_ms + _LOOK_MS
        self._out_of_range.intersection_update(lanes)
        if self._cures:
            # Also those of partitions that went away.
            ill = {place: cure for place, cure in self._cures.items() if place in lanes}
            self._cures = {place: cure for place, cure in ill.items() if lanes[place].read_ms <= cure.at_ms}
            if not self._cures:
                self._health.ready("reading")
        try:
            for partition in sorted(self._out_of_range):
                self._step_over_gap(lanes[partition], now_ms)
            for lane in self._silent(lanes.values(), now_ms):
                self._wake(lane, now_ms)
        except KafkaException as error:
            # Kafka is away: the same is looked at again, and reading has another reason to stand still.
            _log.warning("positions not known", reason=str(error))

    def _silent(self, lanes: Iterable[Lane], now_ms: float) -> list[Lane]:
        return [
            lane
            for lane in lanes
            if now_ms - lane.read_ms >= self._stall_ms
            and not (lane.paused or lane.halted or lane.waiting or lane.partition in self._out_of_range)
        ]

    def _bounds(self, lane: Lane) -> tuple[int, int]:
        where = TopicPartition(*lane.partition)
        found: tuple[int, int] = self._consumer.get_watermark_offsets(where, timeout=_TIMEOUT_S)
        return found

    def _step_over_gap(self, lane: Lane, now_ms: float) -> None:
        topic, partition = lane.partition
        first, end = self._bounds(lane)
        expected = lane.next_offset
        name = f"{topic}-{partition}"
        if expected is None or first <= expected <= end:
            # It is there after all: the leader changed, or nothing had been read yet.
            self._read_from(lane, first if expected is None else expected, now_ms)
            return
        lost = max(0, first - expected)
        what = (
            f"{name}: offsets {expected} to {first - 1} are gone from the topic, which begins at {first}: it keeps its "
            "records for a shorter time than the connector was behind"
            if lost
            else f"{name}: the topic ends at {end}, before the committed offset {expected}: it was deleted and made "
            "again, or has lost records"
        )
        if self._stops_at_gap:
            raise OffsetGapError(f"{what}; `isotherm-persisters replay` sets the connector to another position")
        if not lost and not lane.is_settled:
            # The offsets begin anew: those of the topic before must not be told apart from them in one batch.
            return
        _log.error("offset out of range", topic=topic, partition=partition, lost_offsets=lost, reason=what)
        lane.step_over(first, lost)
        self._read_from(lane, first, now_ms)

    def _wake(self, lane: Lane, now_ms: float) -> None:
        """Fetch a partition anew that gives nothing, if it has something to give."""
        expected = lane.next_offset
        first, end = self._bounds(lane)
        if expected is None and STARTS[self._start] == OFFSET_BEGINNING:
            expected = first
        if expected is None or end <= expected or lane.end_of_partition == end:
            lane.read_ms = now_ms
            return
        cure = self._cures[lane.partition] = _Cure(self._cures.get(lane.partition, _NO_CURE).number + 1, now_ms)
        topic, partition = lane.partition
        what = f"{topic}-{partition}: no record for {self._stall_ms / 1000:g} s, though there are offsets to {end}"
        if cure.number > _CURES:
            raise NothingReadError(f"{what}; fetched anew {_CURES} times")
        self._health.not_ready("reading", what)
        _log.error("a partition gives nothing, fetching it anew", topic=topic, partition=partition, reason=what)
        self._read_from(lane, expected, now_ms)

    def _read_from(self, lane: Lane, offset: int, now_ms: float) -> None:
        where = TopicPartition(*lane.partition, offset)
        self._consumer.incremental_unassign([TopicPartition(*lane.partition)])
        self._consumer.incremental_assign([where])
        self._consumer.resume([TopicPartition(*lane.partition)])
        lane.paused, lane.read_ms = False, now_ms
        self._out_of_range.discard(lane.partition)
