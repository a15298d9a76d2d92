"""Which indices retention removes: only expired ones of the target and date pattern of a statement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.config import files
from isotherm.connector.config.validation import InvalidConfigError, Validated
from isotherm.kcql.dates import format_suffix
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.elasticsearch.indices.retention import (
    ExpiredIndices,
    IndexSeries,
    ListedIndex,
    expired_indices,
)
from isotherm.persisters.sinks.elasticsearch.indices.retention_job import index_series, retention_ms

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
NOW_MS = 1_767_225_600_000  # 2026-01-01
SUFFIXES = [
    "-{YYYY}",
    "-{YYYY.MM}",
    "-{YYYY.MM.DD}",
    ".{yyyy-MM-dd}",
    "_{YYYYMMDD_HH}",
    "-{DD.MM.YYYY}-x",
    "{YYYY}{MM}",
]

bases = st.text(st.sampled_from("abz09-._"), min_size=1, max_size=6)
times = st.integers(0, NOW_MS + 400 * DAY_MS)


def series(suffix: str = "-{YYYY.MM.DD}", base: str = "temperatures") -> IndexSeries:
    return IndexSeries(base, suffix)


@given(bases, st.sampled_from(SUFFIXES), times)
def test_every_record_is_in_the_period_of_its_index(base: str, suffix: str, event_time_ms: int) -> None:
    end = IndexSeries(base, suffix).end_ms(base + format_suffix(suffix, event_time_ms))
    assert end is not None
    assert end > event_time_ms
    next_index = format_suffix(suffix, end)
    assert next_index != format_suffix(suffix, end - 1), "a period ends where the name changes"


@given(bases, bases, st.sampled_from(SUFFIXES), times, st.integers(1, 30))
def test_nothing_else_than_old_indices_of_the_family_is_ever_taken(
    base: str, other: str, suffix: str, event_time_ms: int, days: int
) -> None:
    name = other + format_suffix(suffix, event_time_ms)
    found = expired_indices(
        [IndexSeries(base, suffix)], [ListedIndex(name, True)], now_ms=NOW_MS, retention_ms=days * DAY_MS
    )
    if found.expired:
        assert name == base + format_suffix(suffix, event_time_ms)
        assert event_time_ms + days * DAY_MS < NOW_MS


@given(st.text(max_size=30), st.sampled_from(SUFFIXES))
def test_any_name_is_looked_at_safely(name: str, suffix: str) -> None:
    end = IndexSeries("a", suffix).end_ms(name)
    if end is not None:
        assert name == "a" + format_suffix(suffix, end - 1)


@pytest.mark.parametrize(
    "name",
    [
        "temperatures",
        "temperatures-2020.01.01-old",
        "xtemperatures-2020.01.01",
        "temperatures-hourly-2020.01.01",
        "temperatures-2020.1.1",
        "temperatures-2020.02.30",
        "temperatures-2020-01-01",
        "temperatures-2020.01",
        "temperatures-\u0662\u0660\u0662\u0660.\u0660\u0661.\u0660\u0661",
    ],
)
def test_names_that_only_look_alike(name: str) -> None:
    assert expired_indices([series()], [ListedIndex(name, True)], now_ms=NOW_MS, retention_ms=DAY_MS) == ExpiredIndices(
        [], []
    )


def test_seven_days_are_kept_whole() -> None:
    names = ["temperatures-" + format_suffix("{YYYY.MM.DD}", NOW_MS - days * DAY_MS) for days in range(12)]
    kept = 7 * DAY_MS
    at_midnight = expired_indices(
        [series()], [ListedIndex(one, True) for one in names], now_ms=NOW_MS, retention_ms=kept
    )
    assert at_midnight.close == sorted(names[9:]), "records on their way still find their index"
    later = expired_indices(
        [series()], [ListedIndex(one, True) for one in names], now_ms=NOW_MS + HOUR_MS, retention_ms=kept
    )
    assert later.close == sorted(names[8:])


def test_open_ones_are_closed_and_closed_ones_deleted() -> None:
    indices = [ListedIndex("temperatures-2020.01.01", True), ListedIndex("temperatures-2020.01.02", False)]
    found = expired_indices([series()], indices, now_ms=NOW_MS, retention_ms=DAY_MS)
    assert found == ExpiredIndices(["temperatures-2020.01.01"], ["temperatures-2020.01.02"])


@pytest.mark.parametrize("suffix", ["-x", "-{MM.DD}", "-{YYYY.DD}", "-{YYYY.MM.DD.ss}"])
def test_a_suffix_that_does_not_tell_the_age(suffix: str) -> None:
    assert series(suffix).unsuitable is not None
    assert series(suffix).end_ms("temperatures" + format_suffix(suffix, 0)) is None


def elastic(kcql: str, **more: str) -> Validated:
    base = {"name": "n", "connector.class": "elastic", "topics": "t", "kcql": kcql}
    return check(
        installed_sinks()["elasticsearch"],
        files.from_mapping(base | {k.replace("__", "."): v for k, v in more.items()}),
    )


def test_the_keys_of_retention() -> None:
    dated = "INSERT INTO a SELECT * FROM t WITHINDEXSUFFIX -{YYYY.MM.DD}; INSERT INTO b SELECT * FROM t"
    found = elastic(dated, retention__days="7", connect__elastic__tableprefix="p_")
    assert index_series(found) == [IndexSeries("p_a", "-{YYYY.MM.DD}")]
    assert retention_ms(found) == 7 * DAY_MS
    assert retention_ms(elastic(dated)) is None
    capitals = "INSERT INTO indexA SELECT * FROM t WITHINDEXSUFFIX -Day-{YYYY-MM-dd}-Z"
    (lowered,) = index_series(elastic(capitals, connect__elastic__tableprefix="P_"))
    assert lowered == IndexSeries("p_indexa", "-day-{YYYY-MM-dd}-z"), "as the sink names them"
    only_reports = elastic(dated, retention__days="7", retention__dry__run="true")
    assert retention_ms(only_reports) is None, "what is not deleted is not filtered either"


@pytest.mark.parametrize(
    ("kcql", "expected"),
    [
        ("INSERT INTO a SELECT * FROM t", "there are no dated indices"),
        ("INSERT INTO _key SELECT * FROM t WITHINDEXSUFFIX -{YYYY}", "there are no dated indices"),
        ("INSERT INTO a SELECT * FROM t WITHINDEXSUFFIX -{MM.DD}", "begin with the year"),
    ],
)
def test_retention_without_dated_indices_is_refused(kcql: str, expected: str) -> None:
    with pytest.raises(InvalidConfigError, match=expected):
        elastic(kcql, retention__days="7")
