"""The ledger: takes what the topics bring, and says which windows are to be compared, and which do not add up. Pure.

A window is noted when the aggregator's watermark has passed its end, and again with everything that comes for it later.
It is due when all topics were read for `patience_ms` after that, and the aggregator has read what was there.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from isotherm.console.reconciliation.cells import Cells, Spans, TopicPartition, drop_before, total, union
from isotherm.console.reconciliation.findings import Finding
from isotherm.console.reconciliation.readings import Content, Series, StoredReading, WindowRow
from isotherm.console.reconciliation.windows import Aside, Window, is_plain, judge
from isotherm.console.trace.model import TopicPartitionOffset

T = TypeVar("T")
_LONGEST = 4
"""So many times `keep_ms` a window that cannot be compared is remembered."""
_READ_MARGIN_MS = 10_000
"""How much later than a window was noted the aggregator must have read: what follows from it is in its topics then."""


class Grid(NamedTuple):
    """How long windows are, and how far apart they begin."""

    length_ms: int
    slide_ms: int

    @property
    def cell_ms(self) -> int:
        """The length of a cell: a part of both."""
        length, slide = self.length_ms, self.slide_ms
        while slide:
            length, slide = slide, length % slide
        return length

    def starts(self, time_ms: int) -> Iterator[int]:
        """Yield where the windows begin that have a time."""
        start_ms = time_ms - time_ms % self.slide_ms
        while start_ms + self.length_ms > time_ms:
            yield start_ms
            start_ms -= self.slide_ms


class Progress(NamedTuple):
    """How far the aggregator is, in epoch milliseconds."""

    watermark_ms: int
    """Windows that end until then are published."""
    read_until_ms: int
    """What was appended until then was read, and what follows from it is in its topics."""
    complete_after_ms: int | None = None
    """Windows that do not begin later are not published: a new checkpoint has not all their readings."""


class Suspect(NamedTuple):
    """A window whose sums differ, and where its readings are."""

    window: Window
    spans: Spans


class Ledger:
    """What was read of the topics, for as long as it may be needed."""

    def __init__(
        self,
        grid: Grid,
        windows_topic: str,
        on_left_out: Callable[[str], None],
        *,
        deduplicate: bool,
        patience_ms: int,
        keep_ms: int,
        first_ms: int,
    ) -> None:
        """Begin empty.

        Args:
            grid: of the windows.
            windows_topic: their topic.
            on_left_out: is called with the reason for each reading, row and window that is not compared.
            deduplicate: whether windows count one of several copies of a reading.
            patience_ms: how long what belongs together may take to be in its topics.
            keep_ms: how long after its end a window is remembered, and how far ahead of the time a reading may be.
                What comes for it later, or is further ahead, is not compared.
            first_ms: windows that begin earlier are not compared: some of their readings may not have been read.
        """
        self._grid, self._topic, self._on_left_out = grid, windows_topic, on_left_out
        self._deduplicate, self._patience_ms, self._keep_ms = deduplicate, patience_ms, keep_ms
        self._floor_ms = -(-first_ms // grid.slide_ms) * grid.slide_ms
        self._final_ms = self._floor_ms
        """Windows that begin earlier were noted as final."""
        self._complete_after_ms: int | None = None
        self._cells = Cells(grid.cell_ms)
        self._rows: dict[int, dict[Series, WindowRow]] = defaultdict(dict)
        self._late: dict[int, dict[Series, dict[Content, float]]] = {}
        self._refused: dict[int, dict[Series, set[TopicPartitionOffset]]] = {}
        self._final: deque[tuple[int, int]] = deque()
        """When windows were noted as final, and where they begin."""
        self._touched: dict[Window, int] = {}
        """When something came last for windows that were final before; in the order of these times."""
        self._pinned: set[Window] = set()
        self._now_ms = first_ms

    def add_reading(self, series: Series, event_ms: int, value: float, partition: TopicPartition, offset: int) -> None:
        """Take a reading of a topic of readings."""
        if not self._is_remembered(event_ms):
            return
        self._cells.add(series, event_ms, value, partition, offset)
        if event_ms < self._final_ms + self._grid.length_ms:
            self._touch(series, event_ms)

    def add_late(self, reading: StoredReading) -> None:
        """Take a copy of the topic of late readings."""
        if self._is_remembered(reading.event_ms):
            of_series = self._late.setdefault(self._cell_of(reading), {}).setdefault(reading.series, {})
            of_series[reading.content] = reading.value
            self._touch(reading.series, reading.event_ms)

    def add_refused(self, reading: StoredReading) -> None:
        """Take a reading that the aggregator has refused, with the place of its record in the topic of readings."""
        if self._is_remembered(reading.event_ms):
            self._refused.setdefault(self._cell_of(reading), {}).setdefault(reading.series, set()).add(reading.place)
            self._touch(reading.series, reading.event_ms)

    def add_row(self, row: WindowRow) -> None:
        """Take a published revision of a window; windows of other lengths are not compared."""
        if row.end_ms - row.start_ms != self._grid.length_ms or row.start_ms % self._grid.slide_ms:
            return
        window = self._window(row.series, row.start_ms)
        if row.start_ms < self._floor_ms and window not in self._pinned:
            self._on_left_out("forgotten")
            return
        of_start = self._rows[row.start_ms]
        known = of_start.get(row.series)
        if known is None or row.revision >= known.revision:
            of_start[row.series] = row
        self._note(window)

    def pin(self, window: Window, *, is_wrong: bool) -> None:
        """Remember a window that is wrong until a revision mends it; others are forgotten in time."""
        if is_wrong:
            self._pinned.add(window)
        else:
            self._pinned.discard(window)

    def is_pinned(self, window: Window) -> bool:
        """Whether a window is remembered because it is wrong."""
        return window in self._pinned

    def unpin_all_but(self, is_open: Callable[[Window], bool]) -> None:
        """Forget the windows whose findings are not open any more."""
        self._pinned = {window for window in self._pinned if is_open(window)}

    def advance(self, now_ms: int, progress: Progress | None) -> None:
        """Note the time, and how far the aggregator is; None while nobody tells."""
        self._now_ms = max(now_ms, self._now_ms)
        longest_ms = self._now_ms - _LONGEST * self._keep_ms
        if progress is None:
            self._forget_before(longest_ms)
            return
        grid, watermark_ms = self._grid, min(progress.watermark_ms, self._now_ms)
        self._complete_after_ms = progress.complete_after_ms
        while self._final_ms + grid.length_ms <= watermark_ms:
            # What comes for an empty window later has it noted then.
            if next(self._series(self._final_ms), None) is not None:
                self._final.append((self._now_ms, self._final_ms))
            self._final_ms += grid.slide_ms
        touched = (window.start_ms for window in self._touched)
        waiting_ms = min(itertools.chain((start_ms for _, start_ms in self._final), touched), default=self._final_ms)
        self._forget_before(max(min(watermark_ms - self._keep_ms, waiting_ms), longest_ms))

    @property
    def next_due_ms(self) -> int | None:
        """When a window is due; None while none is known."""
        noted = itertools.chain(
            (at for at, _ in itertools.islice(self._final, 1)), itertools.islice(self._touched.values(), 1)
        )
        first_ms = min(noted, default=None)
        return None if first_ms is None else first_ms + self._patience_ms

    def due(self, read_until_ms: int, progress: Progress | None) -> list[Window]:
        """Return the windows that are due; they are not due any more.

        Args:
            read_until_ms: the time until which every topic was read.
            progress: how far the aggregator is. While nobody tells, nothing is due.
        """
        if progress is None:
            return []
        until_ms = min(read_until_ms - self._patience_ms, progress.read_until_ms - _READ_MARGIN_MS)
        found: dict[Window, None] = {}
        while self._final and self._final[0][0] <= until_ms:
            _, start_ms = self._final.popleft()
            windows = (self._window(series, start_ms) for series in self._series(start_ms))
            found.update((window, None) for window in windows if window not in self._touched)
        compared_ms = self._final[0][1] if self._final else self._final_ms
        for window in list(itertools.takewhile(lambda one: self._touched[one] <= until_ms, self._touched)):
            del self._touched[window]
            # One that was not compared yet as final is compared then.
            if window.start_ms < compared_ms:
                found[window] = None
        return list(found)

    def postpone(self, windows: Iterable[Window]) -> None:
        """Have windows compared later, because it cannot be done now."""
        for window in windows:
            self._note(window)

    def suspects(self, windows: Iterable[Window]) -> tuple[list[Window], list[Suspect]]:
        """Compare windows by sums; return those that are right, and the others."""
        right, suspect = [], []
        for window in windows:
            cells = self._cells.of(window.series, window.start_ms, window.end_ms)
            if is_plain(self._row(window), total(cells), self._aside(window)) or self._is_left_out(window):
                right.append(window)
            else:
                suspect.append(Suspect(window, union(cell.spans for cell in cells)))
        return right, suspect

    def judge(self, window: Window, readings: Sequence[StoredReading]) -> Finding | None:
        """Compare a window with its readings, as they were read again; None if it is right."""
        aside = self._aside(window)
        return judge(window, self._row(window), readings, aside, self._topic, deduplicate=self._deduplicate)

    def _row(self, window: Window) -> WindowRow | None:
        return self._rows.get(window.start_ms, {}).get(window.series)

    def _is_left_out(self, window: Window) -> bool:
        after_ms = self._complete_after_ms
        return self._row(window) is None and after_ms is not None and window.start_ms <= after_ms

    def _aside(self, window: Window) -> Aside:
        return Aside(
            dict(itertools.chain.from_iterable(one.items() for one in self._of(self._late, window))),
            set(itertools.chain.from_iterable(self._of(self._refused, window))),
        )

    def _of(self, aside: Mapping[int, Mapping[Series, T]], window: Window) -> list[T]:
        cells = range(window.start_ms, window.end_ms, self._grid.cell_ms) if aside else ()
        return [known for at in cells if (known := aside.get(at, {}).get(window.series))]

    def _cell_of(self, reading: StoredReading) -> int:
        return reading.event_ms - reading.event_ms % self._grid.cell_ms

    def _is_remembered(self, event_ms: int) -> bool:
        # A reading from far ahead is refused; where nobody does so, memory has its bound all the same.
        if event_ms < self._floor_ms:
            self._on_left_out("forgotten")
        elif event_ms > self._now_ms + self._keep_ms:
            self._on_left_out("ahead")
        else:
            return True
        return False

    def _touch(self, series: Series, event_ms: int) -> None:
        """Have the windows of a time compared again if they were final before."""
        for start_ms in self._grid.starts(event_ms):
            if self._floor_ms <= start_ms < self._final_ms:
                self._note(self._window(series, start_ms))

    def _note(self, window: Window) -> None:
        # What belongs to the last one that came may still be on its way.
        self._touched.pop(window, None)
        self._touched[window] = self._now_ms

    def _series(self, start_ms: int) -> Iterator[Series]:
        """Yield the series that have readings or a row in a window, some of them repeatedly."""
        yield from self._cells.series(start_ms, start_ms + self._grid.length_ms)
        yield from self._rows.get(start_ms, ())

    def _window(self, series: Series, start_ms: int) -> Window:
        return Window(series, start_ms, start_ms + self._grid.length_ms)

    def _forget_before(self, time_ms: int) -> None:
        """Forget the windows that begin before a time; what was not compared is told."""
        floor_ms = time_ms - time_ms % self._grid.slide_ms - self._grid.length_ms
        if floor_ms <= self._floor_ms:
            return
        self._floor_ms = floor_ms
        while self._final and self._final[0][1] < floor_ms:
            _, start_ms = self._final.popleft()
            for _ in set(self._series(start_ms)):
                self._on_left_out("not compared")
        for start_ms in range(self._final_ms, floor_ms, self._grid.slide_ms):
            for _ in set(self._series(start_ms)):
                self._on_left_out("not compared")
        self._final_ms = max(self._final_ms, floor_ms)
        for window in [one for one in self._touched if one.start_ms < floor_ms and one not in self._pinned]:
            del self._touched[window]
            self._on_left_out("not compared")
        cell_ms, length_ms = self._grid.cell_ms, self._grid.length_ms
        rows = {(window.start_ms, window.series) for window in self._pinned}
        cells = {(at, series) for start, series in rows for at in range(start, start + length_ms, cell_ms)}
        self._cells.drop_before(floor_ms, cells)
        drop_before(self._rows, floor_ms, rows)
        drop_before(self._late, floor_ms, cells)
        drop_before(self._refused, floor_ms, cells)
