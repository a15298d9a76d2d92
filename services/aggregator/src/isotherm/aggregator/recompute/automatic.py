"""Corrects windows by itself, while the service runs: late readings are merged at regular intervals (ADR 0196)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.metrics import CorrectionMetrics
from isotherm.aggregator.recompute.corrections import Scope, Span
from isotherm.aggregator.recompute.followed_topic import FollowedTopic
from isotherm.aggregator.recompute.recomputation import Recomputation
from isotherm.aggregator.recompute.topic_reader import removed_until_ms
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_BURST_RECORDS = 5_000
"""Late readings that come between two turns, from which on the next turn is waited for: there may be more."""
_MAX_BURST_WAIT_MS = 15_000
"""How long the corrections wait while a burst goes on. A correction reads what was published, however few there are."""


@dataclass(frozen=True)
class Sources:
    """What the corrections read and write with; none of it is shared with another thread."""

    broker: Broker
    late: FollowedTopic
    """The late topic."""
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
        self._burst_since_ms: int | None = None

    def turn(self) -> bool:
        """Read what came late since the last turn, and correct the windows that are final.

        Return whether the next turn is to follow soon: while a burst of late readings comes, they are only read, so
        that it is corrected once. Raises BrokerError, RegistryUnavailableError, and Spark's exceptions; the next turn
        then does the same again.
        """
        late = self._sources.late
        waiting = self._without_given_up(late.read())
        due = self._due(waiting)
        is_in_burst = self._is_in_burst(late.newly_read)
        if due and not is_in_burst:
            self._correct(due)
            self._metrics.merged.inc(late.done(due))
            waiting -= due
        self._metrics.waiting.set(len(waiting))
        late.store()
        return is_in_burst

    def _is_in_burst(self, newly_read: int) -> bool:
        """Return whether a burst of late readings is coming, and has not come for so long that it cannot wait."""
        if newly_read < _BURST_RECORDS:
            self._burst_since_ms = None
            return False
        now_ms = self._wall_ms()
        if self._burst_since_ms is None:
            self._burst_since_ms = now_ms
        return now_ms - self._burst_since_ms < _MAX_BURST_WAIT_MS

    def _without_given_up(self, waiting: frozenset[int]) -> frozenset[int]:
        """Forget windows that are too old for this service, or not its own, or whose rows retention has removed.

        Count and log them, and return the others.
        """
        if not waiting:
            return waiting
        settings, now_ms = self._settings, self._wall_ms()
        oldest_ms = now_ms - settings.corrections.max_age_ms
        removed_ms = removed_until_ms(settings, self._sources.broker, now_ms)
        limit_ms = oldest_ms if removed_ms is None else max(oldest_ms, removed_ms + 1)
        sides = settings.boundaries
        given_up = frozenset(
            start_ms
            for start_ms in waiting
            if start_ms < limit_ms or not all(side.owns_window(start_ms) for side in sides)
        )
        if given_up:
            readings = self._sources.late.done(given_up)
            self._metrics.not_merged.inc(readings)
            _log.warning(
                "late readings stay out of their windows: the windows are older than corrections.max_age_ms, or "
                "retention has removed a part of what a correction needs, or they lie beyond publish_from or "
                "publish_until; run `recompute` for those that are left",
                readings=readings,
                windows_from_ms=min(given_up),
                windows_to_ms=max(given_up) + settings.window_ms,
            )
        return waiting - given_up

    def _due(self, waiting: frozenset[int]) -> frozenset[int]:
        final_ms = self._final_until_ms()
        if final_ms is None:
            return frozenset()
        return frozenset(start_ms for start_ms in waiting if start_ms + self._settings.window_ms <= final_ms)

    def _correct(self, starts_ms: frozenset[int]) -> None:
        span = Span(min(starts_ms), max(starts_ms) + self._settings.window_ms)
        outcome = self._sources.recomputation.correct(Scope(span, starts_ms))
        self._metrics.windows.inc(outcome.corrected_windows)
        self._metrics.groups.inc(outcome.corrected_groups)
