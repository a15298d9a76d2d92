"""Hands ticks to the windowed query as early as ADR 30 allows: while the batch that has read everything is running."""

from __future__ import annotations

import time
from collections.abc import Mapping

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.checkpoint.writer_schema_cache import SchemaBook
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.metrics import Partition
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.supervised_query import SupervisedQuery
from isotherm.aggregator.watermark.clock import BrokerTime, Ticks, reached_ms


class Ticking:
    """Works out how far time has come, and says so in the clock's folder when a window may end by it."""

    def __init__(
        self,
        settings: AggregatorSettings,
        folder: CheckpointFolder,
        broker: Broker,
        book: SchemaBook,
        broker_time: BrokerTime | None = None,
    ) -> None:
        self._folder = folder
        self._broker = broker
        self._book = book
        self._broker_time = broker_time or BrokerTime()
        self._idle_flush = settings.idle_flush
        self._is_brokers_time = settings.require_log_append_time
        self._publish_delay_ms = settings.read_slack_ms
        self._ticks = Ticks(
            settings.window_ms,
            settings.slide_ms or settings.window_ms,
            settings.max_skew_ms,
            settings.watermark_delay_ms,
        )
        self._ticked_watermark_ms = 0
        self._ticked_in_start = 0
        self._asked_of_batch = -1

    def now_ms(self) -> int | None:
        """The brokers' time at the least (epoch ms); None as long as no record has told it."""
        return self._broker_time.now_ms()

    def is_worth_asking(self, windows: SupervisedQuery) -> bool:
        """Whether a window may end by a batch that has been planned since the last call of `advance`."""
        now_ms = self.now_ms()
        if now_ms is None or not self._is_due(windows, now_ms):
            return False
        return self._folder.last_planned_batch() != self._asked_of_batch

    def is_overdue(self, windows: SupervisedQuery) -> bool:
        """Whether a window that is open may end by now, as far as the brokers' time tells."""
        now_ms = self.now_ms()
        return self._idle_flush and now_ms is not None and self._is_due(windows, now_ms)

    def advance(self, windows: SupervisedQuery, asked_at_ms: int | None, ends: Mapping[Partition, int]) -> None:
        """Hand over a tick if one is due; `ends` are the partitions' ends as of `asked_at_ms` or later.

        `asked_at_ms` is the brokers' time as `now_ms` gave it. Raises BrokerError.
        """
        if windows.newest_appended_ms is not None:
            self._hear(windows.newest_appended_ms)
        if not self._has_open_windows(windows):
            return
        if asked_at_ms is None:
            # Only at a start, to which nothing has told the time: no record says that its broker's clock is right.
            newest_ms = self._broker.newest_ms(sorted({topic for topic, _ in ends}))
            if newest_ms is not None:
                self._broker_time.hear(_no_later_than_here(newest_ms))
        elif self._idle_flush and not self._is_due(windows, asked_at_ms):
            return
        # What a batch will have read is settled before it begins. A tick that is written from then on goes into the
        # next batch, and what is in a batch's plan stays there, also when the batch has to be run again.
        plan = self._folder.last_plan()
        if plan is None:
            return
        self._asked_of_batch, read_to = plan
        unread = self._broker.unread(read_to, ends, self._book.ingest_time_ms)
        for first in unread:
            if first.appended_ms is not None and first.is_timely(self._publish_delay_ms):
                self._hear(first.appended_ms)
        reached = reached_ms(asked_at_ms, unread, windows.newest_appended_ms, idle_flush=self._idle_flush)
        if reached is not None and self._is_due(windows, reached):
            self._folder.tick(self._ticks.tick_ms(reached))
            self._ticked_watermark_ms = self._ticks.watermark_ms(reached)
            self._ticked_in_start = windows.starts

    def _hear(self, time_ms: int) -> None:
        # Producers' times are no brokers'.
        self._broker_time.hear(time_ms if self._is_brokers_time else _no_later_than_here(time_ms))

    def _has_open_windows(self, windows: SupervisedQuery) -> bool:
        # Without an open window there is nothing to finish: an idle service makes no batches.
        return windows.last is not None and windows.last.state_rows != 0

    def _is_due(self, windows: SupervisedQuery, reached: int) -> bool:
        last = windows.last
        if last is None or not self._has_open_windows(windows):
            return False
        # Spark tells nothing of its state before a start's first batch, and makes none for windows that an earlier
        # start has ended but not written: the first tick of a start brings both about, wherever the watermark is.
        if last.state_rows is None and self._ticked_in_start != windows.starts:
            return True
        return self._ticks.is_due(reached, max(last.watermark_ms or 0, self._ticked_watermark_ms))


def _no_later_than_here(time_ms: int) -> int:
    return min(time_ms, time.time_ns() // 1_000_000)
