"""When a device, or one of its metrics, is silent: functions on a device's state. Pure.

A device is silent when no metric has given a reading for the limit of its liveliest one. A metric is silent when it has
given none for its own limit while the device went on; only a reading of another metric can show that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isotherm.alerts.engine import rhythm
from isotherm.alerts.engine.conditions import Change, Finding
from isotherm.alerts.engine.device_state import DeviceRuleState, MetricState, RuleState
from isotherm.alerts.rules.device_table import DeviceMetadata
from isotherm.alerts.rules.kinds import Bounds, SilentRule

SILENT = "silent"
_SUFFIX = f".{SILENT}"

AddAlert = Callable[[str, RuleState, str, Change], None]
"""Adds an alert: key of the rule, the state of the rule, kind, and what happens."""


def key_of(metric: str) -> str:
    """Return the key of the silence of a metric."""
    return metric + _SUFFIX


def is_silence(key: str) -> bool:
    """Return whether a key is that of a silence, of a device or of a metric."""
    return key == SILENT or key.endswith(_SUFFIX)


@dataclass(frozen=True)
class SilenceWatch:
    """The rule `silent` for one device: `bounds` are the device's, `reorder_ms` is how long a reading may wait."""

    rule: SilentRule
    bounds: Bounds
    reorder_ms: int

    def metric_limit_ms(self, metric: MetricState) -> int | None:
        """Return after how long a metric is silent while the device goes on, in ms; None while that is not known."""
        limit_ms = rhythm.limit_ms(metric, self.bounds)
        configured_ms = int(self.bounds["intervals"] * int(self.bounds["interval_ms"]))
        return None if limit_ms is None else max(limit_ms, configured_ms, self.reorder_ms + 1)

    def device_limit_ms(self, state: DeviceRuleState) -> int | None:
        """Return after how long without a reading the device is silent, in ms; None while that is not known."""
        if interval_ms := int(self.bounds["interval_ms"]):
            limit_ms = max(int(self.bounds["intervals"] * interval_ms), int(self.bounds["min_ms"]))
            return max(limit_ms, self.reorder_ms + 1)
        limits = [
            self.metric_limit_ms(metric)
            for name, metric in state.metrics.items()
            # What has not come back with the device says nothing of how often it gives readings now.
            if metric.newest_ms >= state.alive_since_ms and key_of(name) not in state.rules
        ]
        return min((one for one in limits if one is not None), default=None)

    def silent_after_ms(self, state: DeviceRuleState, seen_ms: int) -> int | None:
        """Return when a device that was seen last at `seen_ms` becomes silent; None when it is or never will be."""
        if seen_ms < 0 or SILENT in state.rules:
            return None
        limit_ms = self.device_limit_ms(state)
        return None if limit_ms is None else seen_ms + limit_ms

    def silent_ms(self, state: DeviceRuleState) -> int | None:
        """Return when the device becomes silent without a further reading; None when it is or never will be."""
        # A buffered reading is a sign of life, too.
        waiting = [one.buffered[-1].event_time_ms for one in state.metrics.values() if one.buffered]
        return self.silent_after_ms(state, max([state.last_seen_ms, *waiting]))

    def unreported_ms(self, state: DeviceRuleState, device: DeviceMetadata | None) -> int | None:
        """Return when a device with a record but without a reading is told; None when it never is."""
        unreported_ms = int(self.bounds["unreported_ms"])
        is_waiting = state.last_seen_ms < 0 and not state.metrics and not state.rules and not state.is_forgotten
        if device is None or device.since_ms < 0 or not unreported_ms or not is_waiting:
            return None
        return device.since_ms + unreported_ms

    def open(self, state: DeviceRuleState, at_ms: int, add_alert: AddAlert, kind: str = SILENT) -> None:
        """Open the silence of the device."""
        opened = state.rules[SILENT] = RuleState(opened_ms=at_ms, severity=self.rule.severity)
        add_alert(SILENT, opened, kind, Change("opened", at_ms, at_ms, Finding(True, False, None, None)))

    def end(self, state: DeviceRuleState, at_ms: int, add_alert: AddAlert) -> None:
        """Close the silence before a sign of life at `at_ms`; open it first when time has not done so."""
        silent_ms = self.silent_after_ms(state, state.last_seen_ms)
        if silent_ms is not None and at_ms > silent_ms:
            self.open(state, silent_ms, add_alert)
        # A reading from before the silence does not close it, however late it arrives.
        if close(state, SILENT, at_ms, add_alert):
            state.alive_since_ms = at_ms

    def look_at_metrics(self, state: DeviceRuleState, at_ms: int, add_alert: AddAlert) -> None:
        """Open the silences of metrics that the device, which gave a reading at `at_ms`, should have given by then.

        After a silence of the device it has the whole limit of each metric to come back.
        """
        if len(state.metrics) < 2:
            state.alive_since_ms = -1
            return
        for name, metric in state.metrics.items() if self.rule.per_metric else ():
            key, limit_ms = key_of(name), self.metric_limit_ms(metric)
            due_ms = max(metric.newest_ms, state.alive_since_ms) + (limit_ms or 0)
            if limit_ms is None or key in state.rules or at_ms <= due_ms:
                continue
            opened = state.rules[key] = RuleState(opened_ms=due_ms, severity=self.rule.severity)
            add_alert(key, opened, SILENT, Change("opened", due_ms, due_ms, Finding(True, False, None, None)))
        back = (
            metric.newest_ms >= state.alive_since_ms or key_of(name) in state.rules
            for name, metric in state.metrics.items()
        )
        if all(back):
            state.alive_since_ms = -1


def close(state: DeviceRuleState, key: str, at_ms: int, add_alert: AddAlert) -> bool:
    """Close the silence with this key at a reading at `at_ms`, if it began before; return whether it did."""
    rule_state = state.rules.get(key)
    if rule_state is None or rule_state.opened_ms is None or at_ms <= rule_state.opened_ms:
        return False
    del state.rules[key]
    change = Change("closed", rule_state.opened_ms, at_ms, Finding(False, True, None, None))
    add_alert(key, rule_state, SILENT, change)
    return True
