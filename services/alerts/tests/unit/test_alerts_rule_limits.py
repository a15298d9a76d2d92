"""Sources of rules, schedules, means of groups, templates and dry runs at their exact limits."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from pydantic import TypeAdapter

from isotherm.alerts.engine.conditions import evaluate
from isotherm.alerts.engine.device_state import MetricState, RuleState
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.live_rules.dry_run import DryRun
from isotherm.alerts.rules import rule_sources, texts
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.comparisons import OffGroupMeanRule
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.group_means import GroupMean, GroupMeans
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.alerts.rules.rule_sources import FILE, RuleSources
from isotherm.alerts.rules.schedule import Schedule, zone_of

RULE: TypeAdapter[Rule] = TypeAdapter(Rule)
HOT: dict[str, Any] = {"kind": "above", "metric": "t", "threshold": 10, "name": "hot"}
RATE: dict[str, Any] = {"kind": "rate", "metric": "t", "threshold": 5, "hysteresis": 3}


def rule(given: dict[str, Any]) -> Rule:
    return RULE.validate_python(given)


def test_overrides_that_no_rule_can_have_are_refused_with_their_place() -> None:
    book = RuleBook([rule(RATE)])
    rule_sources.verify_overrides(book, {"home": {"h": {"t.rate": 4.0}}, "model": {}})
    with pytest.raises(ValueError, match=r"^overrides\.home\.h: 't\.hot' is not a bound"):
        rule_sources.verify_overrides(book, {"home": {"g": {}, "h": {"t.hot": 4.0}}})
    with pytest.raises(ValueError, match=r"^overrides\.home\.h: 't\.rate'"):
        rule_sources.verify_overrides(book, {"home": {"h": {"t.rate": 3.0}}})
    with pytest.raises(ValueError, match="is not a bound"):
        RuleSources([rule(RATE)], {"home": {"h": {"t.hot": 4.0}}})


def test_rules_that_are_put_again_change_nothing() -> None:
    """A new book would end nothing, but let all devices be looked at."""
    sources = RuleSources([rule(RATE)], {})
    first = sources.book
    assert sources.put("t.hot", json.dumps(HOT)) == ""
    second = sources.book
    assert second is not first
    assert sources.put("t.hot", json.dumps(HOT)) == ""
    assert sources.put("t.other", None) == ""
    assert sources.replace_base([rule(RATE)]) == ""
    assert (sources.book is second, sources.of_topic()) == (True, frozenset({"t.hot"}))


def test_rules_keep_the_order_of_the_file_and_further_ones_follow_by_name() -> None:
    sources = RuleSources([rule(HOT), rule(RATE)], {})
    for name in ("z", "a"):
        assert sources.put(f"t.{name}", json.dumps(HOT | {"name": name})) == ""
    assert sources.put("t.hot", json.dumps(HOT | {"threshold": 3})) == ""
    assert list(sources.book.rules) == ["t.hot", "t.rate", "t.a", "t.z"]
    assert sources.book.defaults["t.hot"]["threshold"] == 3
    assert sources.problem_of("t.b", json.dumps(HOT | {"name": "b"})) == ""
    assert sources.of_topic() == {"t.a", "t.hot", "t.z"}, "it was not taken"


def test_a_file_that_is_right_again_has_no_problem_any_more() -> None:
    sources = RuleSources([rule(HOT)], {"home": {"h": {"t.hot": 4.0}}})
    first = sources.book
    sources.refuse_base("cannot be read")
    assert sources.problems == {FILE: "cannot be read"}
    assert sources.replace_base([rule(HOT)]) == ""
    assert (sources.problems, sources.book is first) == ({}, True)
    problem = sources.replace_base([rule(RATE)])
    assert problem == sources.problems[FILE]
    assert "not a bound" in problem
    assert sources.book is first
    sources.put("t.rate", json.dumps(RATE))
    clash = sources.replace_base([rule(HOT), rule(HOT)])
    assert "two rules are named t.hot" in clash
    assert sources.replace_base([rule(HOT | {"threshold": 9})]) == ""
    assert (sources.problems, list(sources.book.rules)) == ({}, ["t.hot", "t.rate"])
    assert sources.replace_base([rule(HOT | {"threshold": 9})]) == ""
    assert sources.put("t.rate", None) == ""
    assert sources.book.defaults["t.hot"]["threshold"] == 9, "the new file stays when the topic changes"


def test_the_topic_has_a_bounded_number_of_rules_and_of_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_sources, "MAX_RULES", 2)
    sources = RuleSources([rule(RATE)], {})
    for name in "ab":
        assert sources.put(f"t.{name}", json.dumps(HOT | {"name": name})) == ""
    assert "has 2 rules already" in sources.put("t.c", json.dumps(HOT | {"name": "c"}))
    assert sources.put("t.a", json.dumps(HOT | {"name": "a", "threshold": 1})) == "", "it replaces one"
    for number in range(9):
        assert sources.put(f"x{number}", "wrong") != ""
    assert sorted(sources.problems) == ["t.c", "x0", "x1"]
    assert "make 't.hot'" in sources.put("x1", json.dumps(HOT))
    assert "make 't.hot'" in sources.problems["x1"], "of a source that has one the newest is kept"
    assert sources.put("t.a", None) == ""
    assert sources.put("t.c", json.dumps(HOT | {"name": "c"})) == ""
    assert sorted(sources.problems) == ["x0", "x1"]


@pytest.mark.parametrize(
    ("at", "is_within"),
    [
        ("2026-03-22T21:59", False),  # a Sunday
        ("2026-03-22T22:00", True),
        ("2026-03-23T00:00", True),
        ("2026-03-23T05:59", True),
        ("2026-03-23T06:00", False),
        ("2026-03-23T22:00", False),
        ("2026-03-24T03:00", False),
        ("2026-03-25T08:29", False),  # a Wednesday
        ("2026-03-25T08:30", True),
        ("2026-03-25T17:44", True),
        ("2026-03-25T17:45", False),
        ("2026-03-26T09:00", False),
        ("2026-03-28T00:00", True),  # a whole Saturday
        ("2026-03-28T23:59", True),
    ],
)
def test_a_period_has_its_first_minute_and_not_its_last(at: str, is_within: bool) -> None:
    night = {"weekdays": ["sun"], "begin": "22:00", "end": "06:00"}
    day = {"weekdays": ["wed"], "begin": "08:30", "end": "17:45"}
    schedule = Schedule.model_validate({"timezone": "UTC", "periods": [night, day, {"weekdays": ["sat"]}]})
    at_ms = int(datetime.fromisoformat(f"{at}+00:00").timestamp() * 1000)
    assert schedule.contains(at_ms) is is_within
    assert schedule.contains(at_ms + 59_999) is is_within


def test_a_time_zone_is_one_of_the_database() -> None:
    assert zone_of("Europe/Berlin").key == "Europe/Berlin"
    for name in ("", "../UTC", "Mars"):
        with pytest.raises(ValueError, match="is not a time zone"):
            zone_of(name)


def test_a_mean_counts_until_it_is_too_old_and_the_first_of_a_revision_stays() -> None:
    means = GroupMeans(max_groups=2)
    for number, mean in enumerate((20.0, 30.0, 10.0)):
        assert means.put(("home", "a", "t"), GroupMean(1_000, 7 if number else 6, mean, 3))
    assert means.get("home", "a", "t") == GroupMean(1_000, 7, 30.0, 3)
    assert means.put(("home", "b", "t"), GroupMean(1, 1, 1.0, 3)), "there is room for as many groups"
    far = rule({"kind": "off-group-mean", "metric": "t", "group": "home", "threshold": 5, "max_age_ms": 2_000})
    assert isinstance(far, OffGroupMeanRule)

    def opens(at_ms: int, value: float, devices: int = 3) -> bool:
        mean = GroupMean(10_000, 1, 20.0, devices)
        return evaluate(far, far.bounds(), RuleState(), MetricState(at_ms, value=value), mean) is not None

    assert [opens(at_ms, 26.0) for at_ms in (7_999, 8_000, 12_000, 12_001)] == [False, True, True, False]
    assert [opens(10_000, value) for value in (25.0, 25.1, 15.0, 14.9)] == [False, True, False, True]
    assert not opens(10_000, 26.0, devices=2)


@pytest.mark.parametrize(
    "template", ["{{ {bad}", "{value!r}", "{value:d}", "{value:.10f}", "{}", "{value:{unit}}", "a { b"]
)
def test_a_template_has_names_and_decimals_only(template: str) -> None:
    with pytest.raises(ValueError, match=r"not allowed|double a brace"):
        texts.verify(template)


def test_a_template_renders_what_is_known() -> None:
    values: texts.Values = {"value": 1234.5678, "device": "d" * 600, "unit": "", "metric": "t", "threshold": 0.0}
    assert texts.verify("{value}") == "{value}"
    assert texts.render("{value} {value:.1f} {value:e} {value:.0f}", values) == "1234.57 1234.6 1.234568e+03 1235"
    assert texts.render("{{{unit}}} {metric:.1f} {home} {threshold}!", values) == "{-} t - 0!"
    assert texts.render("{device}", values) == "d" * 500


def test_a_dry_run_counts_what_the_service_would_judge() -> None:
    table = DeviceTable(RuleBook([]), {})
    run = DryRun(rule(HOT | {"for_ms": 50}), table, reorder_ms=10, max_metrics=1, max_skew_ms=100)
    assert run.result(is_complete=False) == (0, 0, 0, None, None, False)
    for device_id, metric, at_ms, sequence in (
        ("a", "t", 1_000, 1),
        ("a", "h", 500, 1),  # one metric too many
        ("b", "t", 700, 1),
        ("a", "t", 1_040, 9),  # waits for the time of the others
        ("b", "t", 1_060, 2),
    ):
        run.apply(Reading(device_id, metric, 20.0, "", at_ms, at_ms - 100, sequence))
    run.apply(Reading("c", "t", 20.0, "", 9_000, 8_899, 1))  # from too far in the future
    assert run.result(is_complete=True) == (1, 1, 4, 700, 1_060, True)
    run.apply(Reading("b", "t", 1.0, "", 1_070, 1_070, 3))
    run.apply(Reading("b", "t", 20.0, "", 1_080, 1_080, 4))
    run.apply(Reading("b", "t", 20.0, "", 1_130, 1_130, 5))
    run.apply(Reading("a", "t", 20.0, "", 1_051, 1_051, 10))
    assert run.result(is_complete=True) == (3, 2, 8, 700, 1_130, True)
