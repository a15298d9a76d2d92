"""The rule engine: applies readings and the passing of time to the state of one device.

Every decision follows from the device's state, the reading or the time, and the device's metadata. A reading that was
applied before changes nothing, so a part of the input may be read again at any time. One long step of time has the same
effects as many short ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isotherm.alerts.engine import alert_records, combinations, quiet, reorder, rhythm, rule_changes, silence, trend
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
from isotherm.alerts.engine.silence import SILENT, AddAlert, SilenceWatch
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.comparisons import OffGroupMeanRule
from isotherm.alerts.rules.device_table import DeviceMetadata
from isotherm.alerts.rules.group_means import GroupMean, GroupMeans
from isotherm.alerts.rules.kinds import Bounds
from isotherm.alerts.rules.rule_book import RuleBook

UNKNOWN = "unknown-device"
_UNREPORTED = "unreported"


@dataclass(frozen=True)
class RuleEngine:
    """Applies the rules to one device at a time."""

    rules: RuleBook
    default_bounds: Mapping[str, Bounds]
    reorder_ms: int
    """How long a reading waits for earlier readings, unless its metric has shown that it need not."""
    max_metrics: int = MAX_METRICS
    forget_ms: int = 0
    """After how long without a reading a device without a record is forgotten; 0 for never."""
    means: GroupMeans = field(default_factory=GroupMeans)

    def admits(self, state: DeviceRuleState, reading: Reading) -> bool:
        """Return whether the device may have the reading's metric: the number of metrics is limited."""
        return reading.metric in state.metrics or len(state.metrics) < self.max_metrics

    def apply(
        self, state: DeviceRuleState, reading: Reading, device: DeviceMetadata | None
    ) -> list[AlertRecord] | None:
        """Apply a reading that the engine admits to the state of its device.

        Returns the alerts that follow, None when the reading is stale. A stale reading that comes for the first time
        shows that the readings of its metric do not come in order: that raises the revision, too.
        """
        metric = state.metrics.get(reading.metric) or MetricState()
        buffered = BufferedReading(reading.event_time_ms, reading.sequence, reading.value, reading.unit)
        is_disorder = reorder.is_first_disorder(metric, reading.event_time_ms)
        if not reorder.offer(metric, buffered):
            state.revision += is_disorder
            return None
        if reading.event_time_ms == metric.newest_ms:
            metric.lag_ms = max(reading.ingest_time_ms - reading.event_time_ms, 0)
        state.metrics[reading.metric], state.is_forgotten = metric, False
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
        forget_ms = self.forget_ms if device is None else 0
        return quiet.quiet_bounds(self.rules, self.default_bounds, metric, device, forget_ms)

    def quiet_bounds_of(self, state: DeviceRuleState, device: DeviceMetadata | None) -> list[quiet.QuietBounds] | None:
        """Return the bounds of each metric of a device of which nothing is open, pending or waiting, else None."""
        if not quiet.is_settled(state):
            return None
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
                self._advance_silence(state, device_id, device, at_ms, alerts)
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
            alerts.append(alert_records.record(device_id, key, ended, "", change, "", reason))
        return alerts

    def due_ms(self, state: DeviceRuleState, device: DeviceMetadata | None) -> int | None:
        """Return when `advance_time` will have an effect if no reading comes, in epoch ms; None for never."""
        if state.is_forgotten:
            return None
        times = [reorder.due_ms(metric, self.reorder_ms) for metric in state.metrics.values()]
        times += [self._forgotten_ms(state, device)]
        watch = self._watch(device)
        if watch is not None:
            silent_ms = watch.silent_ms(state)
            times += [None if silent_ms is None else silent_ms + _lag_ms(state), watch.unreported_ms(state, device)]
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def remove(self, state: DeviceRuleState, device_id: str, at_ms: int) -> list[AlertRecord]:
        """Close every alert of a device whose record was removed at `at_ms` (epoch ms); return the alerts that follow.

        The state is forgotten.
        """
        alerts: list[AlertRecord] = []
        self._forget(state, device_id, at_ms, alerts, "removed")
        state.revision += 1
        state.outbox.extend(alerts)
        return alerts

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
            now = metric.event_time_ms, metric.value
            watch = self._watch(device)
            silence.close(state, silence.key_of(name), now[0], self._adder(device_id, device, alerts))
            rule_changes.forget_ended(state, silence.key_of(name), now[0])
            if before[0] >= 0:
                rhythm.learn(metric, now[0] - before[0], None if watch is None else watch.metric_limit_ms(metric))
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
            attributes = device.attributes if device else {}
            if change.state == "opened":
                rule_state.severity, rule_state.attributes = rule.severity, attributes
            text = alert_records.text_of(rule, device_id, change, unit, attributes)
            alerts.append(alert_records.record(device_id, rule.key, rule_state, rule.kind, change, unit, text))
            if change.state == "closed":
                rule_state.severity, rule_state.attributes = DEFAULT_SEVERITY, None
        rule_changes.note_version(self.rules, rule, rule_state)
        if rule_state.is_idle():
            state.rules.pop(rule.key, None)
        else:
            state.rules[rule.key] = rule_state

    def _watch(self, device: DeviceMetadata | None) -> SilenceWatch | None:
        rule = self.rules.silent
        if rule is None:
            return None
        # While the rules are replaced, a device may have bounds of rules without this one already.
        bounds = device.bounds.get(SILENT) if device else None
        return SilenceWatch(rule, self.default_bounds[SILENT] if bounds is None else bounds, self.reorder_ms)

    def _adder(self, device_id: str, device: DeviceMetadata | None, alerts: list[AlertRecord]) -> AddAlert:
        rule, attributes = self.rules.silent, device.attributes if device else {}

        def add_alert(key: str, rule_state: RuleState, kind: str, change: Change) -> None:
            if change.state == "opened":
                rule_state.attributes = attributes
            text = alert_records.text_of(rule, device_id, change, "", attributes, key) if rule else None
            alerts.append(alert_records.record(device_id, key, rule_state, kind, change, "", text))

        return add_alert

    def _forgotten_ms(self, state: DeviceRuleState, device: DeviceMetadata | None) -> int | None:
        """Return when a device without a record is forgotten if no reading comes; None for never."""
        if device is not None or not self.forget_ms or state.last_seen_ms < 0:
            return None
        seen_ms = max([state.last_seen_ms, *(metric.newest_ms for metric in state.metrics.values())])
        return seen_ms + self.forget_ms + _lag_ms(state)

    def _advance_silence(
        self,
        state: DeviceRuleState,
        device_id: str,
        device: DeviceMetadata | None,
        at_ms: int,
        alerts: list[AlertRecord],
    ) -> None:
        """Open the silence that is due at `at_ms`, or forget the device if that is due."""
        watch, add_alert = self._watch(device), self._adder(device_id, device, alerts)
        silent_ms = None if watch is None else watch.silent_ms(state)
        if watch is not None and silent_ms is not None and silent_ms + _lag_ms(state) == at_ms:
            watch.open(state, silent_ms, add_alert)
        elif watch is not None and watch.unreported_ms(state, device) == at_ms:
            watch.open(state, at_ms, add_alert, _UNREPORTED)
        else:
            self._forget(state, device_id, at_ms, alerts, "forgotten")

    def _forget(self, state: DeviceRuleState, device_id: str, at_ms: int, alerts: list[AlertRecord], why: str) -> None:
        for key in sorted(state.rules):
            rule_state = state.rules[key]
            if rule_state.opened_ms is not None:
                closed_ms = max(at_ms, rule_state.opened_ms + 1)
                change = Change("closed", rule_state.opened_ms, closed_ms, Finding(False, True, None, None))
                alerts.append(alert_records.record(device_id, key, rule_state, why, change, ""))
        state.metrics.clear()
        state.rules.clear()
        state.last_seen_ms = state.alive_since_ms = -1
        state.is_forgotten = True

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
        watch, add_alert = self._watch(device), self._adder(device_id, device, alerts)
        for seen_ms in sorted(one for one in {*buffered, at_ms} if state.last_seen_ms < one <= at_ms):
            if watch is not None:
                watch.end(state, seen_ms, add_alert)
            rule_changes.forget_ended(state, SILENT, seen_ms)
            state.last_seen_ms = seen_ms
            if watch is not None:
                watch.look_at_metrics(state, seen_ms, add_alert)
            self._evaluate_unknown(state, device_id, seen_ms, device, alerts)


def _lag_ms(state: DeviceRuleState) -> int:
    """Return by how much the device's newest reading was measured before it was taken in."""
    newest = max(state.metrics.values(), key=lambda metric: metric.newest_ms, default=None)
    return 0 if newest is None else newest.lag_ms
