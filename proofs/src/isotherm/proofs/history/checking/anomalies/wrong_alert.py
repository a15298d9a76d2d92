"""An alert that is missing, invented, doubled, not resolved, or repeated with other contents."""

from __future__ import annotations

from collections import defaultdict

from isotherm.proofs.history.checking.collection import AlertInput, AlertState, Collection
from isotherm.proofs.history.checking.incidents import Incident, incidents, turns
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report
from isotherm.proofs.history.format import AlertSettings

Series = tuple[str, str | None]
"""Rule and metric."""
Alerts = dict[int, dict[str, AlertState]]
"""The states of alerts, by `opened_at` and state."""


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Judge the alerts of each device by themselves, then by the incidents in the readings."""
    settings = collection.settings.alerts
    if settings is None or report.cannot(*facts.unread(settings.input), *facts.unread(settings.output)):
        return
    drained = facts.has_read_all(settings.group, settings.input)
    for device in collection.alerts.keys() | collection.alert_inputs.keys():
        by_series = _by_series(collection.alerts.get(device, []), report)
        readings = sorted(collection.alert_inputs.get(device, ()))
        for alerts in by_series.values():
            _judge_lives(alerts, report)
        if device not in settings.overridden_devices:
            _judge_incidents(device, by_series, readings, settings, drained, report)


def _by_series(states: list[AlertState], report: Report) -> dict[Series, Alerts]:
    """Sort the states of a device's alerts; repeats have to be identical."""
    first: dict[tuple[str, str], AlertState] = {}
    found: dict[Series, Alerts] = defaultdict(lambda: defaultdict(dict))
    for state in states:
        known = first.setdefault((state.alert_id, state.state), state)
        if known.digest != state.digest:
            report.convict(f"{state.alert_id} {state.state}: repeated with other contents", known.line, state.line)
        other = found[state.rule, state.metric][state.opened_at].setdefault(state.state, state)
        if other.alert_id != state.alert_id:
            report.convict(f"{other.alert_id} and {state.alert_id} are one incident", other.line, state.line)
    return found


def _judge_lives(alerts: Alerts, report: Report) -> None:
    """Every alert opens once, closes later, and is closed before the next one opens."""
    before: AlertState | None = None
    for opened_at, states in sorted(alerts.items()):
        report.compared()
        opened, closed = states.get("opened"), states.get("closed")
        if opened is None:
            report.convict(
                f"{next(iter(states.values())).alert_id} never opened", *(one.line for one in states.values())
            )
        if closed is not None and (closed.closed_at or 0) <= opened_at:
            report.convict(f"{closed.alert_id} closed no later than it opened", closed.line)
        if before is not None and opened is not None and (before.closed_at is None or before.closed_at > opened_at):
            what = "was not resolved before" if before.closed_at is None else "still was open when"
            report.convict(f"{before.alert_id} {what} {opened.alert_id} opened", before.line, opened.line)
        before = closed or opened or before


def _judge_incidents(
    device: str,
    by_series: dict[Series, Alerts],
    readings: list[AlertInput],
    settings: AlertSettings,
    drained: bool,
    report: Report,
) -> None:
    for metric in {rule.metric for rule in settings.rules}:
        order = turns([one for one in readings if one.metric == metric], settings.reorder_ms)
        if order is None:
            # Whether a reading was stale then depends on the service's clock: its incidents are not compared.
            report.ambiguous(f"incidents of {device} {metric}")
            continue
        for rule in settings.rules:
            if rule.metric == metric:
                named = f"{device}/{rule.name}/{metric}"
                alerts = by_series.get((rule.name, metric), {})
                expected = incidents(order, rule)
                if expected is None:
                    report.ambiguous(f"incidents {named}")
                else:
                    _compare(named, expected, alerts, drained, report)


def _compare(named: str, expected: list[Incident], alerts: Alerts, drained: bool, report: Report) -> None:
    for incident in expected:
        states = alerts.get(incident.opened_at, {})
        closed, shown = incident.closed, states.get("closed")
        report.compared()
        name = f"{named}/{incident.opened_at}"
        if "opened" not in states and incident.decided.certain and not _is_underway(drained, report):
            report.convict(f"{name} is missing", incident.decided.line)
        if closed is not None and shown is None and closed.certain and not _is_underway(drained, report):
            report.convict(f"{name} is not resolved", closed.line)
        if shown is not None and (closed is None or shown.closed_at != closed.event_time):
            due = f"not {closed.event_time}" if closed is not None else "but it is still open"
            report.convict(f"{name} closed at {shown.closed_at}, {due}", shown.line, closed.line if closed else 0)
    known = {incident.opened_at for incident in expected}
    for opened_at, states in alerts.items():
        if opened_at not in known:
            report.convict(f"{named}/{opened_at} is no incident", *(state.line for state in states.values()))


def _is_underway(drained: bool, report: Report) -> bool:
    return not drained and report.cannot("the alerts service may have had readings left to read")


ANOMALY = Anomaly(
    "wrong-alert",
    "alerts: each incident opens one alert and closes it, at its event times; repeats are identical",
    judge,
)
