"""Within which bounds the compiled code may judge a reading, and which devices are quiet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from isotherm.alerts.engine.device_state import BufferedReading, DeviceRuleState, MetricState, RuleState
from isotherm.alerts.engine.quiet import (
    FlatBounds,
    QuietBounds,
    RateBounds,
    SilenceBounds,
    is_quiet,
    is_settled,
    quiet_bounds,
)
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.device_table import DeviceMetadata
from isotherm.alerts.rules.rule_book import RuleBook

RULE: TypeAdapter[Rule] = TypeAdapter(Rule)
ABOVE: dict[str, Any] = {"kind": "above", "metric": "t", "threshold": 30}
BELOW: dict[str, Any] = {"kind": "below", "metric": "t", "threshold": 5}
FLAT: dict[str, Any] = {"kind": "flat", "metric": "t", "tolerance": 0.5, "for_ms": 90_000}
RATE: dict[str, Any] = {"kind": "rate", "metric": "t", "threshold": 12, "window_ms": 60_000}
OFFICE: dict[str, Any] = {"kind": "outside-schedule", "metric": "t", "schedule": {"timezone": "UTC", "periods": [{}]}}
NOTHING = QuietBounds(-math.inf, math.inf, None, None, None, 0)


def both(kind: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "name": "both", "conditions": list(conditions)}


def bounds_of(*rules: dict[str, Any], device: DeviceMetadata | None = None, forget_ms: int = 0) -> QuietBounds | None:
    book = RuleBook([RULE.validate_python(one) for one in rules])
    return quiet_bounds(book, book.overridden([]), "t", device, forget_ms)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], NOTHING),
        ([ABOVE | {"metric": "h"}], NOTHING),
        ([ABOVE], NOTHING._replace(high=30)),
        ([BELOW], NOTHING._replace(low=5)),
        ([ABOVE, BELOW], NOTHING._replace(low=5, high=30)),
        ([ABOVE, ABOVE | {"name": "x", "threshold": 20}, BELOW, BELOW | {"name": "y", "threshold": 9}],
         NOTHING._replace(low=9, high=20)),
        ([ABOVE, ABOVE | {"name": "x", "threshold": 40}, BELOW, BELOW | {"name": "y", "threshold": 1}],
         NOTHING._replace(low=5, high=30)),
        ([OFFICE | {"threshold": 7}], NOTHING._replace(high=7)),
        ([OFFICE | {"threshold": 7, "beyond": "below"}], NOTHING._replace(low=7)),
        ([FLAT], NOTHING._replace(flat=FlatBounds("t.flat", 0.5, 90_000))),
        ([RATE], NOTHING._replace(rate=RateBounds("t.rate", 12, 60_000))),
        ([RATE, FLAT, ABOVE],
         NOTHING._replace(high=30, flat=FlatBounds("t.flat", 0.5, 90_000), rate=RateBounds("t.rate", 12, 60_000))),
        ([FLAT, FLAT | {"name": "second"}], None),
        ([RATE, RATE | {"name": "second"}], None),
        ([{"kind": "off-group-mean", "metric": "t", "group": "home", "threshold": 5}], None),
        ([both("all", ABOVE, BELOW | {"metric": "h"})], NOTHING._replace(high=30)),
        ([both("all", ABOVE, BELOW), ABOVE | {"threshold": 25}], NOTHING._replace(low=5, high=25)),
        ([both("all", ABOVE, BELOW), BELOW | {"threshold": 6}], NOTHING._replace(low=6, high=30)),
        ([both("any", ABOVE, BELOW | {"metric": "h"})], None),
        ([{"kind": "silent", "intervals": 3, "cautious_intervals": 9, "min_ms": 2_000, "interval_ms": 4_000}],
         NOTHING._replace(silence=SilenceBounds(3, 9, 2_000, 4_000, True))),
        ([{"kind": "unknown-device"}], None),
    ],
)  # fmt: skip
def test_a_reading_within_its_bounds_breaks_no_rule(rules: list[dict[str, Any]], expected: QuietBounds | None) -> None:
    assert bounds_of(*rules) == expected


def test_a_device_has_its_own_bounds_and_an_unknown_one_may_be_forgotten() -> None:
    book = RuleBook([RULE.validate_python(ABOVE), RULE.validate_python({"kind": "unknown-device"})])
    device = DeviceMetadata({}, book.overridden([{"t.above": 40.0}]))
    found = bounds_of(ABOVE, {"kind": "unknown-device"}, device=device)
    assert found == NOTHING._replace(high=40)
    assert bounds_of(ABOVE, forget_ms=7) == NOTHING._replace(high=30, forget_ms=7)


Change = Callable[[DeviceRuleState], None]


@pytest.mark.parametrize(
    "unsettle",
    [
        lambda state: state.outbox.append({}),
        lambda state: state.metrics.clear(),
        lambda state: setattr(state, "alive_since_ms", 0),
        lambda state: setattr(state, "is_forgotten", True),
        lambda state: setattr(state.metrics["h"], "event_time_ms", -1),
        lambda state: state.metrics["h"].buffered.append(BufferedReading(1, 1, 1.0, "")),
        lambda state: state.metrics["h"].samples.append((1, 1.0)),
    ],
)
def test_a_device_is_settled_when_nothing_of_it_waits(unsettle: Change) -> None:
    state = DeviceRuleState(metrics={"t": MetricState(0), "h": MetricState(9)})
    assert is_settled(state)
    unsettle(state)
    assert not is_settled(state)


ANCHORED = RuleState(since_ms=0, anchor=0.0)
STEADY = RuleState(highest=[(1, 2.0)], lowest=[(1, 2.0)])


@pytest.mark.parametrize(
    ("rules", "is_calm"),
    [
        ({}, True),
        ({"t.flat": ANCHORED}, True),
        ({"t.rate": STEADY}, True),
        ({"t.flat": ANCHORED, "t.rate": STEADY}, True),
        ({"t.above": RuleState(since_ms=1)}, False),
        ({"t.flat": ANCHORED, "t.above": RuleState(opened_ms=1)}, False),
        ({"t.flat": RuleState(since_ms=1, anchor=1.0, opened_ms=1)}, False),
        ({"t.flat": RuleState(anchor=1.0)}, False),
        ({"t.flat": RuleState(since_ms=1)}, False),
        ({"t.flat": RuleState(since_ms=1, anchor=1.0, highest=[(1, 2.0)])}, False),
        ({"t.rate": RuleState(opened_ms=1, highest=[(1, 2.0)], lowest=[(1, 2.0)])}, False),
        ({"t.rate": RuleState(since_ms=1, highest=[(1, 2.0)], lowest=[(1, 2.0)])}, False),
        ({"t.rate": RuleState(anchor=1.0, highest=[(1, 2.0)], lowest=[(1, 2.0)])}, False),
        ({"t.rate": RuleState(highest=[(1, 2.0)])}, False),
        ({"t.rate": RuleState(lowest=[(1, 2.0)])}, False),
        ({"t.flat": STEADY}, False),
        ({"t.rate": ANCHORED}, False),
    ],
)
def test_a_device_is_quiet_with_histories_of_its_rules_alone(rules: dict[str, RuleState], is_calm: bool) -> None:
    bounds = {"t": bounds_of(FLAT, RATE, ABOVE), "h": NOTHING}
    state = DeviceRuleState(metrics={"t": MetricState(0), "h": MetricState(9)}, rules=rules)
    assert is_quiet(state, bounds) is is_calm
    assert not is_quiet(state, bounds | {"h": None}), "a rule of it needs every reading"
