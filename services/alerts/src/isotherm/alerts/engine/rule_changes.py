"""What becomes of a device's alerts when the rules change, while the service runs or between two runs. Pure.

An alert remembers the version of the rule that opened it. So its device's state says what a change does to it, whenever
the change is noticed: at the device's next reading, by the sweep that follows a change, or after a crash (ADR 152).
"""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.alerts.engine import silence
from isotherm.alerts.engine.device_state import DEFAULT_SEVERITY, DeviceRuleState, RuleState
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.kinds import FlatRule, RateRule, SilentRule, UnknownDeviceRule
from isotherm.alerts.rules.rule_book import RuleBook

REMOVED = "the rule was removed"
CHANGED = "the rule was changed"

ENDED = "ended"
"""In place of a version: a change has ended an alert that was opened at `since_ms`, and no later reading has come."""


def has_ended(rules: RuleBook, state: DeviceRuleState) -> bool:
    """Return whether something open or pending of the device ends by a change of the rules."""
    return any(_ended_by(rules, key, rule_state) for key, rule_state in state.rules.items())


def end(rules: RuleBook, state: DeviceRuleState) -> Iterator[tuple[str, RuleState, int, str]]:
    """End what is open or pending by rules that were removed or changed since.

    Yields each alert to close: the rule's key, its state as it was, the closing time (epoch ms) and the reason. The
    closing time is that of the device's last reading, so it is the same whenever the change is noticed.
    """
    ended = [(key, one, reason) for key, one in state.rules.items() if (reason := _ended_by(rules, key, one))]
    for key, rule_state, reason in sorted(ended, key=lambda one: one[0]):
        opened_ms = rule_state.opened_ms
        if opened_ms is not None:
            # An alert that opened again at the same time would have the same id.
            state.rules[key] = RuleState(since_ms=opened_ms, version=ENDED)
            yield key, rule_state, max(state.last_seen_ms, opened_ms + 1), reason
        elif reason == REMOVED:
            del state.rules[key]
        else:
            rule_state.since_ms, rule_state.version, rule_state.severity = None, "", DEFAULT_SEVERITY


def is_held(rule_state: RuleState, at_ms: int) -> bool:
    """Return whether a rule must not look at a time, because a change has ended its alert of that time."""
    return rule_state.version == ENDED and rule_state.since_ms is not None and at_ms <= rule_state.since_ms


def forget_ended(state: DeviceRuleState, key: str, at_ms: int) -> None:
    """Forget that a change has ended an alert of a rule, when a reading is later (`at_ms`, epoch ms) than its begin."""
    rule_state = state.rules.get(key)
    if rule_state is not None and rule_state.version == ENDED and not is_held(rule_state, at_ms):
        del state.rules[key]


def forget_removed(rules: RuleBook, state: DeviceRuleState, at_ms: int) -> None:
    """Forget the ended alerts of rules that are no longer there, after a reading at `at_ms` (epoch ms)."""
    if not state.rules.keys() <= rules.keys:
        for key in state.rules.keys() - rules.keys:
            # The silence of a metric ends with a reading of that metric, whatever others give.
            if not silence.is_silence(key):
                forget_ended(state, key, at_ms)


def taken_up(rule: Rule, rule_state: RuleState | None) -> RuleState:
    """Return the state with which a rule looks at a reading: without what belongs to another rule of its name."""
    if rule_state is None or rule_state.version == ENDED:
        return RuleState()
    if rule_state.highest and not isinstance(rule, RateRule):
        rule_state.highest, rule_state.lowest = [], []
    if rule_state.anchor is not None and not isinstance(rule, FlatRule):
        rule_state.anchor = rule_state.since_ms = None
    return rule_state


def note_version(rules: RuleBook, rule: Rule, rule_state: RuleState) -> None:
    """Record in a rule's state by which version of the rule something is open or pending.

    The histories of flat lines and rates are facts about readings, with which another version of the rule goes on.
    """
    is_pending = rule_state.since_ms is not None and not isinstance(rule, (FlatRule, RateRule))
    rule_state.version = rules.versions[rule.key] if rule_state.opened_ms is not None or is_pending else ""


def _ended_by(rules: RuleBook, key: str, rule_state: RuleState) -> str:
    """Return why the state of a rule ends; empty when it goes on.

    A silence, and an unknown device, go on when their rule is changed: they end with a reading or a record.
    """
    version = rule_state.version
    if version == ENDED:
        return ""
    rule = rules.rules.get(key)
    if rule is None and rules.silent is not None and rules.silent.per_metric and silence.is_silence(key):
        rule = rules.silent
    if rule is None:
        return REMOVED
    if not version or version == rules.versions[key] or isinstance(rule, (SilentRule, UnknownDeviceRule)):
        return ""
    return CHANGED
