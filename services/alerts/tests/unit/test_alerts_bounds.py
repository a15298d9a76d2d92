"""Thresholds of single devices: each is accepted only within what its rule allows."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.alerts.engine.device_state import DeviceRuleState, encode
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceMetadata, DeviceTable
from isotherm.alerts.rules.rule_book import RejectedOverride, RuleBook
from isotherm.alerts.settings import AlertsSettings

RULES: list[dict[str, Any]] = [
    {"kind": "above", "metric": "t", "threshold": 30},
    {"kind": "rate", "metric": "t", "threshold": 5, "hysteresis": 3},
    {"kind": "flat", "metric": "t"},
    {"kind": "silent"},
    {"kind": "unknown-device"},
]
BOOK = AlertsSettings.model_validate({"rules": RULES}).rule_book()


def known(thresholds: dict[str, float], book: RuleBook = BOOK) -> tuple[DeviceMetadata, list[RejectedOverride]]:
    devices = DeviceTable(book, {})
    refused = devices.put("d", {"home": None, "region": None, "model": None, "thresholds": thresholds})
    device = devices.get("d")
    assert device is not None
    return device, refused


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("silent.interval_ms", math.nan, "finite number"),
        ("silent.interval_ms", math.inf, "finite number"),
        ("silent.interval_ms", 1e308, "integer"),
        ("silent.interval_ms", 1e15, "less than or equal to"),
        ("silent.interval_ms", 0.5, "valid integer"),
        ("silent", 1.0, "greater than 1"),
        ("silent.min_ms", -1.0, "greater than or equal to 1000"),
        ("t.rate.window_ms", -60_000.0, "greater than or equal to 1000"),
        ("t.rate", 0.0, "greater than 0"),
        ("t.above", math.nan, "finite number"),
        ("t.above.for_ms", -1.0, "greater than or equal to 0"),
        ("t.flat.tolerance", -0.1, "greater than or equal to 0"),
        ("unknown-device.for_ms", -1.0, "greater than or equal to 0"),
    ],
)
def test_a_threshold_of_a_device_that_its_rule_does_not_allow_has_no_effect(
    key: str, value: float, allowed: str
) -> None:
    device, refused = known({key: value, "t.above.hysteresis": 2.0})
    assert [(one.key, one.reason) for one in refused] == [(key, "not-allowed")]
    assert f"'{key}' = {value!r}" in refused[0].message
    assert allowed in refused[0].message
    assert device.bounds == BOOK.overridden([{"t.above.hysteresis": 2.0}])


@given(st.dictionaries(st.sampled_from(sorted(BOOK.override_keys)), st.floats(), max_size=6))
def test_no_number_in_devices_stops_the_engine(thresholds: dict[str, float]) -> None:
    device, _ = known(thresholds)
    engine, state = RuleEngine(BOOK, BOOK.overridden([]), 5_000), DeviceRuleState()
    for number in range(1, 10):
        engine.apply(state, Reading("d", "t", float(number), "Cel", number * 1_000, number * 1_000, number), device)
    encode(state, engine.due_ms(state, device))


def test_a_rate_whose_threshold_a_device_lowers_still_ends() -> None:
    assert known({"t.rate": 2.0})[0].bounds["t.rate"] == {"threshold": 2, "hysteresis": 1, "window_ms": 600_000}
    assert known({"t.rate": 4.0})[0].bounds["t.rate"] == {"threshold": 4, "hysteresis": 3, "window_ms": 600_000}


def test_the_greatest_time_fits_into_the_changelog() -> None:
    engine, state = RuleEngine(BOOK, BOOK.overridden([]), 5_000), DeviceRuleState()
    at_ms = 2**63 - 1
    engine.apply(state, Reading("d", "t", 1.0, "Cel", at_ms, at_ms), None)
    assert encode(state, engine.due_ms(state, None))
