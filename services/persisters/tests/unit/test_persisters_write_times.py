"""The last record of a key wins, whatever the offsets are; a record that is written again changes nothing."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.sinks.cassandra.write_times import WriteTimes


class Written(NamedTuple):
    """One record of a key."""

    key: str
    event_ms: int
    offset: int

    @property
    def own_us(self) -> int:
        """The write time from the record alone."""
        return self.event_ms * 1_000 + self.offset % 1_000


def times_of(times: WriteTimes, records: list[Written]) -> list[int]:
    return [times.behind_earlier(one.key, one.event_ms, one.offset, one.own_us) for one in records]


@st.composite
def topics(draw: st.DrawFn) -> list[Written]:
    steps = draw(st.lists(st.sampled_from([1, 1, 2, 499, 999, 1_000, 1_001]), max_size=40))
    keys, moments = st.sampled_from("ab"), st.integers(5, 7)
    return [Written(draw(keys), draw(moments), offset) for offset in accumulate(steps, initial=998)]


@given(records=topics())
def test_of_the_latest_event_time_the_last_record_wins(records: list[Written]) -> None:
    times = times_of(WriteTimes(), records)
    for key in {one.key for one in records}:
        of_key = [(time_us, one) for time_us, one in zip(times, records, strict=True) if one.key == key]
        expected = max((one for _, one in of_key), key=lambda one: (one.event_ms, one.offset))
        highest_us = max(time_us for time_us, _ in of_key)
        assert [one for time_us, one in of_key if time_us == highest_us] == [expected]


@given(records=topics(), data=st.data())
def test_written_again_from_anywhere_a_record_has_the_write_time_that_it_had(
    records: list[Written], data: st.DataObject
) -> None:
    times = WriteTimes()
    first = times_of(times, records)
    begin = data.draw(st.integers(0, len(records) - 1))
    assert times_of(times, records[begin:]) == first[begin:]
    assert times_of(WriteTimes(), records) == first, "and so it is after a restart that reads all of them again"


def test_a_record_with_a_time_of_its_own_keeps_it() -> None:
    records = [Written("a", 5, 7), Written("a", 5, 8), Written("a", 4, 9), Written("b", 5, 1_000), Written("a", 6, 1)]
    assert times_of(WriteTimes(), records) == [5_007, 5_008, 4_009, 5_000, 6_001]


def test_as_many_keys_are_remembered_as_asked_for_and_no_more_than_twice_as_many() -> None:
    times = WriteTimes(most_keys=10)
    times_of(times, [Written(f"key-{number}", 5, 999) for number in range(30)])
    again = [Written(f"key-{number}", 5, 1_000) for number in (29, 20, 9)]
    assert times_of(times, again) == [6_000, 6_000, 5_000]
