"""The records that the service publishes: alerts, and the newest state of a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotherm.alerts.engine.conditions import Change
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState, RuleState, alert_id
from isotherm.alerts.rules import texts
from isotherm.alerts.rules.device_table import LAYERS
from isotherm.alerts.rules.kinds import BaseRule


def record(
    device_id: str, rule_key: str, rule_state: RuleState, kind: str, change: Change, unit: str, text: str | None = None
) -> AlertRecord:
    """Return one state of an alert as the plain values of an Alert record; `text` replaces the kind's own message.

    Severity and attributes are those that `rule_state` keeps from the opening.
    """
    metric, _, name = rule_key.rpartition(".")
    closed = change.state == "closed"
    return {
        "alert_id": alert_id(device_id, rule_key, change.opened_ms),
        "device_id": device_id,
        "rule": name,
        "severity": rule_state.severity,
        "state": change.state,
        "opened_at": change.opened_ms,
        "updated_at": change.at_ms,
        "closed_at": change.at_ms if closed else None,
        "metric": metric or None,
        "value": change.finding.measured,
        "threshold": change.finding.threshold,
        "message": _sentence(kind, metric, change, unit) if text is None else text,
        "attributes": _known(rule_state.attributes),
    }


def state_record(device_id: str, state: DeviceRuleState, now_ms: int) -> dict[str, Any]:
    """Return the device's DeviceState record."""
    return {
        "device_id": device_id,
        "last_seen": max(state.last_seen_ms, 0),
        "latest": {
            name: {
                "value": metric.value,
                "unit": metric.unit,
                "event_time": metric.event_time_ms,
                "sequence": metric.sequence,
                "trend_per_hour": metric.trend_per_hour,
            }
            for name, metric in sorted(state.metrics.items())
            if metric.event_time_ms >= 0
        },
        "open_alerts": state.open_alerts(device_id),
        "updated_at": now_ms,
    }


def _sentence(kind: str, metric: str, change: Change, unit: str) -> str:
    opened = change.state == "opened"
    value, threshold = change.finding.measured, change.finding.threshold
    unit = f" {unit}" if unit else ""
    if kind == "above":
        return f"{metric} {value}{unit} is {'above' if opened else 'no longer above'} {threshold}{unit}"
    if kind == "below":
        return f"{metric} {value}{unit} is {'below' if opened else 'no longer below'} {threshold}{unit}"
    if kind == "rate":
        return (
            f"{metric} has changed by {value:g}{unit}, {'more' if opened else 'no longer more'} than {threshold}{unit}"
        )
    if kind == "flat":
        return f"{metric} {'has stayed at' if opened else 'moves again:'} {value}{unit}"
    if kind == "silent":
        of_metric = f" of {metric}" if metric else ""
        return f"no reading{of_metric} when one was due" if opened else f"readings{of_metric} come again"
    if kind == "unreported":
        return "the device has a record, and has never given a reading"
    if kind == "removed":
        return "the record of the device was removed"
    if kind == "forgotten":
        return "the device is forgotten: it has no record, and has given no reading for a long time"
    if kind == "unknown-device":
        return "the topic of devices has no record of this device" if opened else "the device is known now"
    if kind == "outside-schedule":
        return f"{metric} {value}{unit} {'at' if opened else 'is no longer a matter of'} a time outside of the schedule"
    if kind == "off-group-mean":
        distance = f"{metric} is {value:g}{unit}" if value is not None else metric
        return f"{distance} from the mean of its group, {'more' if opened else 'no longer more'} than {threshold}{unit}"
    return "the conditions hold together" if opened else "the conditions no longer hold together"


def _known(attributes: Mapping[str, str | None] | None) -> dict[str, str] | None:
    return None if attributes is None else {name: value for name, value in attributes.items() if value is not None}


def text_of(
    rule: BaseRule, device_id: str, change: Change, unit: str, attributes: Mapping[str, str | None], key: str = ""
) -> str | None:
    """Return the text of an alert that opens, from the rule's template; None without one, and when it closes.

    `key` is the alert's, where it is not the rule's own: the silence of a metric has one.
    """
    if rule.text is None or change.state != "opened":
        return None
    metric, _, name = (key or rule.key).rpartition(".")
    values = {
        "device": device_id,
        "rule": name,
        "metric": metric,
        "severity": rule.severity,
        "unit": unit,
        "value": change.finding.measured,
        "threshold": change.finding.threshold,
    }
    return texts.render(rule.text, {**values, **{name: attributes.get(name) for name in LAYERS}})
