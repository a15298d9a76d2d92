"""Pages of a topic: every record once, ordered by time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from console_in_memory import MemoryReader
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.console.records.paging import (
    Page,
    Search,
    SearchBudget,
    positions_of,
    positions_text,
)
from isotherm.console.records.record import Record

Position = tuple[int, int]


def record(partition: int, offset: int, time_ms: int, value: bytes = b"v", key: bytes = b"k") -> Record:
    return Record("t", partition, offset, time_ms, key, value, [])


@st.composite
def readers(draw: st.DrawFn) -> MemoryReader:
    """Up to three partitions with holes, ends behind the last record, and times that rise."""
    ends = draw(st.lists(st.integers(0, 60), min_size=1, max_size=3))
    found = []
    for partition, end in enumerate(ends):
        offsets = draw(st.sets(st.integers(0, end - 1))) if end else set()
        step = draw(st.integers(0, 5))
        found += [record(partition, offset, offset * step) for offset in sorted(offsets)]
    return MemoryReader(found, dict(enumerate(ends)))


def budget(max_bytes: int = 1_000_000) -> SearchBudget:
    return SearchBudget(lambda: 0.0, max_ms=1_000, max_bytes=max_bytes)


def highs(reader: MemoryReader) -> Mapping[int, int]:
    return {partition: of.high for partition, of in reader.bounds.items()}


def lows(reader: MemoryReader) -> Mapping[int, int]:
    return {partition: of.low for partition, of in reader.bounds.items()}


def everything(reader: MemoryReader) -> list[Record]:
    return [one for of in reader.partitions.values() for one in of]


def is_wanted(one: Record) -> bool:
    return one.offset % 3 != 1


def keep(one: Record) -> Record | None:
    return one if is_wanted(one) else None


def positions(page: Page[Record]) -> list[Position]:
    return [(one.partition, one.offset) for one in page.items]


@given(readers(), st.integers(1, 9), st.integers(1, 40))
@settings(max_examples=60)
def test_older_pages_hold_every_wanted_record_once(reader: MemoryReader, limit: int, max_bytes: int) -> None:
    seen: list[Position] = []
    before = highs(reader)
    while True:
        page = Search(reader, keep, budget(max_bytes), limit=limit).older(before)
        assert len(page.items) <= limit
        assert page.newer == before
        assert page.has_older or not page.is_cut
        seen += positions(page)
        if not page.has_older:
            break
        assert page.older != before, "it gets on"
        before = page.older
    assert sorted(seen) == sorted((one.partition, one.offset) for one in everything(reader) if is_wanted(one))
    assert len(set(seen)) == len(seen)


@given(readers(), st.integers(1, 9), st.integers(1, 40))
@settings(max_examples=60)
def test_newer_pages_hold_every_wanted_record_once(reader: MemoryReader, limit: int, max_bytes: int) -> None:
    seen: list[Position] = []
    after = lows(reader)
    while True:
        page = Search(reader, keep, budget(max_bytes), limit=limit).newer(after)
        seen += positions(page)
        if not page.has_newer:
            break
        assert page.newer != after
        after = page.newer
    assert sorted(seen) == sorted((one.partition, one.offset) for one in everything(reader) if is_wanted(one))


@given(readers(), st.integers(1, 9))
@settings(max_examples=60)
def test_a_page_holds_the_newest_the_newest_first(reader: MemoryReader, limit: int) -> None:
    page = Search(reader, keep, budget(), limit=limit).older(highs(reader))
    times = [one.timestamp_ms for one in page.items]
    assert times == sorted((one.timestamp_ms for one in everything(reader) if is_wanted(one)), reverse=True)[:limit]


@given(readers(), st.integers(1, 9))
@settings(max_examples=60)
def test_a_newer_page_leads_back_to_the_first_page(reader: MemoryReader, limit: int) -> None:
    first = Search(reader, keep, budget(), limit=limit).older(highs(reader))
    second = Search(reader, keep, budget(), limit=limit).older(first.older)
    back = Search(reader, keep, budget(), limit=limit).newer(second.newer)
    assert {*positions(back)} >= {*positions(first)} or len(back.items) == limit


def test_a_floor_ends_a_backward_search_early() -> None:
    reader = MemoryReader([record(0, n, n) for n in range(10)])
    page = Search(reader, keep, budget(), limit=50).older({0: 10}, floor={0: 7})
    assert positions(page) == [(0, 9), (0, 8)]
    assert (page.older, page.has_older, page.is_cut) == ({0: 7}, True, False)


def test_records_of_other_keys_are_read_and_not_kept() -> None:
    reader = MemoryReader([record(0, n, n, key=b"a" if n % 2 else b"b") for n in range(10)])
    page = Search(reader, lambda one: one, budget(), limit=3, key_prefix=b"a").older({0: 10})
    assert positions(page) == [(0, 9), (0, 7), (0, 5)]
    assert page.records_read >= 6


def test_large_records_are_read_in_small_chunks() -> None:
    reader = MemoryReader([record(0, n, n, value=b"x" * 9_000_000) for n in range(6)])
    page = Search(reader, lambda one: one, budget(1_000_000_000), limit=4).older({0: 6})
    assert positions(page) == [(0, 5), (0, 4), (0, 3), (0, 2)]


def test_a_search_out_of_time_tells_where_it_continues() -> None:
    now = iter(range(100))
    reader = MemoryReader([record(0, n, n) for n in range(1_000)])
    slow = SearchBudget(lambda: float(next(now)), max_ms=2_000, max_bytes=1_000_000)
    page: Page[Record] = Search(reader, lambda _one: None, slow, limit=10).older({0: 1_000})
    assert (page.items, page.is_cut, page.has_older) == ((), True, True)
    assert page.records_read == 1_000 - page.older[0]


def test_positions_survive_a_link() -> None:
    assert positions_of(positions_text({1: 7, 0: 12})) == {0: 12, 1: 7}
    for wrong in ("", "1", "1:", "a:1", "1:2,", "1:-2"):
        with pytest.raises(ValueError, match="is not a position"):
            positions_of(wrong)
