"""Rules that change: their sources, what becomes of open alerts, and that repeats agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState, decode, encode
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.live_rules.dry_run import DryRun
from isotherm.alerts.live_rules.live_rules import sources_of
from isotherm.alerts.live_rules.rules_file import RulesFile, read_rules
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.group_means import GroupMean
from isotherm.alerts.rules.past_group_means import PastGroupMeans
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.alerts.rules.rule_sources import FILE, RuleSources
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit.settings import SettingsError

MINUTE = 60_000
RULE: TypeAdapter[Rule] = TypeAdapter(Rule)
HOT: dict[str, Any] = {"kind": "above", "metric": "t", "threshold": 10, "name": "hot"}
BOOKS: list[list[dict[str, Any]]] = [
    [HOT],
    [HOT | {"threshold": 5}],
    [HOT | {"for_ms": 2 * MINUTE}],
    [{"kind": "rate", "metric": "t", "threshold": 4, "name": "hot"}],
    [{"kind": "flat", "metric": "t", "for_ms": MINUTE, "name": "hot"}],
    [{"kind": "any", "name": "hot", "conditions": [{"kind": "below", "metric": "t", "threshold": 3}]}],
    [{"kind": "silent", "interval_ms": MINUTE}],
    [],
]


def book_of(rules: list[dict[str, Any]]) -> RuleBook:
    return RuleBook([RULE.validate_python(one) for one in rules])


ENGINES = [
    RuleEngine(book, DeviceTable(book, {}).default_bounds, reorder_ms=0) for book in (book_of(rules) for rules in BOOKS)
]


class Device:
    """The state of a device and what was published of it."""

    def __init__(self) -> None:
        self.state = DeviceRuleState()
        self.published: list[AlertRecord] = []

    def read(self, engine: RuleEngine, sequence: int, value: float, at_ms: int) -> None:
        self.published += engine.apply(self.state, Reading("d", "t", value, "", at_ms, at_ms, sequence), None) or []

    def look(self, engine: RuleEngine) -> None:
        """As the sweep does that follows a change."""
        if engine.is_changed(self.state):
            self.published += engine.end_changed(self.state, "d")


STEPS = st.lists(
    st.tuples(st.integers(0, 14), st.sampled_from([0, 1, MINUTE, 10 * MINUTE]), st.integers(0, len(BOOKS) - 1)),
    min_size=1,
    max_size=40,
)


@given(STEPS, st.lists(st.booleans(), min_size=40, max_size=40))
def test_whatever_rules_become_each_alert_opens_and_closes_once(steps: list[Any], looks: list[bool]) -> None:
    device, at_ms = Device(), 1_000_000
    for index, (value, gap_ms, book) in enumerate(steps):
        at_ms += gap_ms
        engine = ENGINES[book]
        if looks[index]:
            device.look(engine)
        published = engine.advance_time(device.state, "d", None, at_ms - 1)
        device.published += published or []
        device.read(engine, index + 1, value, at_ms)
        device.state = decode(encode(device.state, None))
    states = [(one["alert_id"], one["state"]) for one in device.published]
    assert len(states) == len(set(states))
    opened = [alert for alert, state in states if state == "opened"]
    for alert in opened:
        assert states.index((alert, "opened")) < ([*states, (alert, "closed")]).index((alert, "closed"))
    assert {alert for alert, state in states if state == "closed"} <= set(opened)
    assert set(device.state.open_alerts("d")) == set(opened) - {alert for alert, state in states if state == "closed"}


@given(STEPS, st.integers(0, 39), st.integers(0, len(BOOKS) - 1))
def test_a_sweep_before_a_reading_changes_nothing(steps: list[Any], at: int, other: int) -> None:
    swept, plain, at_ms = Device(), Device(), 1_000_000
    for index, (value, gap_ms, book) in enumerate(steps):
        at_ms += gap_ms
        engine = ENGINES[other if index > at else book]
        swept.look(engine)
        for device in (swept, plain):
            device.read(engine, index + 1, value, at_ms)
    assert swept.published == plain.published


@given(STEPS, st.integers(0, 38), st.integers(1, 38))
def test_a_repeat_after_a_kill_agrees_with_what_was_published(steps: list[Any], killed: int, since: int) -> None:
    """The changelog is behind by readings that have decided nothing; they are read again with other rules."""
    device, at_ms, saved = Device(), 1_000_000, encode(DeviceRuleState(), None)
    for index, (value, gap_ms, _book) in enumerate(steps[: killed + 1]):
        at_ms += gap_ms
        before = len(device.published)
        device.read(ENGINES[0], index + 1, value, at_ms)
        if len(device.published) > before or index <= killed - since:
            saved = encode(device.state, None)  # An alert leaves the process after its state.
    device.state = decode(saved)
    at_ms = 1_000_000
    for index, (value, gap_ms, _book) in enumerate(steps):
        at_ms += gap_ms
        device.read(ENGINES[1], index + 1, value, at_ms)
    states = [(one["alert_id"], one["state"]) for one in device.published]
    assert len(states) == len(set(states))
    assert {alert for alert, state in states if state == "closed"} <= {alert for alert, _ in states}


def test_a_changed_silent_rule_leaves_a_silence_open_and_a_removed_one_closes_it_once() -> None:
    silent, other = ENGINES[6], book_of([{"kind": "silent", "interval_ms": 2 * MINUTE}])
    longer = RuleEngine(other, DeviceTable(other, {}).default_bounds, reorder_ms=0)
    device = Device()
    device.read(silent, 1, 1, 1_000_000)
    device.published += silent.advance_time(device.state, "d", None, 9_000_000) or []
    device.look(longer)
    assert [one["state"] for one in device.published] == ["opened"]
    device.look(ENGINES[7])
    assert [(one["state"], one["message"]) for one in device.published[1:]] == [("closed", "the rule was removed")]
    # The rule comes back: the device was told to be silent, and has sent nothing since.
    assert silent.advance_time(device.state, "d", None, 99_000_000) is None
    device.read(silent, 2, 1, 99_000_001)
    device.published += silent.advance_time(device.state, "d", None, 199_000_000) or []
    assert [one["state"] for one in device.published] == ["opened", "closed", "opened"]


def test_a_rule_of_the_topic_stands_above_that_of_the_file_until_it_is_removed() -> None:
    sources = RuleSources([RULE.validate_python(HOT)], {})
    assert sources.put("t.hot", json.dumps(HOT | {"threshold": 3})) == ""
    assert sources.book.defaults["t.hot"]["threshold"] == 3
    assert sources.replace_base([RULE.validate_python(HOT | {"threshold": 7})]) == ""
    assert sources.book.defaults["t.hot"]["threshold"] == 3
    assert sources.put("t.hot", None) == ""
    assert sources.book.defaults["t.hot"]["threshold"] == 7


@pytest.mark.parametrize(
    ("rule_id", "definition", "why"),
    [
        ("t.hot", json.dumps(HOT | {"threshold": "x"}), "threshold = 'x'"),
        ("t.cold", json.dumps(HOT), "make 't.hot'"),
        ("t.hot", "[" * 100_000, "more than 65536"),
        ("t.hot", "[" * 60_000, "nested too deeply"),
        ("t.hot", "x", "Expecting value"),
    ],
)
def test_a_bad_rule_of_the_topic_leaves_the_former_one(rule_id: str, definition: str, why: str) -> None:
    sources = RuleSources([], {})
    sources.put("t.hot", json.dumps(HOT))
    book = sources.book
    assert why in sources.put(rule_id, definition)
    assert sources.book is book
    assert why in sources.problems[rule_id]
    assert why in sources.problem_of(rule_id, definition)
    sources.put(rule_id, json.dumps(HOT) if rule_id == "t.hot" else None)
    assert sources.problems == {}


def test_a_file_that_cannot_be_used_leaves_the_former_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nkind = "above"\nmetric = "t"\nthreshold = 1\n')
    settings = AlertsSettings.model_validate({"rules_file": str(path), "overrides": {"home": {"h": {"t.above": 2}}}})
    sources, metrics = sources_of(settings), Metrics()
    file = RulesFile(path, sources, metrics)
    for bad, why in (
        ("x", "Expected '='"),
        ('[[rules]]\nkind = "silent"\n', "'t.above' is not a bound"),
        (None, "cannot be read"),
    ):
        if bad is None:
            path.unlink()
        else:
            path.write_text(bad)
        file.reload_if_changed()
        assert why in sources.problems[FILE]
        assert set(sources.book.rules) == {"t.above"}
    path.write_text('[[rules]]\nkind = "above"\nmetric = "t"\nthreshold = 5\n')
    file.reload_if_changed()
    assert (sources.book.defaults["t.above"]["threshold"], sources.problems) == (5, {})
    path.write_bytes(b"#" * 5_000_000)
    with pytest.raises(ValueError, match="more than"):
        read_rules(path)


@pytest.mark.parametrize("file", ["missing.toml", "bad.toml"])
def test_a_bad_file_ends_the_start(tmp_path: Path, file: str) -> None:
    (tmp_path / "bad.toml").write_text('[[rules]]\nkind = "above"\n')
    with pytest.raises(SettingsError, match=rf"rules_file = '.*{file}'"):
        sources_of(AlertsSettings.model_validate({"rules_file": str(tmp_path / file)}))


def test_new_rules_count_for_every_device() -> None:
    table = DeviceTable(book_of([HOT]), {"home": {"h": {"t.hot": 2.0}}})
    device: dict[str, Any] = {"home": None, "region": None, "model": None, "thresholds": {}}
    table.put("plain", device)
    table.put("own", device | {"thresholds": {"t.hot.hysteresis": 1.0, "t.cold": 3.0}})
    table.put("at-h", device | {"home": "h"})
    cold = {"kind": "below", "metric": "t", "name": "cold", "threshold": 1}
    table.reload(book_of([HOT | {"threshold": 20}, cold]))
    bounds = {name: found.bounds for name in ("plain", "own", "at-h") if (found := table.get(name)) is not None}
    assert {name: one["t.hot"]["threshold"] for name, one in bounds.items()} == {"plain": 20, "own": 20, "at-h": 2}
    assert {name: one["t.cold"]["threshold"] for name, one in bounds.items()} == {"plain": 1, "own": 3, "at-h": 1}
    assert bounds["plain"] is table.default_bounds


def test_a_dry_run_counts_as_the_engine_would() -> None:
    table = DeviceTable(book_of([]), {})
    table.put("b", {"home": None, "region": None, "model": None, "thresholds": {"t.hot": 50.0}})
    run = DryRun(RULE.validate_python(HOT), table, reorder_ms=0, max_metrics=8, max_skew_ms=0)
    for device_id in "ab":
        for index, value in enumerate((1, 20, 1, 30, 1)):
            run.apply(Reading(device_id, "t", value, "", index, index, index + 1))
    run.apply(Reading("a", "t", 99, "", 5_000, 10, 6))  # From the future
    assert run.result(is_complete=True) == (2, 1, 10, 0, 4, True)
    silent = DryRun(
        RULE.validate_python({"kind": "silent", "interval_ms": MINUTE}),
        table, reorder_ms=0, max_metrics=8, max_skew_ms=0,
    )  # fmt: skip
    silent.apply(Reading("a", "t", 1, "", 0, 0, 1))
    silent.apply(Reading("b", "t", 1, "", 30 * MINUTE, 30 * MINUTE, 1))
    assert silent.result(is_complete=False)[:2] == (1, 1)


def test_a_dry_run_compares_each_reading_with_the_mean_of_its_own_time() -> None:
    table = DeviceTable(book_of([]), {})
    table.put("a", {"home": None, "region": "north", "model": None, "thresholds": {}})
    rule = {"kind": "off-group-mean", "metric": "t", "group": "region", "threshold": 5, "max_age_ms": 10 * MINUTE}
    run = DryRun(RULE.validate_python(rule), table, reorder_ms=0, max_metrics=8, max_skew_ms=0)
    for end_ms, revision, mean in ((10, 1, 20.0), (20, 2, 40.0), (20, 1, 0.0)):
        run.means.put(("region", "north", "t"), GroupMean(end_ms * MINUTE, revision, mean, 3))
    # As far from the mean as allowed, too far, before a window has ended, and long after the last one.
    for number, (minute, value) in enumerate(
        ((9, 90.0), (11, 24.0), (12, 26.0), (21, 42.0), (22, 24.0), (40, 90.0)), 1
    ):
        run.apply(Reading("a", "t", value, "", minute * MINUTE, minute * MINUTE, number))

    assert run.result(is_complete=True)[:3] == (2, 1, 6)


def test_the_windows_of_a_trial_are_bounded() -> None:
    means = PastGroupMeans(max_windows=2)
    key = ("region", "north", "t")

    assert [means.put(key, GroupMean(end, 1, float(end), 3)) for end in (20, 10, 30)] == [True, True, False]
    assert means.put(key, GroupMean(10, 2, 5.0, 3))

    found = []
    for means.at_ms in (9, 10, 19, 20, 99):
        known = means.get(*key)
        found.append(None if known is None else known.mean)
    assert found == [None, 5.0, 5.0, 20.0, 20.0]
