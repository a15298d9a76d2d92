"""The boundary between two aggregators of one input: which windows and records belong to which of them (ADR 188). Pure.

The former one publishes the windows that begin before the boundary, its successor all others. A record that is in no
window belongs to one of them as well: by its event time while both may hold it to be on time, and otherwise by the time
at which the broker appended it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Boundary:
    """One side of a boundary. Times are in epoch ms."""

    at_ms: int
    is_former: bool
    """Whether this aggregator is the one that ends at the boundary."""
    overlap_ms: int
    """A reading that either of them holds to be on time was appended less than this before or after its event time."""

    @property
    def begin_ms(self) -> int:
        """The append time from which on the successor must read."""
        return self.at_ms - self.overlap_ms

    @property
    def end_ms(self) -> int:
        """The append time up to which the former one must read."""
        return self.at_ms + self.overlap_ms

    def owns_window(self, window_start_ms: int) -> bool:
        """Return whether this aggregator publishes a window."""
        return (window_start_ms < self.at_ms) == self.is_former

    def owns_record(self, appended_ms: int, event_time_ms: int | None) -> bool:
        """Return whether this aggregator answers for a record; `event_time_ms` is None when it cannot be decoded."""
        is_in_overlap = self.begin_ms <= appended_ms < self.end_ms
        time_ms = event_time_ms if event_time_ms is not None and is_in_overlap else appended_ms
        return (time_ms < self.at_ms) == self.is_former

    def may_change(self, newest_appended_ms: int) -> bool:
        """Return whether no record has been judged by this boundary yet."""
        return newest_appended_ms < self.begin_ms

    def last_window_end_ms(self, window_ms: int, slide_ms: int) -> int:
        """Return the end of the last window that begins before the boundary."""
        return (self.at_ms - 1) // slide_ms * slide_ms + window_ms
