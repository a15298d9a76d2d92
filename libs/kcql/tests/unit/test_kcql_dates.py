"""Date patterns, filled in UTC from the event time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.kcql import BadPattern, format_suffix
from isotherm.kcql.dates import epoch_ms, suffix_formatter

MOMENT_MS = 1_769_868_309_123  # 2026-01-31T14:05:09.123Z


@pytest.mark.parametrize(
    ("pattern", "filled"),
    [
        ("-{YYYY.MM.DD}", "-2026.01.31"),
        ("{yyyy-MM-dd}", "2026-01-31"),
        ("{YYYYMMDD}", "20260131"),
        ("_{YYYY}/{MM}_{HH:mm:ss}z", "_2026/01_14:05:09z"),
        ("{YYYY - MM}", "2026 - 01"),
        ("{DD}{DD}", "3131"),
        ("-v1", "-v1"),
        ("MM", "MM"),
    ],
)
def test_filling(pattern: str, filled: str) -> None:
    assert format_suffix(pattern, MOMENT_MS) == filled
    assert suffix_formatter(pattern)(MOMENT_MS) == filled
    assert suffix_formatter(pattern, "{readings}")(MOMENT_MS) == "{readings}" + filled


def test_the_date_is_that_of_utc() -> None:
    in_sydney = datetime(2026, 2, 1, 0, 30, tzinfo=timezone(timedelta(hours=11)))
    assert format_suffix("{YYYY-MM-dd}", in_sydney) == "2026-01-31"
    assert format_suffix("{YYYY-MM-dd HH}", datetime(2026, 2, 1)) == "2026-02-01 00"  # naive is UTC
    assert format_suffix("{YYYY.MM.DD}", -1) == "1969.12.31"


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [
        ("{", "{"),
        ("a}", "}"),
        ("{YYYY}}", "}"),
        ("{{YYYY}", "{"),
        ("{}", "{}"),
        ("{-}", "-"),
        ("{YYYY-}", "YYYY-"),
        ("{YYYYY}", "Y"),
        ("{yy}", "yy"),
        ("{YYYY.Q}", "Q"),
        ("{YYYY1}", "1"),
        ("{YYYY-ww-DD}", "ww"),
    ],
)
def test_refused(pattern: str, wrong: str) -> None:
    with pytest.raises(BadPattern) as caught:
        format_suffix(pattern, 0)
    assert pattern[caught.value.start : caught.value.end] == wrong


@pytest.mark.parametrize("time_ms", [10**17, -(10**17)])
def test_times_that_no_calendar_has(time_ms: int) -> None:
    with pytest.raises(OverflowError):
        format_suffix("{YYYY}", time_ms)


@given(
    st.datetimes(timezones=st.timezones()),
    st.sampled_from(["{YYYY}", "-{YYYY.MM}", "{YYYYMMDD}", "{HH}", "{YYYY-MM-DD HH:mm}", "{mm:ss}"]),
)
def test_remembered_dates_are_the_same_as_fresh_ones(moment: datetime, pattern: str) -> None:
    fill = suffix_formatter(pattern)
    try:
        expected = format_suffix(pattern, moment)
    except OverflowError:
        return
    assert fill(moment) == fill(epoch_ms(moment)) == expected
    assert epoch_ms(moment) == (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
