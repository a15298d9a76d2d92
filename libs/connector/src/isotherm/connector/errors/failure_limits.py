"""Failure limits: stop a task that skips or dead-letters nearly every record. Pure.

NOOP and dead letters are meant for a few bad records among good ones. When a topic carries other records than expected,
or a sink refuses everything, a running task only fills the dead-letter topic. It stops instead, and its trace names the
limit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from isotherm.connector.config.validation import Validated

CONSECUTIVE, PERCENT, WINDOW = "errors.limit.consecutive", "errors.limit.percent", "errors.limit.window.records"


@dataclass(frozen=True)
class FailureLimits:
    """The limits of skipped and dead-lettered records; 0 means no limit."""

    consecutive: int = 10_000
    """Failed records in a row, without a good one between them."""
    percent: float = 0.0
    """Percentage of failed records among the last `window_records`."""
    window_records: int = 1_000


def failure_limits(config: Validated) -> FailureLimits:
    """The limits of a valid configuration."""
    return FailureLimits(config.integer(CONSECUTIVE), float(config.text(PERCENT)), config.integer(WINDOW))


class FailureLimitError(Exception):
    """A failure limit is reached; the text names the limit's key."""


class FailureWatch:
    """Counts good and failed records of one task, one batch at a time.

    A batch belongs to one partition. One good record in a batch ends a run of failures. Filtered records do not count.
    """

    def __init__(self, limits: FailureLimits) -> None:
        self._limits = limits
        self._run = 0
        self._recent: deque[tuple[int, int]] = deque()
        self._records = 0
        self._failed = 0

    def settled(self, good: int, failed: int) -> None:
        """Count a finished batch: `good` records were written, `failed` were skipped or dead-lettered."""
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
