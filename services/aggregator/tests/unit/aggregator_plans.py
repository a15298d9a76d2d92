"""Planned batches that a test decides, in the place of Spark's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotherm.aggregator.checkpoint.plans import PlannedBatch
from isotherm.aggregator.offsets import Partition


class GivenPlans:
    """The planned batches of one query."""

    def __init__(self) -> None:
        self.batches: dict[int, PlannedBatch] = {}

    def add(
        self,
        batch_id: int,
        ends: Mapping[Partition, int] | None = None,
        *,
        watermark_ms: int = 0,
        timestamp_ms: int = 0,
    ) -> None:
        """Plan a batch."""
        self.batches[batch_id] = PlannedBatch(batch_id, timestamp_ms, watermark_ms, ends)

    def newest(self) -> int:
        return max(self.batches, default=-1)

    def get(self, batch_id: int) -> PlannedBatch | None:
        return self.batches.get(batch_id)

    def follow(self, query: Any) -> Any:
        return query

    def forget(self) -> None:
        """Nothing is remembered."""
