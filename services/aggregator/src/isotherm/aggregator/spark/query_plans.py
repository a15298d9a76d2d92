"""Asks Spark what it has planned for a query: its own reader of its offset log, and its context of the running batch.

Spark writes down what a batch reads before the batch begins, and tells it in public only after the batch has ended. The
classes that know it earlier are not public API. They are named here alone, and `test_aggregator_query_plans.py` holds
them against each Spark that the service is released with (ADR 185).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.checkpoint.objects import CheckpointUnavailableError
from isotherm.aggregator.checkpoint.plans import PlannedBatch
from isotherm.aggregator.offsets import by_partition

_MAX_REMEMBERED = 8


class QueryPlans:
    """The planned batches of one query, while it runs and before it is started. Safe to use from several threads."""

    def __init__(self, session: SparkSession, checkpoint: str) -> None:
        """`checkpoint` is the folder of the query's checkpoint, as a URI."""
        self._session = session
        self._checkpoint = checkpoint
        self._execution: Any = None
        self._own_log: Any = None
        self._remembered: dict[int, PlannedBatch] = {}

    def follow(self, query: StreamingQuery) -> StreamingQuery:
        """Ask a query that was started, from now on; return it."""
        self._execution = query._jsq.streamingQuery()
        return query

    def forget(self) -> None:
        """Ask the checkpoint again: what this process knows of it is not so any more."""
        self._execution = self._own_log = None
        self._remembered.clear()

    def newest(self) -> int:
        """Return the number of the newest batch, which may still run; -1 before the first."""
        context: Any = None if self._execution is None else self._execution.getLatestExecutionContext()
        number = -1 if context is None else int(context.batchId())
        if number < 0:  # the query has not looked into its checkpoint yet
            listed = self._log().getLatestBatchId()
            return int(listed.get()) if listed.isDefined() else -1
        # Between two batches the number may be raised before the flag is lowered.
        return number if context.isCurrentBatchConstructed() and self.get(number) is not None else number - 1

    def get(self, batch_id: int) -> PlannedBatch | None:
        """Return what was decided about a batch; None when Spark does not know it, or not any more."""
        known = self._remembered.get(batch_id)
        if known is not None or batch_id < 0:
            return known
        entry = self._log().get(batch_id)
        if not entry.isDefined():
            return None
        plan = _planned_batch(batch_id, entry.get())
        self._remembered[batch_id] = plan
        for old in sorted(self._remembered)[:-_MAX_REMEMBERED]:
            self._remembered.pop(old, None)
        return plan

    def text(self, batch_id: int) -> str | None:
        """Return what was decided about a batch as Spark writes it down; None when Spark does not know it."""
        log = self._log()
        entry = log.get(batch_id) if batch_id >= 0 else None
        return None if entry is None or not entry.isDefined() else self._serialized(log, entry.get())

    def put_back(self, texts: Mapping[int, str]) -> list[int]:
        """Replace those plans of the checkpoint that say something else; return their numbers.

        Batches that the checkpoint does not have are left out. Call this while the query does not run. Raises
        CheckpointUnavailableError when another process does it at the same time.
        """
        log, replaced = self._new_log(), []
        for batch_id, text in texts.items():
            entry, noted = log.get(batch_id), self._deserialized(log, text)
            # Both were read: an entry that was made in memory may be written in another order.
            if not entry.isDefined() or self._serialized(log, entry.get()) == self._serialized(log, noted):
                continue
            log.fileManager().delete(log.batchIdToPath(batch_id))
            if not self._new_log().add(batch_id, noted):
                raise CheckpointUnavailableError(f"another process writes {self._checkpoint}/offsets/{batch_id}")
            replaced.append(batch_id)
        if replaced:
            self.forget()
        return replaced

    def _serialized(self, log: Any, entry: Any) -> str:
        written = self._jvm.java.io.ByteArrayOutputStream()
        log.serialize(entry, written)
        return bytes(written.toByteArray()).decode()

    def _deserialized(self, log: Any, text: str) -> Any:
        return log.deserialize(self._jvm.java.io.ByteArrayInputStream(bytearray(text.encode())))

    @property
    def _jvm(self) -> Any:
        return self._session._jvm

    def _new_log(self) -> Any:
        return self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog(
            self._session._jsparkSession, f"{self._checkpoint}/offsets", False
        )

    def _log(self) -> Any:
        """Return Spark's offset log: that of the query, which has its newest entries in memory, or one to read with."""
        if self._execution is not None:
            return self._execution.offsetLog()
        if self._own_log is None:
            self._own_log = self._new_log()
        return self._own_log


def _planned_batch(batch_id: int, planned: Any) -> PlannedBatch:
    metadata = json.loads(planned.metadataOpt().get().json())
    # The input is the last source of both queries.
    end = planned.offsets().last()
    ends = by_partition(json.loads(end.get().json())) if end.isDefined() else None
    return PlannedBatch(batch_id, metadata["batchTimestampMs"], metadata["batchWatermarkMs"], ends)
