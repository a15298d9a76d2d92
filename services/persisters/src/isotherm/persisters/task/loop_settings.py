"""How a task runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from isotherm.persisters.buffers.limits import BufferLimits


@dataclass(frozen=True)
class LoopSettings:
    """How a task runs; times are in milliseconds."""

    topics: Sequence[str]
    """Names; empty if MatchingTopics finds them."""
    limits: BufferLimits = field(default_factory=BufferLimits)
    writers: int = 8
    """Writes in flight at once, over all partitions."""
    commit_interval_ms: float = 1_000.0
    drain_timeout_ms: float = 15_000.0
    """How long a revocation or the shutdown waits for the writes in flight."""
    session_timeout_ms: float = 10_000.0
    """The consumer's: the group gives its partitions to others after so long without a heartbeat."""
    backoff_base_ms: float = 100.0
    start: str = "earliest"
    """Where a partition without a committed offset begins: a key of `fetch_positions.START_OFFSETS`."""
    stops_at_gap: bool = False
    """Whether the task stops if the topic has lost records before they were read."""
    stall_ms: float = 60_000.0
    """A partition that has records and delivers none for so long is fetched anew."""
