"""Judges the alerts: what must be follows from the readings in the input topic, by the code that judges histories.

It reads the model's topics and the committed offsets, and knows nothing of the service but its settings.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import fastavro

from isotherm.proofs.history.checking.collection import AlertInput
from isotherm.proofs.history.checking.incidents import Turn, incidents, turns
from isotherm.proofs.history.format import AlertRule
from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.worlds.alerts.load import INPUT
from isotherm.proofs.worlds.alerts.wiring import SCHEMAS

ALERTS, LATEST, GROUP = "alerts", "devices.latest", "alerts"
REORDER_MS, SILENCE_MS, UNKNOWN_FOR_MS = 5_000, 30_000, 60_000
PROMPT_MS = 30_000
"""A device whose readings all came sooner than this is silent when its readings say so; otherwise the clocks decide."""
RULES = (
    AlertRule("above", "above", "temperature", 40, 1),
    AlertRule("below", "below", "temperature", 0, 1, 12_000),
    AlertRule("rate", "rate", "temperature", 25, 5, window_ms=60_000),
    AlertRule("above", "above", "humidity", 40, 1, 5_000),
)
_PARSED = {schema["name"]: fastavro.parse_schema(dict(schema), named_schemas={}) for schema in SCHEMAS.values()}

Seen = tuple[int, float | None]
"""Event time and value of the reading that opened or closed an alert; None without a reading."""


class Series(NamedTuple):
    """The alerts of one rule about one device."""

    device: str
    rule: str
    metric: str | None


@dataclass(frozen=True)
class ExpectedAlert:
    """An alert that must be."""

    opened: Seen
    closed: Seen | None = None


@dataclass
class DeviceTruth:
    """What follows from the readings of one device."""

    alerts: dict[Series, dict[int, ExpectedAlert] | None]
    """By series and `opened_at`; None where the promise allows several outcomes."""
    newest: dict[str, float]
    """By metric, the value that is the newest by event time; not of metrics whose order is not certain."""


def read(cluster: Cluster, topic: str, schema: str) -> Iterator[tuple[tuple[str, int], int, int, dict[str, Any]]]:
    """Return partition, offset, append time (ms) and content of the committed records of a topic."""
    for number in range(cluster.partition_counts()[topic]):
        log = cluster.log_of((topic, number))
        for one in log.read(log.start, 1 << 30)[0]:
            if one.payload.value is not None:
                record = fastavro.schemaless_reader(io.BytesIO(one.payload.value[5:]), _PARSED[schema], None)
                assert isinstance(record, dict)
                plain = {name: _plain(value) for name, value in record.items()}
                yield (topic, number), one.offset, one.payload.timestamp_ms, plain


def _plain(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else value


def expected(cluster: Cluster, known: Mapping[str, bool]) -> dict[str, DeviceTruth]:
    """Return what must be of each device with readings; `known` says whether the topic of devices has it."""
    readings: dict[str, list[AlertInput]] = {}
    for (_, number), offset, appended, one in read(cluster, INPUT, "SensorReading"):
        entry = AlertInput(
            number, offset, one["event_time"], one["sequence"], one["value"], one["metric"], appended, offset
        )
        readings.setdefault(one["device_id"], []).append(entry)
    return {device: _truth_of(device, found, is_known=known[device]) for device, found in readings.items()}


def _truth_of(device: str, readings: list[AlertInput], *, is_known: bool) -> DeviceTruth:
    orders = {
        metric: turns([one for one in readings if one.metric == metric], REORDER_MS)
        for metric in sorted({one.metric for one in readings})
    }
    truth = DeviceTruth({}, {metric: order[-1].value for metric, order in orders.items() if order})
    for rule in RULES:
        if rule.metric in orders:
            series = Series(device, rule.name, rule.metric)
            truth.alerts[series] = _of_rule(orders[rule.metric], rule)
    signs = _signs_of_life(readings, orders)
    truth.alerts[Series(device, "silent", None)] = None if signs is None else _silences(signs, readings)
    unknown = Series(device, "unknown-device", None)
    truth.alerts[unknown] = {} if is_known else None if signs is None else _unknown(signs)
    return truth


def _of_rule(order: list[Turn] | None, rule: AlertRule) -> dict[int, ExpectedAlert] | None:
    found = None if order is None else incidents(order, rule)
    if found is None:
        return None
    # A rate's value is a change.
    values = rule.kind != "rate"
    return {
        one.opened_at: ExpectedAlert(
            _seen(one.decided, values), None if one.closed is None else _seen(one.closed, values)
        )
        for one in found
    }


def _seen(turn: Turn, has_value: bool) -> Seen:
    return turn.event_time, turn.value if has_value else None


def _signs_of_life(readings: list[AlertInput], orders: Mapping[str, list[Turn] | None]) -> list[int] | None:
    """Return the event times of the readings that count; None when readings of several metrics were out of order."""
    first: dict[tuple[str, int, int], int] = {}
    for one in readings:
        first.setdefault((one.metric, one.event_time, one.sequence), one.event_time)
    times = list(first.values())
    return times if None not in orders.values() and times == sorted(times) else None


def _silences(signs: list[int], readings: list[AlertInput]) -> dict[int, ExpectedAlert] | None:
    first = {(one.metric, one.event_time, one.sequence): one for one in reversed(readings)}
    if any(one.appended - one.event_time > PROMPT_MS for one in first.values()):
        return None
    found = {}
    for seen, then in zip(signs, [*signs[1:], None], strict=True):
        if then is None or then > seen + SILENCE_MS:
            at = seen + SILENCE_MS
            found[at] = ExpectedAlert((at, None), None if then is None else (then, None))
    return found


def _unknown(signs: list[int]) -> dict[int, ExpectedAlert]:
    decided = next((at for at in signs if at - signs[0] >= UNKNOWN_FOR_MS), None)
    return {} if decided is None else {signs[0]: ExpectedAlert((decided, None))}


def findings(cluster: Cluster, truths: Mapping[str, DeviceTruth]) -> list[str]:
    """Return how the alerts and the newest states differ from what must be; nothing when everything is there."""
    found: list[str] = []
    states: dict[tuple[Series, int], dict[str, dict[str, Any]]] = {}
    for _, _, _, record in read(cluster, ALERTS, "Alert"):
        series = Series(record["device_id"], record["rule"], record["metric"])
        alert = states.setdefault((series, record["opened_at"]), {})
        if alert.setdefault(record["state"], record) != record:
            found.append(f"{record['alert_id']} {record['state']} is repeated with other contents")
        if record["state"] == "closed" and "opened" not in alert:
            found.append(f"{record['alert_id']} closed before it opened")
    ids = [record["alert_id"] for alert in states.values() for record in list(alert.values())[:1]]
    found += [f"{one} is the id of two incidents" for one in sorted(set(ids)) if ids.count(one) > 1]
    for device, truth in truths.items():
        for series, alerts in truth.alerts.items():
            if alerts is not None:
                seen = {at: alert for (other, at), alert in states.items() if other == series}
                found += _differences(series, alerts, seen)
        known = {series for series, _ in states if series.device == device}
        found += [
            f"{series} has alerts, but no such rule applies" for series in sorted(known - truth.alerts.keys(), key=str)
        ]
    return [*found, *_latest_findings(cluster, truths)]


def _differences(
    series: Series, alerts: Mapping[int, ExpectedAlert], states: Mapping[int, Mapping[str, Mapping[str, Any]]]
) -> Iterator[str]:
    for opened_at in sorted(alerts.keys() | states.keys()):
        must, alert = alerts.get(opened_at), states.get(opened_at, {})
        wanted = (None, None) if must is None else (must.opened, must.closed)
        for state, seen in zip(("opened", "closed"), wanted, strict=True):
            record, name = alert.get(state), f"{'/'.join(filter(None, series))}/{opened_at} {state}"
            if seen is None and record is not None:
                yield f"{name} at {record['updated_at']}, which must not be"
            elif seen is not None and record is None:
                yield f"{name} at {seen[0]} is missing"
            elif seen is not None and record is not None:
                value = seen[1] if seen[1] is None else record["value"]
                if (record["updated_at"], value) != seen:
                    yield f"{name} says {record['updated_at']}, {record['value']}, not {seen}"


def _latest_findings(cluster: Cluster, truths: Mapping[str, DeviceTruth]) -> Iterator[str]:
    newest = {record["device_id"]: record for _, _, _, record in read(cluster, LATEST, "DeviceState")}
    for device, truth in truths.items():
        record = newest.get(device)
        if record is None:
            yield f"{device} has no newest state"
            continue
        values = {metric: record["latest"].get(metric, {}).get("value") for metric in truth.newest}
        if values != truth.newest:
            yield f"the newest state of {device} has {values}, not {truth.newest}"
        if None not in truth.alerts.values():
            still_open = sorted(
                "/".join(filter(None, (*series, str(at))))
                for series, alerts in truth.alerts.items()
                for at, one in (alerts or {}).items()
                if one.closed is None
            )
            if record["open_alerts"] != still_open:
                yield f"the newest state of {device} has {record['open_alerts']} open, not {still_open}"


def unread(cluster: Cluster) -> list[str]:
    """Return the input partitions whose committed offset is not behind their last record."""
    found = []
    for number in range(cluster.partition_counts()[INPUT]):
        partition = INPUT, number
        log = cluster.log_of(partition)
        records = log.read(log.start, 1 << 30)[0]
        committed = cluster.groups.fetch(GROUP, {partition}).get(partition)
        if records and (committed is None or committed.offset <= records[-1].offset):
            found.append(
                f"{INPUT}-{number} is committed to {committed and committed.offset} of {records[-1].offset + 1}"
            )
    return found
