"""Tells when an aggregator that ends at a boundary has nothing left to do (ADR 188)."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.supervision.supervised_query import SupervisedQuery
from isotherm.aggregator.watermark.boundary import Boundary


class BoundaryEnd:
    """Whether both queries have read up to the boundary's end, and every window before the boundary is published."""

    def __init__(self, boundary: Boundary, last_window_end_ms: int, read_margin_ms: int) -> None:
        """`last_window_end_ms` is the end of the last window before the boundary, in epoch ms."""
        self.at_ms = boundary.at_ms
        self._read_until_ms = boundary.end_ms + read_margin_ms
        self._last_window_end_ms = last_window_end_ms
        self._ends: dict[Partition, int] | None = None

    def is_reached(
        self,
        asked_at_ms: int | None,
        ends: Mapping[Partition, int],
        windows: SupervisedQuery,
        rejects: SupervisedQuery,
    ) -> bool:
        """Return whether this aggregator has done its part.

        `ends` are the end offsets of the partitions, requested at `asked_at_ms` (epoch ms, brokers' time) or later.
        """
        if self._ends is None:
            if asked_at_ms is None or asked_at_ms < self._read_until_ms:
                return False
            self._ends = dict(ends)
        return self._has_read(windows) and self._has_read(rejects) and self._has_published(windows)

    def _has_read(self, query: SupervisedQuery) -> bool:
        read_to = query.read_to or {}
        return all(read_to.get(partition, 0) >= end for partition, end in (self._ends or {}).items())

    def _has_published(self, windows: SupervisedQuery) -> bool:
        last = windows.last
        if last is None:
            return False
        return last.state_rows == 0 or (last.watermark_ms or 0) >= self._last_window_end_ms
