from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.checkpoint.writer_schema_cache import WriterSchemaCache
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.progress import Progress
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.supervision.supervised_query import SupervisedQuery
from isotherm.aggregator.supervision.watermark_advancer import WatermarkAdvancer
from isotherm.aggregator.watermark.clock import BrokerClock, UnreadPartition

BATCH = 7
PLANNED: dict[Partition, int] = {("readings", 0): 50, ("readings", 1): 60}
WINDOW_MS, DELAY_MS, SKEW_MS = 10_000, 15_000, 5_000
WATERMARK_MS = 100_000
DUE_MS = WATERMARK_MS + WINDOW_MS + DELAY_MS - SKEW_MS
"""The brokers' time at which the next window may end."""


@dataclass
class Log:
    """A topic as the broker shows it: the append time of each record that is there, by offset."""

    appended_ms: Mapping[Partition, Mapping[int, int]]
    asked: list[Mapping[Partition, int]] = field(default_factory=list)
    unreadable: bool = False
    held_ms: int = 0
    """How long before that time the records were received."""

    def ends(self) -> dict[Partition, int]:
        return {partition: max(records, default=-1) + 1 for partition, records in self.appended_ms.items()}

    def unread_partitions(
        self, read_to: Mapping[Partition, int], ends: Mapping[Partition, int], _: Callable[..., object]
    ) -> list[UnreadPartition]:
        self.asked.append(read_to)
        firsts = [self.appended_ms[p][read_to[p]] for p in ends if read_to[p] < ends[p]]
        return [UnreadPartition(first, None if self.unreadable else first - self.held_ms) for first in firsts]

    def newest_timestamp_ms(self, _: Sequence[str]) -> int | None:
        return max((time for records in self.appended_ms.values() for time in records.values()), default=None)


@dataclass
class Schemas:
    """What the advancer needs of the cache of writer schemas."""

    ingest_time_ms: Callable[..., object] = lambda _: None


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(tmp_path)
    folder.create()
    (folder.windows / "offsets").mkdir(parents=True)
    return folder


def plan(folder: CheckpointFolder, batch_id: int, ends: Mapping[Partition, int]) -> None:
    """Write what Spark writes before the batch begins."""
    line = json.dumps({"readings": {str(number): end for (_, number), end in ends.items()}})
    (folder.windows / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n-\n{line}")


def query(*, state_rows: int = 1) -> SupervisedQuery:
    """The windowed query after its batch 6, of which nothing but the watermark and the open windows count."""
    windows = SupervisedQuery("windows", lambda: pytest.fail("nobody starts it"))
    windows.last = Progress(BATCH - 1, "t", 10, 1, WATERMARK_MS, {}, state_rows, 0, {})
    return windows


def begin_again(windows: SupervisedQuery) -> None:
    """Restart the query with nothing to read; return all that Spark 4.0.0 reports then."""
    idle = {
        "batchId": BATCH + 1,
        "timestamp": "t",
        "sources": [{"description": "KafkaV2[Subscribe[readings]]", "numInputRows": 0, "endOffset": None}],
        "stateOperators": [],
        "eventTime": {},
    }
    windows.starts += 1
    windows.last = Progress.parse(json.dumps(idle))


def advancer(folder: CheckpointFolder, log: Log, hurried: list[int] | None = None) -> WatermarkAdvancer:
    """An advancer that notes in `hurried` up to which batch nothing may wait."""
    settings = AggregatorSettings(
        checkpoint_dir=folder.folder,
        jars_dir=folder.folder,
        window_ms=WINDOW_MS,
        allowed_lateness_ms=5_000,
        max_skew_ms=SKEW_MS,
        max_publish_delay_ms=4_000,
        read_margin_ms=1_000,
    )
    return WatermarkAdvancer(
        settings,
        folder,
        cast(Broker, log),
        cast(WriterSchemaCache, Schemas()),
        BrokerClock(lambda: 0.0),
        ([] if hurried is None else hurried).append,
    )


def ticks(folder: CheckpointFolder) -> list[int]:
    return sorted(int(path.name) for path in folder.clock.iterdir())


def test_a_plan_of_a_running_batch_is_enough(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {49: DUE_MS - 1}, ("readings", 1): {59: DUE_MS - 1, 60: DUE_MS + 5}})
    plan(folder, BATCH, PLANNED)
    advancer(folder, log).advance(query(), DUE_MS + 100, log.ends())
    assert log.asked == [PLANNED]
    assert ticks(folder) == [DUE_MS + 5 + SKEW_MS]


def test_a_record_taken_in_before_that_no_plan_has_holds_time_back(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {49: 1, 50: DUE_MS - 1}, ("readings", 1): {60: DUE_MS + 5}})
    plan(folder, BATCH, PLANNED)
    watermark = advancer(folder, log)
    watermark.advance(query(), DUE_MS + 100, log.ends())
    assert ticks(folder) == []
    plan(folder, BATCH + 1, {**PLANNED, ("readings", 0): 51})
    watermark.advance(query(), DUE_MS + 200, log.ends())
    assert ticks(folder) == [DUE_MS + 5 + SKEW_MS]


def test_one_tick_ends_one_window(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {49: 1}, ("readings", 1): {59: 1}})
    plan(folder, BATCH, PLANNED)
    watermark = advancer(folder, log)
    for asked_at_ms in (DUE_MS - 1, DUE_MS, DUE_MS + 100):
        watermark.advance(query(), asked_at_ms, log.ends())
    assert ticks(folder) == [DUE_MS + SKEW_MS]


def test_without_a_plan_or_an_open_window_time_stands_still(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {}})
    advancer(folder, log).advance(query(), DUE_MS, log.ends())
    plan(folder, BATCH, PLANNED)
    advancer(folder, log).advance(query(state_rows=0), DUE_MS, log.ends())
    assert ticks(folder) == []


def test_a_start_on_an_idle_input_ends_what_the_one_before_left_open(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {49: 1}, ("readings", 1): {59: 1}})
    plan(folder, BATCH, PLANNED)
    watermark, windows = advancer(folder, log), query()
    begin_again(windows)
    watermark.advance(windows, DUE_MS, log.ends())
    assert ticks(folder) == [DUE_MS + SKEW_MS]

    plan(folder, BATCH + 1, PLANNED)
    assert not watermark.is_worth_checking(query(state_rows=0))
    watermark.advance(windows, DUE_MS + 1, log.ends())
    assert ticks(folder) == [DUE_MS + SKEW_MS]
    watermark.advance(windows, DUE_MS + WINDOW_MS, log.ends())
    assert ticks(folder) == [DUE_MS + SKEW_MS, DUE_MS + WINDOW_MS + SKEW_MS]


def test_every_start_has_its_first_tick_at_once(folder: CheckpointFolder) -> None:
    """A start may have ended windows by a tick, and have been stopped before the batch that writes them."""
    log = Log({("readings", 0): {49: 1}, ("readings", 1): {59: 1}})
    plan(folder, BATCH, PLANNED)
    watermark, windows = advancer(folder, log), query()
    watermark.advance(windows, DUE_MS, log.ends())
    begin_again(windows)
    watermark.advance(windows, DUE_MS + 1, log.ends())
    assert ticks(folder) == [DUE_MS + SKEW_MS, DUE_MS + 1 + SKEW_MS]


def test_a_start_on_an_idle_input_waits_for_what_no_plan_has(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {49: 1, 50: DUE_MS - 1}, ("readings", 1): {59: 1}})
    plan(folder, BATCH, PLANNED)
    windows = query()
    begin_again(windows)
    advancer(folder, log).advance(windows, DUE_MS + 100, log.ends())
    assert ticks(folder) == [DUE_MS - 1 + SKEW_MS]


def test_before_the_first_plan_of_all_there_is_nothing_to_end(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {}})
    watermark, windows = advancer(folder, log), query()
    begin_again(windows)
    assert not watermark.is_worth_checking(windows)
    watermark.advance(windows, DUE_MS, log.ends())
    assert ticks(folder) == []


def test_it_is_worth_checking_once_for_each_batch(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {49: 1, 50: DUE_MS}, ("readings", 1): {59: 1, 60: 1}})
    watermark = advancer(folder, log)
    plan(folder, BATCH, PLANNED)
    assert not watermark.is_worth_checking(query())  # as long as nothing has told the time
    watermark.advance(query(), None, log.ends())
    assert not watermark.is_worth_checking(query())
    plan(folder, BATCH + 1, PLANNED)
    assert watermark.is_worth_checking(query())
    assert not watermark.is_worth_checking(query(state_rows=0))


def test_a_start_takes_the_time_from_the_newest_record(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {49: DUE_MS}, ("readings", 1): {59: 1}})
    watermark, windows = advancer(folder, log), query()
    plan(folder, BATCH, PLANNED)
    assert watermark.now_ms() is None
    watermark.advance(windows, watermark.now_ms(), log.ends())
    assert (ticks(folder), watermark.now_ms()) == ([], DUE_MS)
    watermark.advance(windows, watermark.now_ms(), log.ends())
    assert ticks(folder) == [DUE_MS + SKEW_MS]


def test_a_driver_whose_clock_is_an_hour_ahead_ends_no_window_early(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 3_600_000_000_000)
    log = Log({("readings", 0): {49: DUE_MS - 1}, ("readings", 1): {59: 1}})
    watermark, windows = advancer(folder, log), query()
    plan(folder, BATCH, PLANNED)
    for _ in range(3):
        watermark.advance(windows, watermark.now_ms(), log.ends())
    assert ticks(folder) == []


def test_a_broker_whose_clock_is_an_hour_ahead_moves_no_others_windows(folder: CheckpointFolder) -> None:
    log = Log({("readings", 0): {49: 1, 50: DUE_MS + 3_600_000}, ("readings", 1): {59: 1}}, held_ms=3_600_000)
    watermark, windows = advancer(folder, log), query()
    windows.newest_appended_ms = DUE_MS - 1
    plan(folder, BATCH, PLANNED)
    watermark.advance(windows, 1, log.ends())
    watermark.advance(windows, watermark.now_ms(), log.ends())
    assert ticks(folder) == []


@pytest.mark.parametrize("partitions", [1, 128])
def test_unreadable_records_in_every_partition_stop_nothing(folder: CheckpointFolder, partitions: int) -> None:
    log = Log({("readings", number): {50: DUE_MS} for number in range(partitions)})
    watermark, windows = advancer(folder, log), query()
    windows.newest_appended_ms = DUE_MS
    plan(folder, BATCH, {("readings", number): 50 for number in range(partitions)})
    log.unreadable = True
    watermark.advance(windows, DUE_MS, log.ends())
    assert ticks(folder) == [DUE_MS + SKEW_MS]


def test_nothing_is_urgent_before_a_window_can_end(folder: CheckpointFolder) -> None:
    log, hurried = Log({("readings", 0): {49: 1, 50: 2}, ("readings", 1): {59: 1}}), list[int]()
    plan(folder, BATCH, PLANNED)
    advancer(folder, log, hurried).advance(query(), DUE_MS - 1, log.ends())
    assert hurried == []


def test_a_window_that_can_end_is_urgent_until_its_batch_has_been_planned(folder: CheckpointFolder) -> None:
    """First the readings that no batch has, then the batch with the tick; the one after it writes the window.

    The tick may come while Spark plans batch 9 and has listed the clock already: batch 10 takes it, and must not wait.
    """
    log, hurried = Log({("readings", 0): {49: 1, 50: DUE_MS - 1}, ("readings", 1): {59: 1}}), list[int]()
    watermark = advancer(folder, log, hurried)
    plan(folder, BATCH, PLANNED)
    watermark.advance(query(), DUE_MS, log.ends())
    assert (hurried, ticks(folder)) == ([BATCH], [])
    plan(folder, BATCH + 1, {**PLANNED, ("readings", 0): 51})
    watermark.advance(query(), DUE_MS + 100, log.ends())
    assert (hurried, ticks(folder)) == ([BATCH, BATCH + 3], [DUE_MS + 100 + SKEW_MS])
    watermark.advance(query(), DUE_MS + 200, log.ends())
    assert hurried == [BATCH, BATCH + 3]
