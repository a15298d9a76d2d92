"""How a task runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from isotherm.persisters.task.partition_buffers import Limits


@dataclass(frozen=True)
class LoopSettings:
    """How a task runs."""

    topics: Sequence[str]
    """Names; none where they are followed."""
    limits: Limits = field(default_factory=Limits)
    writers: int = 8
    """Writes in flight at once, over all partitions."""
    commit_interval_ms: float = 1_000.0
    drain_timeout_ms: float = 15_000.0
    """How long a revoked partition, or the shutdown, waits for the write in flight."""
    session_timeout_ms: float = 10_000.0
    """Of the consumer: without a sign of life for so long its partitions go to others."""
    backoff_base_ms: float = 100.0
    start: str = "earliest"
    """Where a partition begins of which nothing was committed, one of `fetching.STARTS`."""
    stops_at_gap: bool = False
    """Whether the task stops where the topic has lost records before they were read."""
    stall_ms: float = 60_000.0
    """A partition with records that gives none for so long is fetched anew."""
