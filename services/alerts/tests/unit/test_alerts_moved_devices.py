"""A device that moves while its alert is open: the alert ends with the home, region and model of its opening."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState, decode, encode
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.routes.matching import group_of
from isotherm.alerts.routes.notification import with_attributes
from isotherm.alerts.rules.device_table import DeviceMetadata, DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream import outputs
from isotherm.servicekit.avro import Decoder, SchemaNotRegisteredError, WriterSchema, encoder, parse

DAY_MS, MINUTE_MS = 86_400_000, 60_000
RULES: list[dict[str, Any]] = [
    {"kind": "above", "metric": "t", "threshold": 30},
    {"kind": "silent", "cautious_intervals": 5},
    {"kind": "unknown-device", "for_ms": 0},
]
PLACES: dict[str, dict[str, str | None]] = {
    place: {"home": f"home {place}", "region": place, "model": None} for place in ("north", "south")
}
Step = Callable[[RuleEngine, DeviceRuleState, DeviceMetadata | None], list[AlertRecord] | None]


def engine_of(rules: list[dict[str, Any]], forget_ms: int = 0) -> RuleEngine:
    book = AlertsSettings.model_validate({"rules": rules}).rule_book()
    return RuleEngine(book, DeviceTable(book, {}).default_bounds, 0, forget_ms=forget_ms)


def given(at_ms: int, value: float = 20.0, metric: str = "t") -> Step:
    reading = Reading("d", metric, value, "Cel", DAY_MS + at_ms, DAY_MS + at_ms, 0)
    return lambda engine, state, device: engine.apply(state, reading, device)


def passed(at_ms: int) -> Step:
    return lambda engine, state, device: engine.advance_time(state, "d", device, DAY_MS + at_ms)


def removed(engine: RuleEngine, state: DeviceRuleState, _device: DeviceMetadata | None) -> list[AlertRecord]:
    return engine.remove(state, "d", 2 * DAY_MS)


def rule_gone(_engine: RuleEngine, state: DeviceRuleState, device: DeviceMetadata | None) -> list[AlertRecord]:
    return engine_of(RULES[1:]).end_changed(state, "d")


def after_a_restart(state: DeviceRuleState) -> DeviceRuleState:
    return decode(encode(state, None))


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        (given(41 * MINUTE_MS, 35.0), given(42 * MINUTE_MS)),
        (given(41 * MINUTE_MS, 35.0), rule_gone),
        (given(41 * MINUTE_MS, 35.0), removed),
        (passed(6 * 60 * MINUTE_MS), given(7 * 60 * MINUTE_MS)),
    ],
    ids=["a reading", "a removed rule", "a removed device", "the end of a silence"],
)
def test_an_alert_ends_with_the_attributes_of_its_opening(opens: Step, closes: Step) -> None:
    engine, state = engine_of(RULES), DeviceRuleState()
    before, after = (DeviceMetadata(PLACES[place], engine.default_bounds) for place in ("north", "south"))
    for number in range(40):
        given(number * MINUTE_MS)(engine, state, before)
    (opened,) = opens(engine, state, before) or []
    state = after_a_restart(state)
    (closed,) = closes(engine, state, after) or []
    assert (opened["state"], closed["state"]) == ("opened", "closed")
    assert opened["attributes"] == closed["attributes"] == {"home": "home north", "region": "north"}
    assert group_of(with_attributes(closed, PLACES["south"]), ["region", "model"]) == {"region": "north", "model": ""}


def test_the_silence_of_a_metric_keeps_them_too() -> None:
    engine, state = engine_of(RULES), DeviceRuleState()
    before, after = (DeviceMetadata(PLACES[place], engine.default_bounds) for place in ("north", "south"))
    for number in range(40):
        for metric in "th":
            given(number * MINUTE_MS, metric=metric)(engine, state, before)
    opened = [one for number in range(40, 60) for one in given(number * MINUTE_MS)(engine, state, before) or []]
    state = after_a_restart(state)
    closed = given(60 * MINUTE_MS, metric="h")(engine, state, after) or []
    assert [(one["state"], one["metric"]) for one in opened + closed] == [("opened", "h"), ("closed", "h")]
    assert opened[0]["attributes"] == closed[0]["attributes"] == {"home": "home north", "region": "north"}


def test_an_unknown_device_has_none_and_keeps_that_when_its_record_comes_or_it_is_forgotten() -> None:
    for closes, device in ((given(MINUTE_MS), "south"), (passed(2 * DAY_MS), None)):
        engine, state = engine_of(RULES, forget_ms=DAY_MS), DeviceRuleState()
        (opened,) = given(0)(engine, state, None) or []
        state = after_a_restart(state)
        known = None if device is None else DeviceMetadata(PLACES[device], engine.default_bounds)
        (closed,) = closes(engine, state, known) or []
        assert (closed["state"], opened["attributes"], closed["attributes"]) == ("closed", {}, {})
        assert with_attributes(closed, PLACES["south"])["attributes"] == dict.fromkeys(PLACES["south"])


def test_an_alert_of_an_earlier_release_ends_with_what_the_device_has_now() -> None:
    engine, state = engine_of(RULES), DeviceRuleState()
    device = DeviceMetadata(PLACES["north"], engine.default_bounds)
    given(0, 35.0)(engine, state, device)
    state.rules["t.above"].attributes = None
    state = after_a_restart(state)
    (closed,) = given(MINUTE_MS)(engine, state, device) or []
    assert (closed["state"], closed["attributes"]) == ("closed", None)
    assert with_attributes(closed, PLACES["south"])["attributes"] == PLACES["south"]


def test_a_second_alert_has_the_attributes_of_its_own_opening() -> None:
    engine, state = engine_of(RULES), DeviceRuleState()
    told = []
    for number, place in enumerate(("north", "north", "south", "south")):
        device = DeviceMetadata(PLACES[place], engine.default_bounds)
        told += given(number * MINUTE_MS, 20.0 if number % 2 else 35.0)(engine, state, device) or []
    assert [one["attributes"]["region"] for one in told] == ["north", "north", "south", "south"]
    assert state.rules == {}


def test_alerts_are_written_in_version_1_while_version_2_is_not_registered() -> None:
    """Who deploys the service before `isotherm apply` has run gets alerts as before, and none is lost."""

    class Registry:
        def encoder(self, topic: str, schema: dict[str, Any]) -> Callable[[AlertRecord], bytes]:
            if schema == outputs.ALERT:
                raise SchemaNotRegisteredError(topic)
            return encoder(schema, 1)

    encode = outputs._alert_encoder(cast(Any, Registry()), "alerts")
    (opened,) = given(0)(engine_of(RULES), DeviceRuleState(), None) or []
    assert Decoder(cast(Any, _WithVersion1()))(encode(opened)).record["alert_id"] == opened["alert_id"]


class _WithVersion1:
    def schema(self, schema_id: int) -> WriterSchema:
        return WriterSchema(schema_id, outputs.ALERT_WITHOUT_ATTRIBUTES, parse(outputs.ALERT_WITHOUT_ATTRIBUTES))
