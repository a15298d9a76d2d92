"""Schedules, means of groups and combinations: the engine against naive models, and their forms in files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from isotherm.alerts.engine.combinations import find
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState, MetricState, decode, encode
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules import texts
from isotherm.alerts.rules.catalog import Rule, definition_of, rule_of, rules_in
from isotherm.alerts.rules.comparisons import CombinedRule, conditions_it_needs
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.group_means import GroupMean, GroupMeans
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.alerts.rules.schedule import WEEKDAYS, Schedule

MINUTE = 60_000
NOON = int(datetime(2026, 3, 25, 12, tzinfo=UTC).timestamp() * 1000)
"""A Wednesday."""
RULE: TypeAdapter[Rule] = TypeAdapter(Rule)


class Device:
    """One device and the rules that judge it."""

    def __init__(self, *rules: dict[str, Any], means: GroupMeans | None = None, region: str | None = "north") -> None:
        book = RuleBook([RULE.validate_python(one) for one in rules])
        table = DeviceTable(book, {})
        table.put("d", {"home": "h1", "region": region, "model": None, "thresholds": {}})
        self.engine = RuleEngine(book, table.default_bounds, 0, means=GroupMeans() if means is None else means)
        self.known, self.state, self.sequence = table.get("d"), DeviceRuleState(), 0

    def read(self, metric: str, value: float, at_ms: int) -> list[AlertRecord]:
        """The alerts that follow from a reading; the state passes the changelog."""
        self.sequence += 1
        reading = Reading("d", metric, value, "Cel", at_ms, at_ms, self.sequence)
        alerts = self.engine.apply(self.state, reading, self.known) or []
        self.state = decode(encode(self.state, None))
        return alerts


def states(alerts: list[AlertRecord]) -> list[str]:
    return [one["state"] for one in alerts]


TIMES = st.tuples(st.integers(0, 23), st.integers(0, 59))
PERIODS = st.tuples(st.lists(st.sampled_from(WEEKDAYS), min_size=1, unique=True), TIMES, TIMES).filter(
    lambda one: one[1] != one[2]
)
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Australia/Lord_Howe"]
)


@given(ZONES, st.lists(PERIODS, min_size=1, max_size=3), st.integers(0, 2_000_000_000_000))
def test_a_schedule_is_the_local_clock(zone: str, periods: list[Any], at_ms: int) -> None:
    texts_of = [
        {"weekdays": days, "begin": f"{b[0]:02}:{b[1]:02}", "end": f"{e[0]:02}:{e[1]:02}"} for days, b, e in periods
    ]
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)).astimezone(ZoneInfo(zone))

    def holds(days: list[str], begin: tuple[int, int], end: tuple[int, int]) -> bool:
        today, time = WEEKDAYS[local.weekday()] in days, (local.hour, local.minute)
        if begin < end:
            return today and begin <= time < end
        yesterday = WEEKDAYS[local.weekday() - 1] in days
        return (today and time >= begin) or (yesterday and time < end)

    schedule = Schedule.model_validate({"timezone": zone, "periods": texts_of})
    assert schedule.contains(at_ms) == any(holds(*one) for one in periods)


@pytest.mark.parametrize(
    ("at", "is_open"),
    [
        ("2026-03-29T00:59:00+00:00", False),  # 01:59 in Berlin; a minute later it is 03:00
        ("2026-03-29T01:00:00+00:00", True),
        ("2026-10-25T00:30:00+00:00", False),  # 02:30 in summer time
        ("2026-10-25T01:30:00+00:00", False),  # 02:30 again
        ("2026-10-25T02:00:00+00:00", True),
    ],
)
def test_summer_time_moves_a_schedule(at: str, is_open: bool) -> None:
    schedule = Schedule.model_validate({"timezone": "Europe/Berlin", "periods": [{"begin": "03:00", "end": "04:00"}]})
    assert schedule.contains(int(datetime.fromisoformat(at).timestamp() * 1000)) is is_open


def test_a_schedule_knows_times_of_no_calendar() -> None:
    schedule = Schedule.model_validate({"timezone": "UTC", "periods": [{}]})
    assert schedule.contains(0)
    assert not schedule.contains(2**62)
    assert not schedule.contains(-(2**62))


OFFICE = {
    "timezone": "Europe/Berlin",
    "periods": [{"weekdays": ["mon", "tue", "wed", "thu", "fri"], "begin": "08:00", "end": "18:00"}],
}


def test_outside_of_the_schedule_opens_and_the_schedule_closes() -> None:
    rule = {"kind": "outside-schedule", "metric": "brightness", "threshold": 50, "hysteresis": 10, "schedule": OFFICE}
    device = Device(rule)
    assert device.read("brightness", 80, NOON) == []
    (opened,) = device.read("brightness", 80, NOON + 6 * 60 * MINUTE)  # 19:00
    assert (opened["state"], opened["rule"], opened["metric"], opened["value"]) == (
        "opened",
        "outside-schedule",
        "brightness",
        80.0,
    )
    assert device.read("brightness", 45, NOON + 7 * 60 * MINUTE) == []
    assert states(device.read("brightness", 60, NOON + 20 * 60 * MINUTE)) == ["closed"]  # the next day, 09:00
    assert device.engine.quiet_bounds("brightness", device.known)[1] == 50  # type: ignore[index]  # it has bounds


def test_a_device_is_compared_with_the_mean_of_its_group() -> None:
    means = GroupMeans()
    rule = {"kind": "off-group-mean", "metric": "temperature", "group": "region", "threshold": 5, "hysteresis": 1}
    device = Device(rule, means=means)
    assert device.read("temperature", 40, NOON) == []  # No mean is known.
    means.put(("region", "north", "temperature"), GroupMean(NOON, 1, 20.0, 2))
    assert device.read("temperature", 40, NOON + 1) == []  # Two devices are too few.
    means.put(("region", "north", "temperature"), GroupMean(NOON, 2, 20.0, 3))
    (opened,) = device.read("temperature", 14.5, NOON + 2)
    assert (opened["state"], opened["value"], opened["threshold"]) == ("opened", 5.5, 5.0)
    assert device.read("temperature", 20, NOON + 3_600_001) == []  # The mean is too old to close it.
    means.put(("region", "north", "temperature"), GroupMean(NOON + 3_600_000, 1, 20.0, 3))
    means.put(("region", "north", "temperature"), GroupMean(NOON, 9, 70.0, 3))  # An older window
    assert device.read("temperature", 24.5, NOON + 3_600_002) == []
    assert states(device.read("temperature", 24, NOON + 3_600_003)) == ["closed"]
    assert device.engine.quiet_bounds("temperature", device.known) is None


def test_the_means_are_bounded() -> None:
    means = GroupMeans(max_groups=1)
    assert means.put(("home", "a", "t"), GroupMean(1, 1, 1.0, 3))
    assert not means.put(("home", "b", "t"), GroupMean(1, 1, 1.0, 3))
    assert means.put(("home", "a", "t"), GroupMean(2, 1, 2.0, 3))
    assert (len(means), means.get("home", "b", "t")) == (1, None)


HOT = {"kind": "above", "metric": "a", "threshold": 10, "hysteresis": 2}
DARK = {"kind": "below", "metric": "b", "threshold": 5}
WITHIN = {"kind": "within-schedule", "schedule": OFFICE}


@given(
    st.sampled_from(["all", "any"]),
    st.sampled_from(["all", "any"]),
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 14), st.integers(0, 2)), max_size=40),
)
def test_a_combination_is_what_a_naive_model_says(
    outer: str, inner: str, minutes: int, steps: list[tuple[str, int, int]]
) -> None:
    very = {"kind": "above", "metric": "b", "threshold": 12}
    part = {"kind": inner, "conditions": [DARK, very]}
    device = Device({"kind": outer, "name": "both", "conditions": [HOT, part], "for_ms": minutes * MINUTE})
    fold = {"all": all, "any": any}
    values: dict[str, int] = {}
    at_ms, since, opened = NOON, None, None
    for metric, value, gap in steps:
        at_ms += gap * MINUTE + 1
        values[metric] = value
        found = states(device.read(metric, value, at_ms))

        def holds(relaxed: int) -> bool:
            b = values.get("b")
            hot = "a" in values and values["a"] > 10 - relaxed
            return fold[outer]([hot, b is not None and fold[inner]([b < 5, b > 12])])

        expected = []
        if opened is not None:
            if not holds(2):
                expected, opened, since = ["closed"], None, None
        elif not holds(0):
            since = None
        else:
            since = at_ms if since is None else since
            if at_ms - since >= minutes * MINUTE:
                expected, opened = ["opened"], since
        assert found == expected


CONDITIONS = st.sampled_from([HOT, DARK, HOT | {"threshold": 5}, WITHIN])
PARTS = st.one_of(
    CONDITIONS,
    st.builds(
        lambda kind, conditions: {"kind": kind, "conditions": conditions},
        st.sampled_from(["all", "any"]),
        st.lists(CONDITIONS, min_size=1, max_size=3),
    ),
)


@given(
    st.sampled_from(["all", "any"]),
    st.lists(PARTS, min_size=1, max_size=3),
    st.tuples(st.integers(0, 14), st.integers(0, 14), st.integers(0, 23)),
)
def test_a_combination_never_holds_while_a_metric_that_it_needs_is_within_its_bounds(
    kind: str, parts: list[Any], world: tuple[int, int, int]
) -> None:
    assume("threshold" in json.dumps(parts))
    rule = rule_of(json.dumps({"kind": kind, "name": "x", "conditions": parts}))
    assert isinstance(rule, CombinedRule)
    a, b, hour = world
    at_ms = NOON + hour * 60 * MINUTE
    values = {"a": MetricState(event_time_ms=at_ms, value=a), "b": MetricState(event_time_ms=at_ms, value=b)}
    for metric, value in (("a", a), ("b", b)):
        needed = conditions_it_needs(rule, metric)
        is_beyond = [value > one.threshold if one.kind == "above" else value < one.threshold for one in needed]
        if needed and not any(is_beyond):
            assert not find(rule, values, at_ms).breaking


@pytest.mark.parametrize(
    ("rule", "of_a", "of_b"),
    [
        ({"kind": "all", "conditions": [HOT, DARK]}, [10], [5]),
        ({"kind": "all", "conditions": [HOT, WITHIN]}, [10], []),
        ({"kind": "any", "conditions": [HOT, DARK]}, [], []),
        ({"kind": "any", "conditions": [HOT, {"kind": "all", "conditions": [HOT, DARK]}]}, [10, 10], []),
        ({"kind": "all", "conditions": [HOT, {"kind": "any", "conditions": [DARK, WITHIN]}]}, [10], []),
    ],
)
def test_a_combination_needs_the_metrics_without_which_it_cannot_hold(
    rule: dict[str, Any], of_a: list[float], of_b: list[float]
) -> None:
    combined = rule_of(json.dumps({"name": "x", **rule}))
    assert isinstance(combined, CombinedRule)
    assert [one.threshold for one in conditions_it_needs(combined, "a")] == of_a
    assert [one.threshold for one in conditions_it_needs(combined, "b")] == of_b


def test_a_value_that_is_too_old_counts_no_more() -> None:
    rule = {"kind": "all", "name": "both", "conditions": [HOT, DARK], "max_age_ms": 10 * MINUTE}
    device = Device(rule)
    device.read("a", 20, NOON)
    assert states(device.read("b", 1, NOON + 10 * MINUTE)) == ["opened"]
    assert states(device.read("b", 1, NOON + 10 * MINUTE + 1)) == ["closed"]


def test_an_earlier_reading_of_another_metric_opens_nothing_twice() -> None:
    device = Device({"kind": "any", "name": "either", "conditions": [HOT, DARK]})
    ids = [one["alert_id"] for one in device.read("a", 20, NOON)]
    device.read("b", 9, NOON - 5)
    assert states(device.read("a", 1, NOON + 10)) == ["closed"]
    ids += [one["alert_id"] for one in device.read("b", 1, NOON + 3)]
    assert ids == [f"d/either/{NOON}", f"d/either/{NOON + 10}"]


@given(
    st.lists(st.sampled_from([HOT, DARK]), min_size=1, max_size=3), st.sampled_from(["all", "any"]), st.integers(0, 9)
)
def test_a_rule_survives_its_form(conditions: list[Any], kind: str, for_ms: int) -> None:
    for given_ in (
        {
            "kind": kind,
            "name": "x",
            "conditions": [*conditions, {"kind": "any", "conditions": conditions}],
            "for_ms": for_ms,
        },
        {"kind": "outside-schedule", "metric": "m", "threshold": for_ms, "schedule": OFFICE, "text": "{device:}{{"},
        {"kind": "off-group-mean", "metric": "m", "threshold": for_ms + 1, "group": "home", "severity": "info"},
        {"kind": "rate", "metric": "m", "threshold": for_ms + 1},
        {"kind": "silent", "intervals": for_ms + 2},
    ):
        rule = rule_of(json.dumps(given_))
        assert rule_of(definition_of(rule)) == rule
        assert rule_of(definition_of(rule)).version == rule.version


MEAN = {"kind": "off-group-mean", "metric": "m", "threshold": 1, "group": "home"}
LATE = {"kind": "outside-schedule", "metric": "m", "threshold": 1, "schedule": OFFICE}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"kind": "all", "name": "x", "conditions": []}, "conditions.*at least 1"),
        ({"kind": "all", "name": "silent", "conditions": [HOT]}, "'silent' is not allowed"),
        ({"kind": "all", "conditions": [HOT]}, "name: Field required"),
        ({"kind": "any", "name": "x", "conditions": [WITHIN]}, "about a metric"),
        (HOT | {"text": "{value.real}"}, "{value.real} is not allowed"),
        (HOT | {"text": "{value:999999999d}"}, "is not allowed"),
        (HOT | {"text": "{value"}, "expected '}'"),
        (LATE | {"schedule": OFFICE | {"timezone": "Mars"}}, "'Mars' is not a time zone"),
        (LATE | {"schedule": {"timezone": "UTC", "periods": [{"begin": "25:00"}]}}, "begin = '25:00'"),
        (LATE | {"schedule": {"timezone": "UTC", "periods": [{"begin": "01:00", "end": "01:00"}]}}, "both 01:00"),
        (MEAN | {"hysteresis": 1}, "below the threshold"),
        (MEAN | {"group": "room"}, "group = 'room'"),
        ({"kind": "warm"}, "'outside-schedule'"),
        ([], "dict"),
    ],
)
def test_what_cannot_be_used_is_named(rule: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rule_of(json.dumps(rule))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[rules]]\nkind = 'warm'", "rule 1: "),
        ("x = 1", "'x' is not allowed"),
        ("rules = 3", "at most 1000"),
        ("=", "Invalid"),
    ],
)
def test_a_file_of_rules_that_cannot_be_used_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rules_in(text)


def test_a_template_gives_the_text_of_an_alert_that_opens() -> None:
    text = "{{{device}}} {region}/{model}: {value:.1f} {unit} > {threshold}"
    device = Device(HOT | {"metric": "a", "text": text, "severity": "critical"})
    (opened,) = device.read("a", 12.345, NOON)
    assert (opened["message"], opened["severity"]) == ("{d} north/-: 12.3 Cel > 10", "critical")
    (closed,) = device.read("a", 1, NOON + 1)
    assert closed["message"] == "a 1 Cel is no longer above 10.0 Cel"


@given(st.text(max_size=60))
def test_a_template_is_refused_or_renders(template: str) -> None:
    try:
        texts.verify(template)
    except ValueError:
        return
    assert len(texts.render(template, {"value": 1e308, "device": "d" * 10_000})) < 200_000
