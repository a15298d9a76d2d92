"""Tells the metrics, the log and the failure limit what the loop reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isotherm.connector.config.validation import Validated
from isotherm.connector.errors.failure_limits import FailureWatch
from isotherm.persisters.api.record import FailedRecord, Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.partition_buffer import Partition
from isotherm.persisters.consuming.record_traces import RecordTraces
from isotherm.persisters.task.metrics import TaskMetrics
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_SAMPLE_INTERVAL_S = 1.0
_MAX_CHARACTERS = 300


class TaskObserver:
    """Passes all reports to the metrics, failed records also to the log, outcomes also to the failure limit.

    `traces` makes the spans of traced records; None for none.
    """

    def __init__(
        self, metrics: TaskMetrics, log: FailedRecordLog, failures: FailureWatch, traces: RecordTraces | None = None
    ) -> None:
        self.wrote = metrics.wrote
        self._traces = traces
        self.retried, self.committed = metrics.retried, metrics.committed
        self._metrics, self._log, self._failures = metrics, log, failures

    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None:
        """The sink has taken these rows of `records`."""
        self._metrics.stored(rows, records)
        if self._traces is not None:
            for row, trace in self._traces.stored(rows, records):
                self._metrics.traced(row, records, trace)

    def settled(self, partition: Partition, counts: Counts) -> None:
        """Records got their outcome. The metrics read the counts of the buffers themselves."""
        self._failures.settled(counts.written, counts.dead_lettered.total() + counts.skipped.total())

    def failed(self, records: Sequence[FailedRecord]) -> None:
        """Records were skipped or dead-lettered."""
        self._metrics.failed(records)
        self._log.failed(records)
        if self._traces is not None:
            self._traces.failed(records)


class FailedRecordLog:
    """Logs a sample of the failed records, so that a topic full of bad records does not fill the log."""

    def __init__(self, config: Validated, on_logged: Callable[[], None]) -> None:
        """`on_logged` is called after every line."""
        self._on_logged = on_logged
        self._is_on = config.flag("errors.log.enable")
        self._with_values = config.flag("errors.log.include.messages")
        self._next_s = 0.0
        self._unlogged = 0

    def failed(self, records: Sequence[FailedRecord]) -> None:
        """Log the first record, unless one was logged within the last second."""
        self._unlogged += len(records)
        if not self._is_on or time.monotonic() < self._next_s:
            return
        failed, self._next_s = records[0], time.monotonic() + _SAMPLE_INTERVAL_S
        record = failed.record
        value: dict[str, str] = {"value": repr(record.value)[:_MAX_CHARACTERS]} if self._with_values else {}
        _log.warning(
            "record not written",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            stage=failed.stage,
            reason=failed.reason,
            error=str(failed.error)[:_MAX_CHARACTERS],
            records=self._unlogged,
            **value,
        )
        self._unlogged = 0
        self._on_logged()
