"""When a task that passes over bad records must stop after all: nearly everything is bad. Pure.

NOOP and dead letters are for some bad records among good ones. When a topic carries something else altogether, or a
sink refuses everything, going on only fills the dead-letter topic; the task stops, and the trace says why.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from isotherm.connector.config.validation import Validated

CONSECUTIVE, PERCENT, WINDOW = "errors.limit.consecutive", "errors.limit.percent", "errors.limit.window.records"


@dataclass(frozen=True)
class FailureLimits:
    """How much failure is too much; 0 is no limit."""

    consecutive: int = 10_000
    """So many records skipped or dead-lettered without a single good one between them."""
    percent: float = 0.0
    """So many of a hundred, among the last `window_records`."""
    window_records: int = 1_000


def failure_limits(config: Validated) -> FailureLimits:
    """The limits that a configuration sets."""
    return FailureLimits(config.integer(CONSECUTIVE), float(config.text(PERCENT)), config.integer(WINDOW))


class FailureLimitError(Exception):
    """The task failed too often; the text names the key of the limit."""


class FailureWatch:
    """Counts the outcomes of one task, batch after batch, in the order in which they are settled.

    A batch is of one partition. One good record in it ends a run of failures; filtered records say nothing.
    """

    def __init__(self, limits: FailureLimits) -> None:
        self._limits = limits
        self._run = 0
        self._recent: deque[tuple[int, int]] = deque()
        self._records = 0
        self._failed = 0

    def settled(self, good: int, failed: int) -> None:
        """A batch is over: `good` records were written, `failed` were skipped or dead-lettered."""
        if not good and not failed:
            return
        self._run = failed if good else self._run + failed
        self._recent.append((good + failed, failed))
        self._records += good + failed
        self._failed += failed
        while self._records - self._recent[0][0] >= self._limits.window_records:
            records, bad = self._recent.popleft()
            self._records -= records
            self._failed -= bad

    def check(self) -> None:
        """Raise FailureLimitError when a limit is reached."""
        limits = self._limits
        if limits.consecutive and self._run >= limits.consecutive:
            raise FailureLimitError(
                f"{CONSECUTIVE}={limits.consecutive}: {self._run} records in a row could not be written"
            )
        is_judged = limits.percent and self._records >= limits.window_records
        if is_judged and self._failed * 100 >= limits.percent * self._records:
            raise FailureLimitError(
                f"{PERCENT}={limits.percent:g}: {self._failed} of the last {self._records} records could not be written"
            )
