"""Writes ticks for the windowed query as early as ADR 0030 allows: while the batch that has read everything runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from isotherm.aggregator.checkpoint.plans import Plans, newest_ends
from isotherm.aggregator.checkpoint.writer_schema_cache import WriterSchemaCache
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.kafka.clock_topic import Clock
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.supervision.supervised_query import SupervisedQuery
from isotherm.aggregator.watermark.clock import BrokerClock, TickSchedule, read_until_ms


class WatermarkAdvancer:
    """Finds out how far the input has been read, and writes a tick when a window can end by it."""

    def __init__(
        self,
        settings: AggregatorSettings,
        plans: Plans,
        clock: Clock,
        broker: Broker,
        schemas: WriterSchemaCache,
        broker_clock: BrokerClock | None = None,
        hurry: Callable[[int], None] = lambda _batch_id: None,
    ) -> None:
        """`plans` are those of the windowed query, which reads the ticks of `clock`.

        `hurry` lets the batches up to a number end, and the next one be planned, without any wait.
        """
        self._plans = plans
        self._clock = clock
        self._broker = broker
        self._schemas = schemas
        self._broker_clock = broker_clock or BrokerClock()
        self._hurry = hurry
        self._advance_when_idle = settings.advance_when_idle
        self._has_append_time = settings.require_log_append_time
        self._max_publish_delay_ms = settings.max_publish_delay_ms
        self._schedule = TickSchedule(
            settings.window_ms,
            settings.slide_ms or settings.window_ms,
            settings.max_skew_ms,
            settings.watermark_delay_ms,
        )
        self._ticked_watermark_ms = 0
        self._ticked_in_start = 0
        self._checked_batch = -1

    def now_ms(self) -> int | None:
        """Return a lower bound of the brokers' time (epoch ms); None while no record has shown it."""
        return self._broker_clock.now_ms()

    def is_worth_checking(self, windows: SupervisedQuery) -> bool:
        """Return whether a batch planned since the last call of `advance` can end a window."""
        now_ms = self.now_ms()
        if now_ms is None or not self._is_due(windows, now_ms):
            return False
        return self._plans.newest() != self._checked_batch

    def is_overdue(self, windows: SupervisedQuery) -> bool:
        """Return whether an open window can end by now, by the brokers' time."""
        now_ms = self.now_ms()
        return self._advance_when_idle and now_ms is not None and self._is_due(windows, now_ms)

    def advance(self, windows: SupervisedQuery, asked_at_ms: int | None, ends: Mapping[Partition, int]) -> None:
        """Write a tick if one is due.

        `ends` are the end offsets of the partitions, requested at `asked_at_ms` or later; `asked_at_ms` is the brokers'
        time as `now_ms` returned it. Raises BrokerError and LeaseLostError.
        """
        if windows.newest_appended_ms is not None:
            self._observe(windows.newest_appended_ms)
        if not self._has_open_windows(windows):
            return
        if asked_at_ms is None:
            # This happens only at a start, before any record has shown the time. No other record confirms that the
            # clock of this record's broker is right, hence the bound by the clock of this host.
            newest_ms = self._broker.newest_timestamp_ms(sorted({topic for topic, _ in ends}))
            if newest_ms is not None:
                self._broker_clock.observe(_at_most_now(newest_ms))
        elif self._advance_when_idle and not self._is_due(windows, asked_at_ms):
            return
        # Spark decides what a batch reads before the batch begins. A tick that is written after that belongs to the
        # next batch, and what is in the plan of a batch stays in it when the batch is run again.
        plan = newest_ends(self._plans)
        if plan is None:
            return
        self._checked_batch, read_to = plan
        unread = self._broker.unread_partitions(read_to, ends, self._schemas.ingest_time_ms)
        for first in unread:
            if first.appended_ms is not None and first.is_plausible(self._max_publish_delay_ms):
                self._observe(first.appended_ms)
        until_ms = read_until_ms(
            asked_at_ms, unread, windows.newest_appended_ms, advance_when_idle=self._advance_when_idle
        )
        if until_ms is not None and self._is_due(windows, until_ms):
            self._clock.tick(self._schedule.tick_ms(until_ms))
            self._ticked_watermark_ms = self._schedule.watermark_ms(until_ms)
            self._ticked_in_start = windows.starts
            # The next batch takes the tick, or the one after it when Spark is planning the next one and has asked for
            # the end of the clock already. The batch that follows writes the windows, and is not held.
            self._hurry(self._plans.newest() + 2)
        elif self._advance_when_idle:
            # A window can end by now, and what was read last does not suffice: only a newer batch can.
            self._hurry(self._checked_batch)

    def _observe(self, time_ms: int) -> None:
        # Without append times the records carry times of their producers, which can be ahead.
        self._broker_clock.observe(time_ms if self._has_append_time else _at_most_now(time_ms))

    def _has_open_windows(self, windows: SupervisedQuery) -> bool:
        # Without an open window there is nothing to finish: an idle service runs no batches.
        return windows.last is not None and windows.last.state_rows != 0

    def _is_due(self, windows: SupervisedQuery, until_ms: int) -> bool:
        last = windows.last
        if last is None or not self._has_open_windows(windows):
            return False
        # Before the first batch of a start Spark reports no state, and it runs no batch for windows that an earlier
        # start has ended but not written. The first tick of a start causes both, wherever the watermark is.
        if last.state_rows is None and self._ticked_in_start != windows.starts:
            return True
        return self._schedule.is_due(until_ms, max(last.watermark_ms or 0, self._ticked_watermark_ms))


def _at_most_now(time_ms: int) -> int:
    return min(time_ms, time.time_ns() // 1_000_000)
