"""A day of readings of every fate, the windows that follow from them, and a ledger that is told of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from isotherm.console.reconciliation.findings import Finding
from isotherm.console.reconciliation.ledger import Grid, Ledger, Progress
from isotherm.console.reconciliation.readings import Series, StoredReading, WindowRow, sum_of
from isotherm.console.trace.model import TopicPartitionOffset

READINGS, WINDOWS = "thermostat.data", "temperatures.aggregated"
MINUTE, PATIENCE, KEEP = 60_000, 30_000, 900_000
BEGIN = 1_767_225_600_000
SPAN_MS = 5 * MINUTE
DEVICES = ("attic", "barn|1", "cellar")


@dataclass
class Day:
    """Readings and the windows that follow from them."""

    grid: Grid
    readings: list[StoredReading] = field(default_factory=list)
    late: set[StoredReading] = field(default_factory=set)
    corrected: bool = False
    refused: set[StoredReading] = field(default_factory=set)
    deduplicate: bool = False

    def windows(self) -> dict[tuple[Series, int], list[StoredReading]]:
        """The readings that each published window has."""
        found = defaultdict(list)
        known = set()
        for one in self.readings:
            identity = (one.series, one.measurement)
            is_copy = identity in known
            known.add(identity)
            if one in self.refused or (self.deduplicate and is_copy):
                continue
            if one not in self.late or self.corrected:
                for start_ms in self.grid.starts(one.event_ms):
                    found[one.series, start_ms].append(one)
        return dict(found)

    def is_right(self, published: WindowRow) -> bool:
        """Whether a window may have these numbers, before a correction or after it."""
        return any(
            sum_of(one.value for one in of).equals(published)
            for corrected in (False, True)
            if (of := replace(self, corrected=corrected).windows().get((published.series, published.start_ms)))
        )


@st.composite
def days(draw: st.DrawFn) -> Day:
    day = Day(
        draw(st.sampled_from((Grid(MINUTE, MINUTE), Grid(2 * MINUTE, MINUTE), Grid(90_000, MINUTE)))),
        corrected=draw(st.booleans()),
        deduplicate=draw(st.booleans()),
    )
    values = st.floats(-1e6, 1e6, allow_nan=False)
    times = draw(st.lists(st.integers(0, SPAN_MS - 1), max_size=40))
    for sequence, at_ms in enumerate(times):
        fate = draw(st.sampled_from(("in time", "in time", "in time", "copied", "late", "refused")))
        one = StoredReading(
            (draw(st.sampled_from(DEVICES)), "temperature"),
            BEGIN + at_ms,
            sequence,
            draw(values),
            BEGIN + at_ms,
            TopicPartitionOffset(READINGS, sequence % 2, len(day.readings)),
        )
        day.readings.append(one)
        if fate == "copied":
            copy = TopicPartitionOffset(READINGS, sequence % 2, len(day.readings))
            day.readings.append(one._replace(place=copy, ingest_ms=one.ingest_ms + 1))
        elif fate == "late":
            day.late.add(one)
        elif fate == "refused":
            day.refused.add(one)
    return day


def row(series: Series, start_ms: int, grid: Grid, of: Iterable[StoredReading], revision: int = 1) -> WindowRow:
    total = sum_of(one.value for one in of)
    place = TopicPartitionOffset(WINDOWS, 0, start_ms // 1_000 + revision)
    end_ms, mean = start_ms + grid.length_ms, total.total / total.readings
    return WindowRow(
        series, start_ms, end_ms, revision, total.readings, total.total, mean, total.low, total.high, place
    )


def progress(at_ms: int, read_until_ms: int | None = None) -> Progress:
    """An aggregator whose watermark is at a time, and that has read everything or until a time."""
    return Progress(at_ms, at_ms if read_until_ms is None else read_until_ms)


class World:
    """A ledger, and the readings as Kafka has them."""

    def __init__(self, day: Day, *, left_out: list[str] | None = None) -> None:
        noted = [] if left_out is None else left_out
        first_ms = BEGIN - 2 * day.grid.length_ms
        self.ledger = Ledger(
            day.grid,
            WINDOWS,
            noted.append,
            deduplicate=day.deduplicate,
            patience_ms=PATIENCE,
            keep_ms=KEEP,
            first_ms=first_ms,
        )
        self.day, self.now_ms, self.watermark_ms = day, BEGIN, BEGIN
        self.ledger.advance(BEGIN, progress(BEGIN))
        for one in day.readings:
            self.add(one)
        for one in day.late:
            self.ledger.add_late(one)
        for one in day.refused:
            self.ledger.add_refused(one)
        self.compared = self.examined = 0

    def add(self, one: StoredReading) -> None:
        """Read one more reading."""
        partition = (one.place.topic, one.place.partition)
        self.ledger.add_reading(one.series, one.event_ms, one.value, partition, one.place.offset)

    def after(self, passed_ms: int) -> list[Finding]:
        """The findings of a pass so much later."""
        self.now_ms += passed_ms
        told = progress(self.now_ms)
        self.ledger.advance(self.now_ms, told)
        due = self.ledger.due(self.now_ms, told)
        right, suspects = self.ledger.suspects(due)
        self.compared += len(due)
        self.examined += len(suspects)
        assert {*right, *(one.window for one in suspects)} == set(due)
        for one in right:
            self.ledger.pin(one, is_wrong=False)
        found = []
        for window, spans in suspects:
            again = [
                one
                for one in self.day.readings
                if one.series == window.series
                and window.start_ms <= one.event_ms < window.end_ms
                and (span := spans.get((one.place.topic, one.place.partition)))
                and span[0] <= one.place.offset <= span[1]
            ]
            finding = self.ledger.judge(window, again)
            self.ledger.pin(window, is_wrong=finding is not None)
            found += [] if finding is None else [finding]
        return found

    def publish(self, rows: Iterable[WindowRow]) -> None:
        for one in rows:
            self.ledger.add_row(one)

    def publish_all(self, without: Sequence[tuple[Series, int]] = ()) -> None:
        windows = self.day.windows()
        self.publish(row(*key, self.day.grid, of) for key, of in windows.items() if key not in without)


def all_findings(world: World) -> list[Finding]:
    """What is found when all windows are final, and when their time is over again."""
    return [*world.after(SPAN_MS + 2 * world.day.grid.length_ms), *world.after(PATIENCE)]
