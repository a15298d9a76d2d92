"""Which records are read at once and which in groups, as if each of them came by the clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.api.record import Record, runs_of
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.persisters.task.read_pacing import FLOW_PER_S, GROUP_MS, ReadPacing, RoomPause
from isotherm.servicekit.backoff import Backoff


def reads(arrivals_ms: Sequence[float], pacing: ReadPacing | None = None) -> list[tuple[float, int]]:
    """When records that come at these times are read, and how many at once, by a task that always reads all."""
    pacing, found, index = pacing or ReadPacing(), list[tuple[float, int]](), 0
    now_ms = 0.0
    while index < len(arrivals_ms):
        now_ms = max(now_ms, arrivals_ms[index])
        now_ms += pacing.wait_ms(now_ms)
        there = sum(1 for at_ms in arrivals_ms[index:] if at_ms <= now_ms)
        index += there
        found.append((now_ms, there))
        pacing.note_read(there, now_ms)
        if pacing.is_flowing:
            pacing.pause(now_ms)
    return found


def steady(per_s: float, seconds: float) -> list[float]:
    return [number * 1_000 / per_s for number in range(int(per_s * seconds))]


@pytest.mark.parametrize("per_s", [1, 20, 30])
def test_few_records_are_read_as_they_come(per_s: float) -> None:
    arrivals = steady(per_s, 30)
    assert reads(arrivals) == [(at_ms, 1) for at_ms in arrivals]


@pytest.mark.parametrize("per_s", [100, 220, 2_000])
def test_records_that_flow_are_read_in_groups(per_s: float) -> None:
    arrivals = steady(per_s, 10)
    later = [records for at_ms, records in reads(arrivals) if at_ms > 1_000]
    assert sum(later) / len(later) >= 0.9 * per_s * GROUP_MS / 1_000


def test_a_record_after_a_silence_is_read_at_once() -> None:
    arrivals = [*steady(500, 5), 20_000.0, 30_000.0]
    assert reads(arrivals)[-2:] == [(20_000.0, 1), (30_000.0, 1)]


@given(st.lists(st.floats(0.0, 2_000.0), max_size=60))
def test_every_record_is_read_within_the_time_of_a_group(gaps_ms: list[float]) -> None:
    arrivals, now_ms = list[float](), 0.0
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        arrivals.append(now_ms)
    found, index = reads(arrivals), 0
    for at_ms, records in found:
        assert at_ms - arrivals[index] <= GROUP_MS + 1e-6
        index += records
    assert index == len(arrivals)


@given(st.integers(0, 100_000))
def test_offsets_of_transactions_count_as_read_only_in_proportion_to_the_flow(records: int) -> None:
    pacing = ReadPacing()
    pacing.note_read(records, 5_000.0)
    assert pacing.open_offsets <= records / 4
    assert pacing.is_flowing == (records >= FLOW_PER_S)


def buffers_with(*waiting: int, at_end: Sequence[int] = ()) -> PartitionBuffers:
    """Buffers of partitions that hold so many records each, of batches of 2; those `at_end` have no more."""
    buffers = PartitionBuffers(BufferLimits(batch_records=2, waiting_records=4 * len(waiting)), Backoff)
    for number, records in enumerate(waiting):
        buffers.assign(("t", number), None, Counts())
        buffers.append(runs_of([Record("t", number, offset, 0, None, b"", ()) for offset in range(records)]), 0.0)
        if number in at_end:
            buffers.by_partition["t", number].end_of_partition = records
    return buffers


def pause_at(buffers: PartitionBuffers, *times_ms: float, written_ms: float = 1_000.0) -> list[bool]:
    """Whether reading stops at these times, after a poll at 1,000 ms and a write at `written_ms`."""
    pause = RoomPause()
    pause.note_poll(1_000.0)
    pause.note_written(written_ms)
    return [pause.is_on(buffers, at_ms) for at_ms in times_ms]


def test_reading_waits_for_room_two_seconds_after_a_write() -> None:
    full, some = buffers_with(3, 3), buffers_with(3, 1)
    assert pause_at(full, 1_000.0, 2_999.0, 3_000.0) == [True, True, False]
    assert pause_at(some, 1_000.0) == [False]
    assert pause_at(buffers_with(), 1_000.0) == [False]
    assert pause_at(full, 2_000.0, written_ms=0.0) == [False], "no write makes room"


def test_writes_without_a_poll_stop_reading_for_two_seconds_at_most() -> None:
    full = buffers_with(3, 3)
    assert pause_at(full, 2_999.0, 3_000.0, written_ms=2_500.0) == [True, False]


def test_a_full_buffer_beside_partitions_without_records_stops_reading_for_a_moment() -> None:
    beside = buffers_with(3, 0, at_end=[1])
    for written_ms in (1_000.0, 1_200.0):
        assert pause_at(beside, 1_200.0, 1_249.0, 1_250.0, written_ms=written_ms) == [True, True, False]
    assert pause_at(buffers_with(3, 0), 1_000.0) == [False], "the other one may have records"


def test_what_would_pause_a_partition_stops_reading_for_a_moment_while_all_are_busy() -> None:
    """Of a total of 16, each may hold 2, and 8 are for all."""
    busy = buffers_with(10, 1, 1, 1)
    assert pause_at(busy, 1_249.0, 1_250.0) == [True, False]
    assert pause_at(buffers_with(9, 1, 1, 1), 1_000.0) == [False]
    assert pause_at(buffers_with(10, 0, 1, 1), 1_000.0) == [False], "one has nothing to write"
    assert pause_at(buffers_with(10, 0, 1, 1, at_end=[1]), 1_000.0) == [True]
    assert len(busy.pause_full()) == 1
    assert pause_at(busy, 1_000.0) == [False], "what is paused cannot be paused"


def test_before_the_first_write_the_first_records_count_as_one() -> None:
    pause, full = RoomPause(), buffers_with(3, 3)
    pause.note_poll(5_000.0)
    assert not pause.is_on(full, 5_000.0)
    pause.note_read(5_000.0)
    pause.note_read(5_500.0)
    assert [pause.is_on(full, at_ms) for at_ms in (5_000.0, 6_999.0, 7_000.0)] == [True, True, False]
