from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from aggregator_plans import GivenPlans

from isotherm.aggregator.checkpoint.writer_schema_cache import WriterSchemaCache
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.kafka.clock_topic import Clock
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.progress import Progress
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.query_plans import QueryPlans
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


class Given(GivenPlans):
    """The plans of the windowed query, and the ticks that were written for it."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks: list[int] = []

    def tick(self, event_time_ms: int) -> None:
        self.ticks.append(event_time_ms)


@pytest.fixture
def given() -> Given:
    return Given()


def plan(given: Given, batch_id: int, ends: Mapping[Partition, int]) -> None:
    """Plan a batch, as Spark does before it begins."""
    given.add(batch_id, ends)


def query(*, state_rows: int = 1) -> SupervisedQuery:
    """The windowed query after its batch 6, of which nothing but the watermark and the open windows count."""
    windows = SupervisedQuery("windows", lambda: pytest.fail("nobody starts it"), cast(QueryPlans, Given()), {})
    windows.last = Progress(BATCH - 1, "t", 10, 1, WATERMARK_MS, {}, state_rows, 0, {})
    return windows


def begin_again(windows: SupervisedQuery) -> None:
    """Restart the query with nothing to read; return all that Spark 4.2.0 reports then."""
    idle = {
        "batchId": BATCH + 1,
        "timestamp": "t",
        "sources": [{"description": "KafkaV2[Subscribe[readings]]", "numInputRows": 0, "endOffset": None}],
        "stateOperators": [],
        "eventTime": {},
    }
    windows.starts += 1
    windows.last = Progress.parse(json.dumps(idle))


def advancer(given: Given, log: Log, hurried: list[int] | None = None) -> WatermarkAdvancer:
    """An advancer that notes in `hurried` up to which batch nothing may wait."""
    settings = AggregatorSettings(
        checkpoint_dir="c",
        window_ms=WINDOW_MS,
        allowed_lateness_ms=5_000,
        max_skew_ms=SKEW_MS,
        max_publish_delay_ms=4_000,
        read_margin_ms=1_000,
    )
    return WatermarkAdvancer(
        settings,
        given,
        cast(Clock, given),
        cast(Broker, log),
        cast(WriterSchemaCache, Schemas()),
        BrokerClock(lambda: 0.0),
        ([] if hurried is None else hurried).append,
    )


def ticks(given: Given) -> list[int]:
    return given.ticks


def test_a_plan_of_a_running_batch_is_enough(given: Given) -> None:
    log = Log({("readings", 0): {49: DUE_MS - 1}, ("readings", 1): {59: DUE_MS - 1, 60: DUE_MS + 5}})
    plan(given, BATCH, PLANNED)
    advancer(given, log).advance(query(), DUE_MS + 100, log.ends())
    assert log.asked == [PLANNED]
    assert ticks(given) == [DUE_MS + 5 + SKEW_MS]


def test_a_record_taken_in_before_that_no_plan_has_holds_time_back(given: Given) -> None:
    log = Log({("readings", 0): {49: 1, 50: DUE_MS - 1}, ("readings", 1): {60: DUE_MS + 5}})
    plan(given, BATCH, PLANNED)
    watermark = advancer(given, log)
    watermark.advance(query(), DUE_MS + 100, log.ends())
    assert ticks(given) == []
    plan(given, BATCH + 1, {**PLANNED, ("readings", 0): 51})
    watermark.advance(query(), DUE_MS + 200, log.ends())
    assert ticks(given) == [DUE_MS + 5 + SKEW_MS]


def test_one_tick_ends_one_window(given: Given) -> None:
    log = Log({("readings", 0): {49: 1}, ("readings", 1): {59: 1}})
    plan(given, BATCH, PLANNED)
    watermark = advancer(given, log)
    for asked_at_ms in (DUE_MS - 1, DUE_MS, DUE_MS + 100):
        watermark.advance(query(), asked_at_ms, log.ends())
    assert ticks(given) == [DUE_MS + SKEW_MS]


def test_without_a_plan_or_an_open_window_time_stands_still(given: Given) -> None:
    log = Log({("readings", 0): {}})
    advancer(given, log).advance(query(), DUE_MS, log.ends())
    plan(given, BATCH, PLANNED)
    advancer(given, log).advance(query(state_rows=0), DUE_MS, log.ends())
    assert ticks(given) == []


def test_a_start_on_an_idle_input_ends_what_the_one_before_left_open(given: Given) -> None:
    log = Log({("readings", 0): {49: 1}, ("readings", 1): {59: 1}})
    plan(given, BATCH, PLANNED)
    watermark, windows = advancer(given, log), query()
    begin_again(windows)
    watermark.advance(windows, DUE_MS, log.ends())
    assert ticks(given) == [DUE_MS + SKEW_MS]

    plan(given, BATCH + 1, PLANNED)
    assert not watermark.is_worth_checking(query(state_rows=0))
    watermark.advance(windows, DUE_MS + 1, log.ends())
    assert ticks(given) == [DUE_MS + SKEW_MS]
    watermark.advance(windows, DUE_MS + WINDOW_MS, log.ends())
    assert ticks(given) == [DUE_MS + SKEW_MS, DUE_MS + WINDOW_MS + SKEW_MS]


def test_every_start_has_its_first_tick_at_once(given: Given) -> None:
    """A start may have ended windows by a tick, and have been stopped before the batch that writes them."""
    log = Log({("readings", 0): {49: 1}, ("readings", 1): {59: 1}})
    plan(given, BATCH, PLANNED)
    watermark, windows = advancer(given, log), query()
    watermark.advance(windows, DUE_MS, log.ends())
    begin_again(windows)
    watermark.advance(windows, DUE_MS + 1, log.ends())
    assert ticks(given) == [DUE_MS + SKEW_MS, DUE_MS + 1 + SKEW_MS]


def test_a_start_on_an_idle_input_waits_for_what_no_plan_has(given: Given) -> None:
    log = Log({("readings", 0): {49: 1, 50: DUE_MS - 1}, ("readings", 1): {59: 1}})
    plan(given, BATCH, PLANNED)
    windows = query()
    begin_again(windows)
    advancer(given, log).advance(windows, DUE_MS + 100, log.ends())
    assert ticks(given) == [DUE_MS - 1 + SKEW_MS]


def test_before_the_first_plan_of_all_there_is_nothing_to_end(given: Given) -> None:
    log = Log({("readings", 0): {}})
    watermark, windows = advancer(given, log), query()
    begin_again(windows)
    assert not watermark.is_worth_checking(windows)
    watermark.advance(windows, DUE_MS, log.ends())
    assert ticks(given) == []


def test_it_is_worth_checking_once_for_each_batch(given: Given) -> None:
    log = Log({("readings", 0): {49: 1, 50: DUE_MS}, ("readings", 1): {59: 1, 60: 1}})
    watermark = advancer(given, log)
    plan(given, BATCH, PLANNED)
    assert not watermark.is_worth_checking(query())  # as long as nothing has told the time
    watermark.advance(query(), None, log.ends())
    assert not watermark.is_worth_checking(query())
    plan(given, BATCH + 1, PLANNED)
    assert watermark.is_worth_checking(query())
    assert not watermark.is_worth_checking(query(state_rows=0))


def test_a_start_takes_the_time_from_the_newest_record(given: Given) -> None:
    log = Log({("readings", 0): {49: DUE_MS}, ("readings", 1): {59: 1}})
    watermark, windows = advancer(given, log), query()
    plan(given, BATCH, PLANNED)
    assert watermark.now_ms() is None
    watermark.advance(windows, watermark.now_ms(), log.ends())
    assert (ticks(given), watermark.now_ms()) == ([], DUE_MS)
    watermark.advance(windows, watermark.now_ms(), log.ends())
    assert ticks(given) == [DUE_MS + SKEW_MS]


def test_a_driver_whose_clock_is_an_hour_ahead_ends_no_window_early(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 3_600_000_000_000)
    log = Log({("readings", 0): {49: DUE_MS - 1}, ("readings", 1): {59: 1}})
    watermark, windows = advancer(given, log), query()
    plan(given, BATCH, PLANNED)
    for _ in range(3):
        watermark.advance(windows, watermark.now_ms(), log.ends())
    assert ticks(given) == []


def test_a_broker_whose_clock_is_an_hour_ahead_moves_no_others_windows(given: Given) -> None:
    log = Log({("readings", 0): {49: 1, 50: DUE_MS + 3_600_000}, ("readings", 1): {59: 1}}, held_ms=3_600_000)
    watermark, windows = advancer(given, log), query()
    windows.newest_appended_ms = DUE_MS - 1
    plan(given, BATCH, PLANNED)
    watermark.advance(windows, 1, log.ends())
    watermark.advance(windows, watermark.now_ms(), log.ends())
    assert ticks(given) == []


@pytest.mark.parametrize("partitions", [1, 128])
def test_unreadable_records_in_every_partition_stop_nothing(given: Given, partitions: int) -> None:
    log = Log({("readings", number): {50: DUE_MS} for number in range(partitions)})
    watermark, windows = advancer(given, log), query()
    windows.newest_appended_ms = DUE_MS
    plan(given, BATCH, {("readings", number): 50 for number in range(partitions)})
    log.unreadable = True
    watermark.advance(windows, DUE_MS, log.ends())
    assert ticks(given) == [DUE_MS + SKEW_MS]


def test_nothing_is_urgent_before_a_window_can_end(given: Given) -> None:
    log, hurried = Log({("readings", 0): {49: 1, 50: 2}, ("readings", 1): {59: 1}}), list[int]()
    plan(given, BATCH, PLANNED)
    advancer(given, log, hurried).advance(query(), DUE_MS - 1, log.ends())
    assert hurried == []


def test_a_window_that_can_end_is_urgent_until_its_batch_has_been_planned(given: Given) -> None:
    """First the readings that no batch has, then the batch with the tick; the one after it writes the window.

    The tick may come while Spark plans batch 9 and has listed the clock already: batch 10 takes it, and must not wait.
    """
    log, hurried = Log({("readings", 0): {49: 1, 50: DUE_MS - 1}, ("readings", 1): {59: 1}}), list[int]()
    watermark = advancer(given, log, hurried)
    plan(given, BATCH, PLANNED)
    watermark.advance(query(), DUE_MS, log.ends())
    assert (hurried, ticks(given)) == ([BATCH], [])
    plan(given, BATCH + 1, {**PLANNED, ("readings", 0): 51})
    watermark.advance(query(), DUE_MS + 100, log.ends())
    assert (hurried, ticks(given)) == ([BATCH, BATCH + 3], [DUE_MS + 100 + SKEW_MS])
    watermark.advance(query(), DUE_MS + 200, log.ends())
    assert hurried == [BATCH, BATCH + 3]
