"""The way of fetched records through the table of quiet devices: what it takes, and what it leaves to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from isotherm.alerts.metrics import Metrics
from isotherm.alerts.stream.device_state_store import PartitionStates


class Record(Protocol):
    """A record of the input, as the compiled code reads it."""

    @property
    def value(self) -> bytes | None:
        """The value."""

    @property
    def timestamp(self) -> int:
        """Epoch ms."""

    @property
    def timestamp_type(self) -> int:
        """1 for a time of the broker, 0 for one of the producer."""


class Judged(NamedTuple):
    """What the compiled code leaves of some records."""

    rest: Sequence[tuple[int, int]]
    """The records for the engine: index, and the clock (epoch ms) of their topic before each."""
    following: int
    """The index from which the next call goes on."""
    clock_ms: int
    """The clock of the topic behind the judged records."""


@dataclass(frozen=True)
class QuietJudge:
    """Lets the compiled code judge records, and counts what it takes."""

    metrics: Metrics
    now_ms: Callable[[], int]
    max_skew_ms: int
    """A reading from so much after its ingest time is for the engine, which ignores it."""
    max_publish_delay_ms: int
    """So much later than the clock of its partition the time of a device advances."""

    def judge(
        self, partition: PartitionStates, topic: str, records: Sequence[Record], begin: int, *, uses_append_time: bool
    ) -> Judged | None:
        """Apply the readings of quiet devices among the records from `begin` on; None without the compiled module."""
        quiet = partition.quiet
        if quiet is None:
            return None
        rest, following = quiet.judge(
            records,
            begin,
            clock_ms=partition.clocks.get(topic, 0),
            other_clocks_ms=partition.other_clocks_ms(topic),
            now_ms=self.now_ms(),
            delay_ms=self.max_publish_delay_ms,
            max_skew_ms=self.max_skew_ms,
            uses_append_time=uses_append_time,
        )
        self.metrics.read.inc(quiet.quiet + quiet.stale)
        self.metrics.late.inc(quiet.late)
        if quiet.stale:
            self.metrics.filtered.labels("stale").inc(quiet.stale)
        return Judged(rest, following, quiet.clock_ms)
