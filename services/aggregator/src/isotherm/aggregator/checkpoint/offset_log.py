"""Reads Spark's offset log of a query: one file for each batch, which Spark writes before the batch begins.

The file has one line with the version of its format, one with metadata as JSON, and one with the end offset of each
source; "-" stands for a source without data. The Kafka source is the last one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isotherm.aggregator.offsets import Partition, by_partition

_NO_OFFSET = "-"


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


def newest_batch(query: Path) -> int:
    """Return the number of the newest batch in the checkpoint folder of a query; -1 before the first."""
    try:
        names = [path.name for path in (query / "offsets").iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


def planned_batch(query: Path, batch_id: int) -> PlannedBatch | None:
    """Return one entry of the log; None when the log does not have it, or not any more."""
    try:
        lines = (query / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    metadata = json.loads(lines[1])
    return PlannedBatch(
        batch_id,
        metadata.get("batchTimestampMs", 0),
        metadata.get("batchWatermarkMs", 0),
        None if lines[-1] == _NO_OFFSET else by_partition(json.loads(lines[-1])),
    )


def newest_plan(query: Path) -> tuple[int, dict[Partition, int]] | None:
    """Return the number of the newest batch and its end offsets; None before the first."""
    newest = planned_batch(query, newest_batch(query))
    return None if newest is None or newest.ends is None else (newest.batch_id, dict(newest.ends))
