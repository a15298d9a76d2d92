"""What a task says of the records that it passes over: in its metrics, its log, and to the limit on failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isotherm.connector.config.validation import Validated
from isotherm.connector.errors.failure_limits import FailureWatch
from isotherm.persisters.task.accounting import Counts
from isotherm.persisters.task.in_flight_batch import Refusal
from isotherm.persisters.task.metrics import TaskMetrics
from isotherm.persisters.task.partition_buffers import Partition
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_SAMPLE_INTERVAL_S = 1.0
_MAX_SHOWN = 300


class Observers:
    """Passes everything to the metrics, refusals also to the log, outcomes to the limit on failures."""

    def __init__(self, metrics: TaskMetrics, refusals: RefusalLog, failures: FailureWatch) -> None:
        self.wrote, self.retried, self.committed = metrics.wrote, metrics.retried, metrics.committed
        self._metrics, self._refusals, self._failures = metrics, refusals, failures

    def settled(self, partition: Partition, counts: Counts) -> None:
        """Records got their outcome."""
        self._metrics.settled(partition, counts)
        self._failures.settled(counts.written, counts.dead_lettered.total() + counts.skipped.total())

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Records were skipped or dead-lettered."""
        self._metrics.refused(refusals)
        self._refusals.refused(refusals)


class RefusalLog:
    """Logs a sample of what is passed over: a topic full of bad records must not become a log full of them."""

    def __init__(self, config: Validated, told: Callable[[], None]) -> None:
        self._told = told
        self._is_on = config.flag("errors.log.enable")
        self._with_values = config.flag("errors.log.include.messages")
        self._next_s = 0.0
        self._unsaid = 0

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Log the first of them, unless one was logged just now."""
        self._unsaid += len(refusals)
        if not self._is_on or time.monotonic() < self._next_s:
            return
        refusal, self._next_s = refusals[0], time.monotonic() + _SAMPLE_INTERVAL_S
        record = refusal.record
        shown: dict[str, str] = {"value": repr(record.value)[:_MAX_SHOWN]} if self._with_values else {}
        _log.warning(
            "record not written",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            stage=refusal.stage,
            reason=refusal.reason,
            error=str(refusal.error)[:_MAX_SHOWN],
            records=self._unsaid,
            **shown,
        )
        self._unsaid = 0
        self._told()
