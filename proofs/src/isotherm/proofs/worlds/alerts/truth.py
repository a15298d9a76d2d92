"""Judges the alerts: what must be follows from the readings in the input topic, by the code that judges histories.

It reads the model's topics and the committed offsets, and knows nothing of the service but its settings.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import fastavro

from isotherm.proofs.history.checking.collection import AlertInput
from isotherm.proofs.history.checking.incidents import Turn, incidents, turns
from isotherm.proofs.history.format import AlertRule
from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.worlds.alerts import metric_silences
from isotherm.proofs.worlds.alerts.lives import UNREPORTED_MS
from isotherm.proofs.worlds.alerts.load import DEVICES, INPUT, METRICS
from isotherm.proofs.worlds.alerts.metric_silences import MetricLife
from isotherm.proofs.worlds.alerts.wiring import SCHEMAS

ALERTS, LATEST, GROUP = "alerts", "devices.latest", "alerts"
CHANGELOG = f"{GROUP}-devices-changelog"
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
    unreported: dict[int, ExpectedAlert] = field(default_factory=dict)
    """A silence that may be, by `opened_at`: it depends on the clocks whether the first reading comes before it."""
    metrics: dict[str, MetricLife] = field(default_factory=dict)
    """What can be said of the silences of each metric; nothing when the clocks decide."""
    reports: bool = True
    """The device has given a reading."""
    is_gone: bool = False
    """The device is forgotten, or its record was removed: nothing of it is left."""


def read(cluster: Cluster, topic: str, schema: str) -> Iterator[tuple[tuple[str, int], int, int, dict[str, Any]]]:
    """Return partition, offset, append time (ms) and content of the committed records of a topic."""
    for number in range(cluster.partition_counts()[topic]):
        log = cluster.log_of((topic, number))
        for one in log.read(log.start, 1 << 30)[0]:
            if one.payload.value is not None:
                yield (topic, number), one.offset, one.payload.timestamp_ms, _decoded(one.payload.value, schema)


def _decoded(value: bytes, schema: str) -> dict[str, Any]:
    record = fastavro.schemaless_reader(io.BytesIO(value[5:]), _PARSED[schema], None)
    assert isinstance(record, dict)
    return {name: _plain(one) for name, one in record.items()}


def _plain(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else value


@dataclass(frozen=True)
class Registered:
    """What the topic of devices has about a device: the times (epoch ms) of its record and of its tombstone."""

    since_ms: int
    removed_ms: int | None = None


def registered(cluster: Cluster) -> dict[str, Registered]:
    """Return the devices that have a record, or had one."""
    found: dict[str, Registered] = {}
    log = cluster.log_of((DEVICES, 0))
    for one in log.read(log.start, 1 << 30)[0]:
        device, at_ms = (one.payload.key or b"").decode(), one.payload.timestamp_ms
        known = found.get(device, Registered(at_ms))
        found[device] = replace(known, removed_ms=at_ms if one.payload.value is None else None)
    return found


def expected(cluster: Cluster, forget_ms: int) -> dict[str, DeviceTruth]:
    """Return what must be of each device that has given readings or has a record.

    Devices without a record are forgotten after `forget_ms` without a reading; 0: never.
    """
    readings: dict[str, list[AlertInput]] = {}
    for (_, number), offset, appended, one in read(cluster, INPUT, "SensorReading"):
        entry = AlertInput(
            number, offset, one["event_time"], one["sequence"], one["value"], one["metric"], appended, offset
        )
        readings.setdefault(one["device_id"], []).append(entry)
    records = registered(cluster)
    truths = {}
    for device in sorted(readings.keys() | records.keys()):
        found, record = readings.get(device, []), records.get(device)
        truth = _truth_of(device, found, record)
        if record is None and forget_ms:
            _forget(truth, found, forget_ms)
        truths[device] = truth
    return truths


def _truth_of(device: str, readings: list[AlertInput], record: Registered | None) -> DeviceTruth:
    orders = {
        metric: turns([one for one in readings if one.metric == metric], REORDER_MS)
        for metric in sorted({one.metric for one in readings})
    }
    newest = {metric: order[-1].value for metric, order in orders.items() if order}
    truth = DeviceTruth({}, newest, reports=bool(readings))
    for rule in RULES:
        if rule.metric in orders:
            series = Series(device, rule.name, rule.metric)
            truth.alerts[series] = _of_rule(orders[rule.metric], rule)
    signs = _signs_of_life(readings, orders)
    silent = Series(device, "silent", None)
    truth.alerts[silent] = None if signs is None else _silences(signs, readings)
    unknown = Series(device, "unknown-device", None)
    truth.alerts[unknown] = {} if record is not None else None if signs is None else _unknown(signs)
    if record is not None:
        _expect_report(truth, silent, signs, record)
    if signs is not None and truth.alerts[silent] is not None:
        truth.metrics = {metric: _life_of(metric, readings) for metric in orders}
    if record is not None and record.removed_ms is not None:
        # Who reads the tombstone first filters the readings, so what has opened before it is not certain.
        truth.is_gone, truth.newest, truth.metrics = True, {}, {}
        truth.alerts = dict.fromkeys([*truth.alerts, *(Series(device, "silent", metric) for metric in orders)])
    return truth


def _expect_report(truth: DeviceTruth, silent: Series, signs: list[int] | None, record: Registered) -> None:
    """Expect that a device which gives no reading for a while after its record is told."""
    alerts, at = truth.alerts[silent], record.since_ms + UNREPORTED_MS
    if signs is None or alerts is None:
        return
    if not signs:
        alerts[at] = ExpectedAlert((at, None))
    elif signs[0] > at:
        truth.unreported[at] = ExpectedAlert((at, None), (signs[0], None))


def _life_of(metric: str, readings: list[AlertInput]) -> MetricLife:
    own = sorted({one.event_time for one in readings if one.metric == metric})
    return MetricLife(own, sorted({one.event_time for one in readings if one.metric != metric}), None)


def _forget(truth: DeviceTruth, readings: list[AlertInput], forget_ms: int) -> None:
    """Expect that a device without a record closes its alerts, and is forgotten, so long after its last reading."""
    times = sorted(one.event_time for one in readings)
    at = times[-1] + forget_ms
    truth.is_gone, truth.newest = True, {}
    if any(after - before >= forget_ms for before, after in itertools.pairwise(times)):
        # It was forgotten before, and came back as another one.
        truth.alerts, truth.metrics = dict.fromkeys(truth.alerts), {}
        return
    for series, alerts in truth.alerts.items():
        if alerts is not None:
            truth.alerts[series] = {
                opened: one if one.closed else replace(one, closed=(max(at, opened + 1), None))
                for opened, one in alerts.items()
            }
    truth.metrics = {metric: replace(one, forgotten_ms=at) for metric, one in truth.metrics.items()}


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
    if not signs:
        return {}
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
        if record["attributes"] != next(iter(alert.values()))["attributes"]:
            found.append(f"{record['alert_id']} closed with the attributes of another place")
    ids = [record["alert_id"] for alert in states.values() for record in list(alert.values())[:1]]
    found += [f"{one} is the id of two incidents" for one in sorted(set(ids)) if ids.count(one) > 1]
    for device, truth in truths.items():
        for series, alerts in truth.alerts.items():
            if alerts is not None:
                seen = _states_of(states, series)
                may_be = truth.unreported if series == Series(device, "silent", None) else {}
                found += _differences(series, alerts | {at: one for at, one in may_be.items() if at in seen}, seen)
        silences = {metric: Series(device, "silent", metric) for metric in METRICS}
        for metric, life in truth.metrics.items():
            seen = _states_of(states, silences[metric])
            found += metric_silences.findings(f"{device}/silent/{metric}", life, seen, SILENCE_MS)
        known = {series for series, _ in states if series.device == device}
        found += [
            f"{series} has alerts, but no such rule applies"
            for series in sorted(known - truth.alerts.keys() - set(silences.values()), key=str)
        ]
    still_open = {
        device: sorted(
            alert["opened"]["alert_id"]
            for (series, _), alert in states.items()
            if series.device == device and "opened" in alert and "closed" not in alert
        )
        for device in truths
    }
    gone = [device for device, truth in truths.items() if truth.is_gone]
    found += [f"{one} is open, but its device is gone" for device in gone for one in still_open[device]]
    return [*found, *_latest_findings(cluster, truths, still_open)]


def _states_of(
    states: Mapping[tuple[Series, int], Mapping[str, Mapping[str, Any]]], series: Series
) -> dict[int, Mapping[str, Mapping[str, Any]]]:
    return {at: alert for (other, at), alert in states.items() if other == series}


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


def _latest_findings(
    cluster: Cluster, truths: Mapping[str, DeviceTruth], still_open: Mapping[str, list[str]]
) -> Iterator[str]:
    newest = _newest_values(cluster, LATEST)
    for kept, what in ((newest, "newest state"), (_newest_values(cluster, CHANGELOG), "state in the changelog")):
        for device, truth in truths.items():
            if truth.is_gone and device in kept:
                yield f"{device} is gone, but has a {what}"
    for device, truth in truths.items():
        if truth.is_gone:
            continue
        record = _decoded(newest[device], "DeviceState") if device in newest else None
        if record is None:
            if truth.reports or still_open[device]:
                yield f"{device} has no newest state"
            continue
        values = {metric: record["latest"].get(metric, {}).get("value") for metric in truth.newest}
        if values != truth.newest:
            yield f"the newest state of {device} has {values}, not {truth.newest}"
        if record["open_alerts"] != still_open[device]:
            yield f"the newest state of {device} has {record['open_alerts']} open, not {still_open[device]}"


def _newest_values(cluster: Cluster, topic: str) -> dict[str, bytes]:
    """Return the newest value of each key, unless it is a tombstone."""
    newest: dict[str, bytes | None] = {}
    for number in range(cluster.partition_counts()[topic]):
        log = cluster.log_of((topic, number))
        for one in log.read(log.start, 1 << 30)[0]:
            newest[(one.payload.key or b"").decode()] = one.payload.value
    return {key: value for key, value in newest.items() if value is not None}


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
