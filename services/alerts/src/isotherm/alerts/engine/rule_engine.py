"""The rule engine: applies readings and the passing of time to the state of one device.

Every decision follows from the device's state, the reading or the time, and the device's metadata. A reading that was
applied before changes nothing, so a part of the input may be read again at any time. One long step of time has the same
effects as many short ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isotherm.alerts.engine import alert_records, combinations, quiet, reorder, rule_changes, trend
from isotherm.alerts.engine.conditions import Change, Finding, advance, evaluate
from isotherm.alerts.engine.device_state import (
    DEFAULT_SEVERITY,
    MAX_METRICS,
    AlertRecord,
    BufferedReading,
    DeviceRuleState,
    MetricState,
    RuleState,
)
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.comparisons import OffGroupMeanRule
from isotherm.alerts.rules.device_table import DeviceMetadata
from isotherm.alerts.rules.group_means import GroupMean, GroupMeans
from isotherm.alerts.rules.kinds import Bounds
from isotherm.alerts.rules.rule_book import RuleBook

_MIN_INTERVALS = 5
"""How many intervals between readings must be known before a device can become silent."""
_WEIGHT = 8
"""The usual interval is an exponential mean in which a new interval counts for an eighth."""
UNKNOWN = "unknown-device"
SILENT = "silent"


@dataclass(frozen=True)
class RuleEngine:
    """Applies the rules to one device at a time. `reorder_ms` is how long a reading waits for earlier readings."""

    rules: RuleBook
    default_bounds: Mapping[str, Bounds]
    reorder_ms: int
    max_metrics: int = MAX_METRICS
    means: GroupMeans = field(default_factory=GroupMeans)

    def admits(self, state: DeviceRuleState, reading: Reading) -> bool:
        """Return whether the device may have the reading's metric: the number of metrics is limited."""
        return reading.metric in state.metrics or len(state.metrics) < self.max_metrics

    def apply(
        self, state: DeviceRuleState, reading: Reading, device: DeviceMetadata | None
    ) -> list[AlertRecord] | None:
        """Apply a reading that the engine admits to the state of its device.

        Returns the alerts that follow, None when the reading is stale.
        """
        metric = state.metrics.get(reading.metric) or MetricState()
        buffered = BufferedReading(reading.event_time_ms, reading.sequence, reading.value, reading.unit)
        if not reorder.offer(metric, buffered):
            return None
        state.metrics[reading.metric] = metric
        alerts = self._end_changed(state, reading.device_id)
        self._release(state, reading.device_id, reading.metric, device, alerts)
        while sum(len(one.buffered) for one in state.metrics.values()) > reorder.MAX_BUFFERED_OF_DEVICE:
            waiting = [name for name, one in state.metrics.items() if one.buffered]
            first = min(waiting, key=lambda name: state.metrics[name].buffered[0].event_time_ms)
            self._release(state, reading.device_id, first, device, alerts, over_limit=True)
        state.revision += 1
        state.outbox.extend(alerts)
        return alerts

    def quiet_bounds(self, metric: str, device: DeviceMetadata | None) -> quiet.QuietBounds | None:
        """Return within which bounds a reading of a metric only changes numbers; None when a rule needs every reading.

        With the state of a quiet device they are all that the compiled code knows of the rules.
        """
        return quiet.quiet_bounds(self.rules, self.default_bounds, metric, device)

    def quiet_bounds_of(self, state: DeviceRuleState, device: DeviceMetadata | None) -> list[quiet.QuietBounds] | None:
        """Return the bounds of each metric of a device of which nothing is open, pending or waiting, else None."""
        bounds = {name: self.quiet_bounds(name, device) for name in state.metrics}
        return [one for one in bounds.values() if one is not None] if quiet.is_quiet(state, bounds) else None

    def advance_time(
        self, state: DeviceRuleState, device_id: str, device: DeviceMetadata | None, now_ms: int
    ) -> list[AlertRecord] | None:
        """Advance the device's time to `now_ms` (epoch ms), up to which every reading has arrived.

        Returns the alerts that follow, None when nothing was due.
        """
        alerts = self._end_changed(state, device_id)
        was_due = bool(alerts)
        # Advance from one due time to the next, because the effects of one decide when the next is.
        while (at_ms := self.due_ms(state, device)) is not None and at_ms <= now_ms:
            was_due = True
            waiting = [name for name, one in state.metrics.items() if reorder.due_ms(one, self.reorder_ms) == at_ms]
            for name in waiting:
                self._release(state, device_id, name, device, alerts, at_ms)
            if not waiting:
                self._open_silence(state, device_id, at_ms, device, alerts)
        if not was_due:
            return None
        state.revision += 1
        state.outbox.extend(alerts)
        return alerts

    def is_changed(self, state: DeviceRuleState) -> bool:
        """Return whether something of a device is open or pending by a rule that was removed or changed since."""
        return rule_changes.has_ended(self.rules, state)

    def end_changed(self, state: DeviceRuleState, device_id: str) -> list[AlertRecord]:
        """Close what rules have opened that were removed or changed since; return the alerts that follow."""
        alerts = self._end_changed(state, device_id)
        state.revision += 1
        state.outbox.extend(alerts)
        return alerts

    def _end_changed(self, state: DeviceRuleState, device_id: str) -> list[AlertRecord]:
        alerts = []
        for key, ended, closed_ms, reason in rule_changes.end(self.rules, state):
            assert ended.opened_ms is not None
            change = Change("closed", ended.opened_ms, closed_ms, Finding(False, True, None, None))
            alerts.append(alert_records.record(device_id, key, ended.severity, "", change, "", reason))
        return alerts

    def due_ms(self, state: DeviceRuleState, device: DeviceMetadata | None) -> int | None:
        """Return when `advance_time` will have an effect if no reading comes, in epoch ms; None for never."""
        times = [reorder.due_ms(metric, self.reorder_ms) for metric in state.metrics.values()]
        times.append(self._silent_ms(state, device))
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def _release(
        self,
        state: DeviceRuleState,
        device_id: str,
        name: str,
        device: DeviceMetadata | None,
        alerts: list[AlertRecord],
        now_ms: int | None = None,
        *,
        over_limit: bool = False,
    ) -> None:
        metric = state.metrics[name]
        before = metric.event_time_ms, metric.value
        while reorder.release(metric, self.reorder_ms, now_ms, over_limit=over_limit) is not None:
            over_limit = False
            self._mark_seen(state, device_id, metric.event_time_ms, device, alerts)
            _learn_interval(metric, before[0], self._silence_ms(state, device))
            now = metric.event_time_ms, metric.value
            metric.trend_per_hour, before = trend.followed(metric.trend_per_hour, before, now), now
            self._evaluate(state, device_id, name, metric, device, alerts)

    def _evaluate(
        self,
        state: DeviceRuleState,
        device_id: str,
        name: str,
        metric: MetricState,
        device: DeviceMetadata | None,
        alerts: list[AlertRecord],
    ) -> None:
        bounds = device.bounds if device else self.default_bounds
        for rule in self.rules.by_metric.get(name, ()):
            known = state.rules.get(rule.key)
            if known is not None and rule_changes.is_held(known, metric.event_time_ms):
                continue
            rule_state = rule_changes.taken_up(rule, known)
            mean = self._mean(rule, device) if isinstance(rule, OffGroupMeanRule) else None
            change = evaluate(rule, bounds[rule.key], rule_state, metric, mean)
            self._store(state, device_id, rule, rule_state, change, metric.unit, device, alerts)
        metric.samples.clear()
        for combined in self.rules.combined.get(name, ()):
            known, at_ms = state.rules.get(combined.key), combinations.time_of(combined, state.metrics)
            if known is not None and rule_changes.is_held(known, at_ms):
                continue
            rule_state = rule_changes.taken_up(combined, known)
            finding = combinations.find(combined, state.metrics, at_ms)
            change = advance(rule_state, at_ms, finding, bounds[combined.key]["for_ms"])
            self._store(state, device_id, combined, rule_state, change, "", device, alerts)
        rule_changes.forget_removed(self.rules, state, metric.event_time_ms)

    def _mean(self, rule: OffGroupMeanRule, device: DeviceMetadata | None) -> GroupMean | None:
        group = device.attributes.get(rule.group) if device is not None else None
        return None if group is None else self.means.get(rule.group, group, rule.metric)

    def _evaluate_unknown(
        self,
        state: DeviceRuleState,
        device_id: str,
        at_ms: int,
        device: DeviceMetadata | None,
        alerts: list[AlertRecord],
    ) -> None:
        rule = self.rules.unknown_device
        rule_state = state.rules.get(UNKNOWN)
        # Most devices are known and need no state of this rule.
        if rule is None or (device is not None and rule_state is None):
            return
        if rule_state is not None and rule_changes.is_held(rule_state, at_ms):
            return
        rule_state = rule_changes.taken_up(rule, rule_state)
        finding = Finding(device is None, device is not None, None, None)
        bounds = device.bounds if device else self.default_bounds
        change = advance(rule_state, at_ms, finding, bounds[UNKNOWN]["for_ms"])
        self._store(state, device_id, rule, rule_state, change, "", device, alerts)

    def _store(
        self,
        state: DeviceRuleState,
        device_id: str,
        rule: Rule,
        rule_state: RuleState,
        change: Change | None,
        unit: str,
        device: DeviceMetadata | None,
        alerts: list[AlertRecord],
    ) -> None:
        if change is not None:
            if change.state == "opened":
                rule_state.severity = rule.severity
            text = alert_records.text_of(rule, device_id, change, unit, device.attributes if device else {})
            alerts.append(alert_records.record(device_id, rule.key, rule_state.severity, rule.kind, change, unit, text))
            if change.state == "closed":
                rule_state.severity = DEFAULT_SEVERITY
        rule_changes.note_version(self.rules, rule, rule_state)
        if rule_state.is_idle():
            state.rules.pop(rule.key, None)
        else:
            state.rules[rule.key] = rule_state

    def _silence_ms(self, state: DeviceRuleState, device: DeviceMetadata | None) -> int | None:
        """Return after how many ms without a reading the device is silent; None while that is not known."""
        if self.rules.silent is None:
            return None
        # While the rules are replaced, a device may have bounds of rules without this one already.
        bounds = device.bounds.get(SILENT) if device else None
        bounds = self.default_bounds[SILENT] if bounds is None else bounds
        interval_ms = int(bounds["interval_ms"])
        if not interval_ms:
            learned = [one.interval_ms for one in state.metrics.values() if one.intervals_seen >= _MIN_INTERVALS]
            if not learned:
                return None
            interval_ms = min(learned)
        return max(int(bounds["intervals"] * interval_ms), int(bounds["min_ms"]), self.reorder_ms + 1)

    def _silent_ms(self, state: DeviceRuleState, device: DeviceMetadata | None) -> int | None:
        """Return when the device becomes silent without a further reading; None when it is silent or never will be."""
        # A buffered reading is a sign of life, too.
        waiting = [one.buffered[-1].event_time_ms for one in state.metrics.values() if one.buffered]
        seen_ms = max([state.last_seen_ms, *waiting])
        return self._silent_after(state, device, seen_ms)

    def _silent_after(self, state: DeviceRuleState, device: DeviceMetadata | None, seen_ms: int) -> int | None:
        silence_ms = self._silence_ms(state, device)
        if silence_ms is None or seen_ms < 0 or SILENT in state.rules:
            return None
        return seen_ms + silence_ms

    def _open_silence(
        self,
        state: DeviceRuleState,
        device_id: str,
        at_ms: int,
        device: DeviceMetadata | None,
        alerts: list[AlertRecord],
    ) -> None:
        rule = self.rules.silent
        assert rule is not None
        state.rules[SILENT] = RuleState(opened_ms=at_ms, severity=rule.severity)
        change = Change("opened", at_ms, at_ms, Finding(True, False, None, None))
        text = alert_records.text_of(rule, device_id, change, "", device.attributes if device else {})
        alerts.append(alert_records.record(device_id, rule.key, rule.severity, rule.kind, change, "", text))

    def _mark_seen(
        self,
        state: DeviceRuleState,
        device_id: str,
        at_ms: int,
        device: DeviceMetadata | None,
        alerts: list[AlertRecord],
    ) -> None:
        """Record that the device gave readings up to `at_ms`.

        Buffered readings of other metrics that were measured before `at_ms` are signs of life, too.
        """
        buffered = {one.event_time_ms for metric in state.metrics.values() for one in metric.buffered}
        for seen_ms in sorted(one for one in {*buffered, at_ms} if state.last_seen_ms < one <= at_ms):
            self._close_silence(state, device_id, seen_ms, device, alerts)
            state.last_seen_ms = seen_ms
            self._evaluate_unknown(state, device_id, seen_ms, device, alerts)

    def _close_silence(
        self,
        state: DeviceRuleState,
        device_id: str,
        at_ms: int,
        device: DeviceMetadata | None,
        alerts: list[AlertRecord],
    ) -> None:
        """Close the silence before a sign of life at `at_ms`; open it first when `advance_time` has not done so."""
        silent_ms = self._silent_after(state, device, state.last_seen_ms)
        if silent_ms is not None and at_ms > silent_ms:
            self._open_silence(state, device_id, silent_ms, device, alerts)
        rule_changes.forget_ended(state, SILENT, at_ms)
        rule_state = state.rules.get(SILENT)
        # A reading from before the silence does not close it, however late it arrives.
        if rule_state is not None and rule_state.opened_ms is not None and at_ms > rule_state.opened_ms:
            del state.rules[SILENT]
            change = Change("closed", rule_state.opened_ms, at_ms, Finding(False, True, None, None))
            alerts.append(alert_records.record(device_id, SILENT, rule_state.severity, SILENT, change, ""))


def _learn_interval(metric: MetricState, before_ms: int, silence_ms: int | None) -> None:
    interval_ms = metric.event_time_ms - before_ms
    if before_ms < 0 or interval_ms <= 0 or (silence_ms is not None and interval_ms > silence_ms):
        return
    if metric.intervals_seen == 0:
        metric.interval_ms = interval_ms
    else:
        metric.interval_ms += (interval_ms - metric.interval_ms) // _WEIGHT
    metric.intervals_seen = min(metric.intervals_seen + 1, _MIN_INTERVALS)
