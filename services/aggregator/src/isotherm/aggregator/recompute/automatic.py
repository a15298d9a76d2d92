"""Corrects windows by itself, while the service runs: late readings are merged at regular intervals (ADR 0196)."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pyspark import SparkContext

from isotherm.aggregator.kafka.broker import Broker, BrokerError
from isotherm.aggregator.kafka.stored_position import StoredPosition
from isotherm.aggregator.metrics import CorrectionMetrics
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.recompute.corrections import Scope, Span
from isotherm.aggregator.recompute.late_backlog import LateBacklog
from isotherm.aggregator.recompute.recomputation import Recomputation
from isotherm.aggregator.recompute.topic_reader import TopicReader, removed_until_ms
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError

_log = logs.logger(__name__)

_JOBS = "corrections"
"""Spark's job group and scheduler pool of the corrections."""
_UNAVAILABLE = (BrokerError, RegistryUnavailableError)
_END_TIMEOUT_S = 10.0
_STORE_AGAIN_MS = 3_600_000
"""How often an unchanged position is stored again: Kafka forgets one after `offsets.retention.minutes` (7 days)."""


@dataclass(frozen=True)
class Sources:
    """What the corrections read and write with; none of it is shared with another thread."""

    broker: Broker
    position: StoredPosition
    topics: TopicReader
    recomputation: Recomputation


class AutomaticCorrections:
    """Corrects the windows of new late readings once they are final. One thread calls `turn`."""

    def __init__(
        self,
        settings: AggregatorSettings,
        sources: Sources,
        metrics: CorrectionMetrics,
        final_until_ms: Callable[[], int | None],
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`final_until_ms` returns the time up to which the windowed query has written every window, or None."""
        self._settings = settings
        self._sources = sources
        self._metrics = metrics
        self._final_until_ms = final_until_ms
        self._wall_ms = wall_ms
        self._backlog: LateBacklog | None = None
        self._stored: Mapping[Partition, int] = {}
        self._stored_at_ms = 0

    def turn(self) -> bool:
        """Read what came late since the last turn, and correct the windows that are final. Return whether any were.

        Raises BrokerError, RegistryUnavailableError, and Spark's exceptions; the next turn then does the same again.
        """
        backlog = self._backlog = self._backlog or self._begin()
        ends = self._sources.broker.end_offsets([self._settings.late_topic], committed=True)
        if any(end > backlog.read_to.get(partition, 0) for partition, end in ends.items()):
            begin = {partition: backlog.read_to.get(partition, 0) for partition in ends}
            backlog.add(ends, self._sources.topics.new_late_windows(begin, ends))
        self._give_up(backlog)
        due = self._due(backlog.waiting())
        if due:
            self._correct(due)
            self._metrics.merged.inc(backlog.remove(due))
        self._metrics.waiting.set(len(backlog.waiting()))
        self._store(backlog.position)
        return bool(due)

    def _store(self, position: Mapping[Partition, int]) -> None:
        """Store how far the late topic is done: when that has changed, and often enough that Kafka never forgets it."""
        now_ms = self._wall_ms()
        if position != self._stored or now_ms - self._stored_at_ms >= _STORE_AGAIN_MS:
            self._sources.position.store(position)
            self._stored, self._stored_at_ms = position, now_ms

    def _begin(self) -> LateBacklog:
        """Return a backlog that begins where the last process was done, or with the first late reading there is."""
        bounds = self._sources.broker.log_bounds([self._settings.late_topic])
        stored = self._sources.position.load(bounds)
        position = {}
        for partition, (first, end) in bounds.items():
            offset = stored.get(partition, first)
            # Beyond the end: the topic was created again. Before the first record: retention has removed some.
            position[partition] = offset if first <= offset <= end else first
        _log.info("corrections begin", position={f"{topic}-{number}": at for (topic, number), at in position.items()})
        return LateBacklog(position)

    def _give_up(self, backlog: LateBacklog) -> None:
        """Forget windows that are too old for this service, or whose rows retention has removed. Count and log them."""
        now_ms, waiting = self._wall_ms(), backlog.waiting()
        if not waiting:
            return
        oldest_ms = now_ms - self._settings.corrections.max_age_ms
        removed_ms = removed_until_ms(self._settings, self._sources.broker, now_ms)
        limit_ms = oldest_ms if removed_ms is None else max(oldest_ms, removed_ms + 1)
        given_up = {start_ms for start_ms in waiting if start_ms < limit_ms}
        if given_up:
            readings = backlog.remove(given_up)
            self._metrics.not_merged.inc(readings)
            _log.warning(
                "late readings stay out of their windows: the windows are older than corrections.max_age_ms, or "
                "retention has removed a part of what a correction needs; run `recompute` for those that are left",
                readings=readings,
                windows_from_ms=min(given_up),
                windows_to_ms=max(given_up) + self._settings.window_ms,
            )

    def _due(self, waiting: Collection[int]) -> frozenset[int]:
        final_ms = self._final_until_ms()
        if final_ms is None:
            return frozenset()
        return frozenset(start_ms for start_ms in waiting if start_ms + self._settings.window_ms <= final_ms)

    def _correct(self, starts_ms: frozenset[int]) -> None:
        span = Span(min(starts_ms), max(starts_ms) + self._settings.window_ms)
        outcome = self._sources.recomputation.correct(Scope(span, starts_ms))
        self._metrics.windows.inc(outcome.corrected_windows)
        self._metrics.groups.inc(outcome.corrected_groups)


class CorrectionsThread:
    """Calls `turn` at regular intervals, beside the queries. As a context it ends with the block."""

    def __init__(
        self,
        corrections: AutomaticCorrections,
        context: SparkContext,
        interval_ms: int,
        is_halted: Callable[[], bool],
        metrics: CorrectionMetrics,
        redact: Callable[[str], str],
    ) -> None:
        """While `is_halted` returns True, nothing is corrected. `redact` removes secrets from what is logged."""
        self._corrections = corrections
        self._context = context
        self._interval_s = interval_ms / 1000
        self._is_halted = is_halted
        self._metrics = metrics
        self._redact = redact
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="corrections", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_failure: object) -> None:
        self._is_ending.set()
        # The jobs of a correction that is not complete are made again by the next process.
        self._context.cancelJobGroup(_JOBS)
        self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        self._context.setJobGroup(_JOBS, "merging late readings", interruptOnCancel=False)
        self._context.setLocalProperty("spark.scheduler.pool", _JOBS)
        while not self._is_ending.wait(self._interval_s):
            if self._is_halted():
                continue
            try:
                self._corrections.turn()
            except _UNAVAILABLE as error:
                self._failed(str(error))
            except Exception:
                # Of Spark, or a fault of ours: the thread must not end unseen, and the next turn does the same again.
                if not self._is_ending.is_set():
                    self._failed(traceback.format_exc())

    def _failed(self, reason: str) -> None:
        self._metrics.failed.inc()
        _log.warning("windows could not be corrected, trying again", reason=self._redact(reason)[-2_000:])
