"""The status that the aggregator reports on the control topic."""

from __future__ import annotations

from isotherm.aggregator.metrics import PREFIX, Metrics
from isotherm.connector.standalone.reporting import counts_of
from isotherm.connector.state.status import State
from isotherm.servicekit.health import Health

_NOT_COUNTED = ("batch_duration_seconds", "rows_per_second", "watermark_seconds", "lag_records")
"""Sums over the labels of these metrics mean nothing; they are reported by query or by partition instead."""


class Status:
    """State, counts and lag of this process. The reporting thread calls it."""

    def __init__(self, health: Health, metrics: Metrics) -> None:
        self.halted: State | None = None
        """PAUSED or STOPPED while the queries do not run because the target state says so."""
        self._health = health
        self._metrics = metrics

    def state(self) -> State:
        """Return the state of the one task that this process is. The reporter reports the end of the task itself."""
        if self.halted is not None:
            return self.halted
        problems = self._health.problems()
        if "start" in problems:
            return State.UNASSIGNED
        return State.RESTARTING if problems.keys() - {"kafka", "stop"} else State.RUNNING

    def counts(self) -> dict[str, int]:
        """Return every counter, the duration, rate and watermark (epoch ms) of each query's last batch, and two times.

        Both in epoch ms: `read_until_ms`, until when the input was read, and `complete_after_ms` of a new checkpoint.
        """
        counts = counts_of(self._metrics.registry, PREFIX)
        for name in _NOT_COUNTED:
            counts.pop(name, None)
        for query, batch in self._metrics.batches.items():
            counts[f"{query}_batch_ms"] = batch.duration_ms
            counts[f"{query}_rows_per_second"] = round(batch.rows_per_second)
            if batch.watermark_ms is not None:
                counts["watermark_ms"] = batch.watermark_ms
        for name in ("read_until_ms", "complete_after_ms"):
            if (at_ms := getattr(self._metrics, name)) is not None:
                counts[name] = at_ms
        return counts

    def lag(self) -> dict[str, int]:
        """Return the unread records of the query that is further behind, by `topic-partition`."""
        worst: dict[str, int] = {}
        for lags in self._metrics.lags.values():
            for (topic, number), records in lags.items():
                name = f"{topic}-{number}"
                worst[name] = max(records, worst.get(name, 0))
        return worst
