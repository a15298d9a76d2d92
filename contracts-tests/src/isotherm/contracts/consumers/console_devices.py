"""What the console needs to show devices: their newest states, their windows, their alerts."""

from __future__ import annotations

from typing import Any

from pact import match

from isotherm.console.devices import alerts, device_states, provisioned, rules, silences, windows
from isotherm.console.trace.model import Reading
from isotherm.console.trace.windows import Spans, keys
from isotherm.contracts.consumers.partitions import expect_partition
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, UnusableError, expect
from isotherm.servicekit.avro import Decoder

_END_MS = scenario.START_MS + scenario.WINDOW_MS


def _is_device(harness: Harness, found: Message) -> object:
    device = device_states.device_of(Decoder(harness.registry, device_states.SCHEMA)(found.value).record)
    expect("device", device.device_id, found.key)
    expect("metrics", [one.metric for one in device.latest], ["temperature"])
    return device


def _is_provisioned(harness: Harness, found: Message) -> object:
    device = provisioned.provisioned_of(Decoder(harness.registry, provisioned.SCHEMA)(found.value).record)
    known = found.key == scenario.DEVICE
    expect("metadata", sorted(device.given), ["home", "model", "region", "room"] if known else [])
    return found.key, device


def _is_alert(harness: Harness, found: Message) -> object:
    alert = alerts.alert_of(Decoder(harness.registry, alerts.SCHEMA)(found.value).record)
    known = alerts.Alerts(1)
    known.update(alert)
    expect("alerts", known.of_device(found.key), [alert])
    expect("is open", bool(known.open()), alert.closed_at_ms is None)
    expect_partition(found)
    return alert


def _is_silence(harness: Harness, found: Message) -> object:
    silence = silences.silence_of(Decoder(harness.registry, silences.SCHEMA)(found.value).record)
    known = silences.Silences()
    known.update(found.key, silence)
    expect("silences", known.listed(scenario.START_MS), [silence])
    expect("id", silence.silence_id, found.key)
    return silence


def _silence(name: str, silence_id: str, **value: Any) -> Need:
    given: dict[str, Any] = {
        "silence_id": silence_id,
        "alert_id": None,
        "devices": [],
        "rules": [],
        "groups": {},
        "starts_at": scenario.START_MS,
        "comment": match.type("repairs"),
        "created_by": match.type("user"),
        "created_at": scenario.START_MS,
        "ended_by": None,
        "ended_at": None,
    }
    return Need("console", "console", name, silences.TOPIC, "Silence", 1, silence_id, given | value, _is_silence)


def _is_rule(harness: Harness, found: Message) -> object:
    rule = rules.rule_of(Decoder(harness.registry, rules.SCHEMA)(found.value).record)
    known = rules.Rules()
    known.update(found.key, rule)
    expect("rules", known.listed(), [rule])
    expect("id", rule.rule_id, found.key)
    expect("rule", rules.id_of(rule.rule), found.key)
    return rule


def _is_outcome(harness: Harness, found: Message) -> object:
    outcome = rules.rule_of(Decoder(harness.registry, rules.SCHEMA)(found.value).record)
    known = rules.Rules()
    known.update(found.key, outcome)
    expect("outcome", known.wait_for_outcome("trial/1", 0), outcome)
    expect("rules", known.listed(), [])
    return outcome


def _rule(provider: str, name: str, key: str, is_it: Any, **value: Any) -> Need:
    given = {
        "rule_id": key,
        "definition": scenario.RULE_DEFINITION,
        "created_by": match.type("user"),
        "created_at": scenario.START_MS,
        "updated_by": match.type("user"),
        "updated_at": scenario.START_MS,
        "hours": 0,
        "problem": None,
        "fired": match.integer(0),
        "devices": match.integer(0),
        "readings": match.integer(0),
        "from": None,
        "until": None,
        "is_complete": match.type(True),
    }
    return Need("console", provider, name, rules.TOPIC, "AlertRule", 1, key, given | value, is_it)


def _is_window(harness: Harness, found: Message) -> object:
    record = Decoder(harness.registry, windows.SCHEMA)(found.value).record
    if not found.key.encode().startswith(windows.key_prefix(record["device_id"])):
        raise UnusableError(f"{found.key} is not found by its device")
    (window,) = windows.by_metric([windows.window_of(record)])["temperature"]
    expect("span", (window.start_ms, window.end_ms), (scenario.START_MS, _END_MS))
    traced = Reading(record["device_id"], window.metric, 1.0, "Cel", scenario.START_MS, scenario.START_MS, 0)
    expect(
        "keys of a trace",
        [key.decode() for key, _ in keys(traced, Spans(scenario.WINDOW_MS, scenario.WINDOW_MS))],
        [found.key],
    )
    expect_partition(found)
    return window


def _alert(name: str, state: str, at_ms: int, closed_ms: int | None) -> Need:
    value = {
        "alert_id": match.type("dev-0001/above/temperature/1"),
        "device_id": scenario.DEVICE,
        "rule": "above",
        # The severest come first.
        "severity": match.regex("warning", regex="^(info|warning|critical)$"),
        "state": state,
        "opened_at": scenario.MEASURED_MS,
        "updated_at": at_ms,
        "closed_at": closed_ms,
        "metric": "temperature",
        "value": match.number(29.5),
        "threshold": 28.0,
        "message": match.type("temperature 29.5 Cel is above 28.0 Cel"),
    }
    return Need(
        "console",
        "alerts",
        name,
        alerts.TOPIC,
        "Alert",
        1,
        scenario.DEVICE,
        value,
        _is_alert,
        needs_partition=True,
    )


def _window(name: str, device_id: str, escaped: str) -> Need:
    value: dict[str, Any] = {
        "device_id": device_id,
        "metric": "temperature",
        "window_start": scenario.START_MS,
        "window_end": _END_MS,
        "count": match.integer(3),
        **{figure: match.number(1.5) for figure in ("mean", "min", "max", "stddev")},
        "revision": match.integer(1_767_225_675_000),
    }
    # The windows of a device are found by the beginning of their keys, those of a reading by the whole key.
    key = f"{escaped}|temperature|{scenario.START_MS}|{_END_MS}"
    return Need(
        "console",
        "aggregator",
        name,
        windows.TOPIC,
        "TemperatureAggregate",
        1,
        key,
        value,
        _is_window,
        needs_partition=True,
    )


NEEDS = (
    _rule("console", scenario.RULE_STORED, scenario.RULE_ID, _is_rule, role="rule"),
    _rule("alerts", scenario.RULE_OUTCOME, "outcome/trial/1", _is_outcome, role="outcome"),
    _silence(
        scenario.SILENCED,
        "a-silence",
        kind="silence",
        rules=["above"],
        groups={"region": ["north"]},
        ends_at=scenario.START_MS + 3_600_000,
    ),
    _silence(
        scenario.ACKNOWLEDGED,
        f"acknowledgement/{scenario.ALERT_ID}",
        kind="acknowledgement",
        alert_id=scenario.ALERT_ID,
        ends_at=None,
        comment="",
    ),
    Need(
        "console",
        "alerts",
        scenario.DEVICE_STATE,
        device_states.TOPIC,
        "DeviceState",
        1,
        key=scenario.DEVICE,
        value={
            "device_id": scenario.DEVICE,
            "last_seen": match.integer(scenario.MEASURED_MS),
            "updated_at": match.integer(scenario.TAKEN_IN_MS),
            "latest": {
                "temperature": {
                    "value": match.number(21.5),
                    "unit": "Cel",
                    "event_time": match.integer(scenario.MEASURED_MS),
                    "sequence": match.integer(2),
                }
            },
            "open_alerts": match.type([]),
        },
        process=_is_device,
    ),
    Need(
        "console",
        "cli",
        scenario.DEVICE_KNOWN,
        provisioned.TOPIC,
        "Device",
        1,
        key=scenario.DEVICE,
        value={"home": "home-01", "room": match.type("kitchen"), "region": "north", "model": "T1"},
        process=_is_provisioned,
    ),
    Need(
        "console",
        "cli",
        scenario.DEVICE_UNKNOWN,
        provisioned.TOPIC,
        "Device",
        1,
        key=scenario.OTHER_DEVICE,
        value={"home": None, "room": None, "region": None, "model": None},
        process=_is_provisioned,
    ),
    _alert(scenario.ALERT_OPENED, "opened", scenario.MEASURED_MS, None),
    _alert(scenario.ALERT_CLOSED, "closed", scenario.MEASURED_MS + 1, scenario.MEASURED_MS + 1),
    _window(scenario.WINDOW, scenario.DEVICE, scenario.DEVICE),
    _window(scenario.WINDOW_ESCAPED, scenario.OTHER_DEVICE, "dev%7C0002"),
)
