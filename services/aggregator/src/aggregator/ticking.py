"""Hands ticks to the windowed query as early as ADR 30 allows: while the batch that has read everything is running."""

from __future__ import annotations

import time
from collections.abc import Mapping

from aggregator.broker import Broker
from aggregator.checkpoint import CheckpointFolder
from aggregator.clock import Ticks, reached_ms
from aggregator.metrics import Partition
from aggregator.schema_book import SchemaBook
from aggregator.settings import AggregatorSettings
from aggregator.supervision import SupervisedQuery


class Ticking:
    """Works out how far time has come, and says so in the clock's folder when a window may end by it."""

    def __init__(
        self, settings: AggregatorSettings, folder: CheckpointFolder, broker: Broker, book: SchemaBook
    ) -> None:
        self._folder = folder
        self._broker = broker
        self._book = book
        self._idle_flush = settings.idle_flush
        self._ticks = Ticks(
            settings.window_ms,
            settings.slide_ms or settings.window_ms,
            settings.max_skew_ms,
            settings.watermark_delay_ms,
        )
        self._ticked_watermark_ms = 0
        self._ticked_in_start = 0
        self._asked_of_batch = -1

    def is_worth_asking(self, windows: SupervisedQuery) -> bool:
        """Whether a window may end by a batch that has been planned since the last call of `advance`."""
        if not self._is_due(windows, time.time_ns() // 1_000_000):
            return False
        return self._folder.last_planned_batch() != self._asked_of_batch

    def advance(self, windows: SupervisedQuery, asked_at_ms: int, ends: Mapping[Partition, int]) -> None:
        """Hand over a tick if one is due; `ends` are the partitions' ends as of `asked_at_ms` or later."""
        if not self._is_due(windows, asked_at_ms):
            return
        # What a batch will have read is settled before it begins. A tick that is written from then on goes into the
        # next batch, and what is in a batch's plan stays there, also when the batch has to be run again.
        plan = self._folder.last_plan()
        if plan is None:
            return
        self._asked_of_batch, read_to = plan
        unread = self._broker.unread(read_to, ends, self._book.ingest_time_ms)
        reached = reached_ms(asked_at_ms, unread, windows.newest_ingest_ms, idle_flush=self._idle_flush)
        if reached is not None and self._is_due(windows, reached):
            self._folder.tick(self._ticks.tick_ms(reached))
            self._ticked_watermark_ms = self._ticks.watermark_ms(reached)
            self._ticked_in_start = windows.starts

    def _is_due(self, windows: SupervisedQuery, reached: int) -> bool:
        last = windows.last
        # Without an open window there is nothing to finish: an idle service makes no batches.
        if last is None or last.state_rows == 0:
            return False
        # Spark tells nothing of its state before a start's first batch, and makes none for windows that an earlier
        # start has ended but not written: the first tick of a start brings both about, wherever the watermark is.
        if last.state_rows is None and self._ticked_in_start != windows.starts:
            return True
        return self._ticks.is_due(reached, max(last.watermark_ms or 0, self._ticked_watermark_ms))
