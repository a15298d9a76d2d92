"""What the aggregator says of itself on the status topic."""

from __future__ import annotations

from isotherm.aggregator.metrics import PREFIX, Metrics
from isotherm.connector.standalone.reporting import counts_of
from isotherm.connector.state.status import State
from isotherm.servicekit.health import Health

_NOT_COUNTED = ("batch_duration_seconds", "rows_per_second", "watermark_seconds", "lag_records")
"""Sums over their labels would say nothing: they are told by query, or by partition."""


class Status:
    """State, counts and lag of this process; asked from the thread that reports them."""

    def __init__(self, health: Health, metrics: Metrics) -> None:
        self.halted: State | None = None
        """PAUSED or STOPPED as long as the queries do not run because nobody wants them to."""
        self._health = health
        self._metrics = metrics

    def state(self) -> State:
        """The state of the one task that this process is; its end is told by whoever sees it."""
        if self.halted is not None:
            return self.halted
        problems = self._health.problems()
        if "start" in problems:
            return State.UNASSIGNED
        return State.RESTARTING if problems.keys() - {"kafka", "stop"} else State.RUNNING

    def counts(self) -> dict[str, int]:
        """Every counter, and of the last batch that each query had: rows per second, ms, watermark (epoch ms)."""
        counts = counts_of(self._metrics.registry, PREFIX)
        for name in _NOT_COUNTED:
            counts.pop(name, None)
        for query, batch in self._metrics.batches.items():
            counts[f"{query}_batch_ms"] = batch.duration_ms
            counts[f"{query}_rows_per_second"] = round(batch.rows_per_second)
            if batch.watermark_ms is not None:
                counts["watermark_ms"] = batch.watermark_ms
        return counts

    def lag(self) -> dict[str, int]:
        """Records that the query which is behind has not read yet, by `topic-partition`."""
        worst: dict[str, int] = {}
        for lags in self._metrics.lags.values():
            for (topic, number), records in lags.items():
                name = f"{topic}-{number}"
                worst[name] = max(records, worst.get(name, 0))
        return worst
