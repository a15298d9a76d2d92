"""Two aggregators and the boundary between them: each reading is in one result, whatever limits they have."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aggregator_plans import GivenPlans
from hypothesis import given
from hypothesis import strategies as st

from isotherm.aggregator.progress import Progress
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.query_plans import QueryPlans
from isotherm.aggregator.supervision.boundary_end import BoundaryEnd
from isotherm.aggregator.supervision.supervised_query import SupervisedQuery
from isotherm.aggregator.watermark.boundary import Boundary
from isotherm.aggregator.watermark.timeliness import Timeliness

AT_MS, OVERLAP_MS = 6_000_000, 600_000
FORMER = Boundary(AT_MS, is_former=True, overlap_ms=OVERLAP_MS)
SUCCESSOR = Boundary(AT_MS, is_former=False, overlap_ms=OVERLAP_MS)

limits = st.builds(
    Timeliness,
    allowed_lateness_ms=st.integers(0, 200_000),
    max_skew_ms=st.integers(0, 200_000),
    max_publish_delay_ms=st.integers(0, 200_000),
)


def results(
    boundary: Boundary, chosen: Timeliness, window_ms: int, appended_ms: int, ingest_ms: int, event_ms: int
) -> int:
    """In how many results of one aggregator a reading is: windows, the late topic, dead-letter records."""
    is_future = event_ms > ingest_ms + chosen.max_skew_ms
    is_late = event_ms < ingest_ms - chosen.allowed_lateness_ms or appended_ms > ingest_ms + chosen.max_publish_delay_ms
    if is_future or is_late:
        return int(boundary.owns_record(appended_ms, event_ms))
    return int(boundary.owns_window(event_ms // window_ms * window_ms))


@given(
    former=limits,
    successor=limits,
    windows=st.tuples(*[st.sampled_from([10_000, 30_000, 60_000, 120_000])] * 2),
    appended_ms=st.integers(AT_MS - 1_500_000, AT_MS + 1_500_000) | st.integers(AT_MS - 90_000, AT_MS + 90_000),
    delay_ms=st.integers(-50_000, 1_000_000) | st.integers(0, 3_000),
    age_ms=st.integers(-1_000_000, 2_000_000) | st.integers(-90_000, 90_000),
)
def test_each_reading_is_in_one_result(
    former: Timeliness, successor: Timeliness, windows: tuple[int, int], appended_ms: int, delay_ms: int, age_ms: int
) -> None:
    """The ingest service's clock may be ahead of the broker's, within the publish delay that both sides bound."""
    ingest_ms = appended_ms - max(delay_ms, -min(former.max_publish_delay_ms, successor.max_publish_delay_ms))
    event_ms = ingest_ms - age_ms
    found = results(FORMER, former, windows[0], appended_ms, ingest_ms, event_ms)
    found += results(SUCCESSOR, successor, windows[1], appended_ms, ingest_ms, event_ms)
    assert found == 1


@given(st.integers(AT_MS - 2_000_000, AT_MS + 2_000_000))
def test_a_record_without_times_belongs_to_one_of_them(appended_ms: int) -> None:
    assert FORMER.owns_record(appended_ms, None) != SUCCESSOR.owns_record(appended_ms, None)


@given(st.integers(1, 20), st.integers(1, 20))
def test_the_last_window_is_the_last_that_begins_before_the_boundary(slides: int, length: int) -> None:
    slide_ms, window_ms = slides * 1_000, slides * 1_000 * length
    at_ms = AT_MS // slide_ms * slide_ms
    boundary = Boundary(at_ms, is_former=True, overlap_ms=OVERLAP_MS)
    end_ms = boundary.last_window_end_ms(window_ms, slide_ms)
    assert boundary.owns_window(end_ms - window_ms)
    assert not boundary.owns_window(end_ms - window_ms + slide_ms)


def settings(**changes: Any) -> AggregatorSettings:
    return AggregatorSettings(checkpoint_dir="c", **changes)


def test_boundaries_come_from_the_settings() -> None:
    chosen = settings(publish_from="2023-11-14T22:13:00", publish_until="1700003580000")
    assert chosen.boundaries == [
        Boundary(1_699_999_980_000, is_former=False, overlap_ms=600_000),
        Boundary(1_700_003_580_000, is_former=True, overlap_ms=600_000),
    ]
    assert settings().boundaries == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"publish_from": "yesterday"}, "publish_from: 'yesterday' is not allowed: must be a time"),
        ({"publish_until": "1700000000000"}, "must be a multiple of 60000 ms"),
        ({"publish_until": "1700003580000", "boundary_overlap_ms": 100_000}, "must be 165000 or more"),
    ],
)
def test_a_boundary_that_could_lose_readings_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(**changes)


def query(read_to: int, watermark_ms: int = 0, state_rows: int = 1) -> SupervisedQuery:
    made = SupervisedQuery("windows", lambda: pytest.fail("nobody starts it"), cast(QueryPlans, GivenPlans()), {})
    made.read_to = {("t", 0): read_to}
    made.last = Progress(1, "t", 10, 1, watermark_ms, {}, state_rows, 0, {})
    return made


def test_it_ends_when_both_have_read_past_the_boundary_and_the_last_window_is_out() -> None:
    end = BoundaryEnd(FORMER, AT_MS + 60_000, read_margin_ms=5_000)
    ends = {("t", 0): 50}
    done = query(50, AT_MS + 60_000)
    assert not end.is_reached(None, ends, done, query(50))
    assert not end.is_reached(AT_MS + OVERLAP_MS + 4_999, ends, done, query(50))
    assert not end.is_reached(AT_MS + OVERLAP_MS + 5_000, ends, done, query(49))
    # What comes afterwards is the successor's.
    assert not end.is_reached(AT_MS + OVERLAP_MS + 9_000, {("t", 0): 90}, query(50, AT_MS + 59_999), query(50))
    assert end.is_reached(AT_MS + OVERLAP_MS + 9_000, {("t", 0): 90}, done, query(50))
    assert end.is_reached(None, {}, query(50, state_rows=0), query(50))
