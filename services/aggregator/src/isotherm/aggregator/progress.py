"""Spark's progress of a streaming query, reduced to the numbers that the service uses. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from isotherm.aggregator.offsets import Partition, by_partition

READINGS_OBSERVED = "readings"
"""Observation of the windowed query: `on_time`, `rejected`, `newest_appended_ms`."""
REJECTED_OBSERVED = "rejected"
"""Observation of the stateless query: one count for each of `frames.readings.REASONS`."""


@dataclass(frozen=True)
class Progress:
    """One trigger of a query, as Spark's StreamingQueryProgress describes it."""

    batch_id: int
    timestamp: str
    input_rows: int
    duration_ms: int
    watermark_ms: int | None
    read_to: Mapping[Partition, int] | None
    """The offset after the last record read, by partition of the Kafka source; None before the first batch."""
    state_rows: int | None
    """Open windows; None when this start of the query has run no batch yet, and for a query without state."""
    dropped_rows: int
    observed: Mapping[str, Mapping[str, int | None]]
    missed: int = 0
    """How many batches directly before this one were not reported."""
    read_from: Mapping[Partition, int] | None = None
    """The offset of the first record read, by partition; None where Spark does not tell, in a first batch."""
    passed_over: int = 0
    """How many of `input_rows` the query of rejects did not read, because none of them was rejected."""

    @property
    def rows_per_second(self) -> float:
        """The records read, divided by the duration of the batch in seconds."""
        return self.input_rows * 1000 / max(1, self.duration_ms)

    @property
    def newest_appended_ms(self) -> int | None:
        """The newest append time (epoch ms) of the readings that went into windows; None when there were none."""
        return self.observed.get(READINGS_OBSERVED, {}).get("newest_appended_ms")

    @property
    def has_only_readings_on_time(self) -> bool:
        """Whether it is known that a batch of the windowed query rejected none of its records."""
        observed = self.observed.get(READINGS_OBSERVED, {})
        # Spark tells zeros, too, of a batch whose records nobody read.
        return observed.get("rejected") == 0 and bool(observed.get("on_time"))

    @classmethod
    def parse(cls, text: str, *, counts_state_rows: bool = True) -> Progress:
        """Parse the JSON of a StreamingQueryProgress.

        Without `counts_state_rows` the state store does not count its rows, and Spark's number means nothing.
        """
        progress = json.loads(text)
        # The windowed query reads the clock's topic, too, before the input.
        kafka = progress["sources"][-1]
        watermark = progress.get("eventTime", {}).get("watermark")
        operators: Sequence[Mapping[str, Any]] = progress["stateOperators"]
        return cls(
            batch_id=progress["batchId"],
            timestamp=progress["timestamp"],
            input_rows=kafka["numInputRows"],
            duration_ms=progress.get("batchDuration", 0),
            watermark_ms=None if watermark is None else _epoch_ms(watermark),
            read_to=_offsets(kafka["endOffset"]),
            state_rows=(
                sum(operator["numRowsTotal"] for operator in operators) if operators and counts_state_rows else None
            ),
            dropped_rows=sum(operator["numRowsDroppedByWatermark"] for operator in operators),
            observed=progress.get("observedMetrics", {}),
            read_from=_offsets(kafka.get("startOffset")),
        )


def _offsets(topics: Mapping[str, Mapping[str, int]] | None) -> dict[Partition, int] | None:
    return None if topics is None else by_partition(topics)


def _epoch_ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
