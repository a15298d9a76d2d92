"""Which records are read at once and which in groups, as if each of them came by the clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.task.read_pacing import FLOW_PER_S, GROUP_MS, ReadPacing


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
