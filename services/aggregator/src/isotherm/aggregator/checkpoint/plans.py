"""What Spark has decided about the batches of a query, before each of them began. Pure.

`isotherm.aggregator.spark.query_plans` asks Spark for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from isotherm.aggregator.offsets import Partition


@dataclass(frozen=True)
class PlannedBatch:
    """What Spark decided about a batch before the batch began. A batch that is run again is the same."""

    batch_id: int
    timestamp_ms: int
    """The time of the batch in epoch ms, which is `current_timestamp()` in the query."""
    watermark_ms: int
    """The watermark that ends windows in this batch, in epoch ms; 0 before the first tick."""
    ends: Mapping[Partition, int] | None
    """The end offset in every partition; None when Kafka has no partition with an offset yet."""


class Plans(Protocol):
    """The planned batches of one query."""

    def newest(self) -> int:
        """Return the number of the newest batch, which may still run; -1 before the first."""

    def get(self, batch_id: int) -> PlannedBatch | None:
        """Return what was decided about a batch; None when that is not known, or not any more."""


def newest_ends(plans: Plans) -> tuple[int, dict[Partition, int]] | None:
    """Return the number of the newest batch and its end offsets; None before the first."""
    newest = plans.newest()
    plan = None if newest < 0 else plans.get(newest)
    return None if plan is None or plan.ends is None else (newest, dict(plan.ends))


def planned_records(plans: Plans, batch_id: int) -> int | None:
    """Return by how many offsets a batch goes on in Kafka; None when that is not known."""
    batch, before = plans.get(batch_id), plans.get(batch_id - 1)
    if batch is None or before is None or batch.ends is None or before.ends is None:
        return None
    return sum(end - before.ends.get(partition, 0) for partition, end in batch.ends.items())


def planned_offsets(plans: Plans, batch_id: int) -> tuple[Mapping[Partition, int], Mapping[Partition, int]]:
    """Return where a batch begins and ends in Kafka; without the partitions of which that is not known."""
    batch, before = plans.get(batch_id), plans.get(batch_id - 1)
    begins = None if before is None else before.ends
    ends = None if batch is None else batch.ends
    return begins or {}, ends or {}


def furthest_ends(*queries: Plans) -> dict[Partition, int]:
    """Return the larger end offset of the queries' newest batches, by partition. No query has read further."""
    furthest: dict[Partition, int] = {}
    for plans in queries:
        plan = newest_ends(plans)
        for partition, end in ({} if plan is None else plan[1]).items():
            furthest[partition] = max(end, furthest.get(partition, 0))
    return furthest
