"""A dry run of one rule over readings: the engine itself, with no effect. Pure."""

from __future__ import annotations

from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.reading import Reading, filter_reason
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.live_rules.rule_records import TrialResult
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.device_table import DeviceMetadata, DeviceTable
from isotherm.alerts.rules.past_group_means import PastGroupMeans
from isotherm.alerts.rules.rule_book import RuleBook


class DryRun:
    """Counts how often a rule opens an alert. The readings of a device come in the order of their topic."""

    def __init__(self, rule: Rule, table: DeviceTable, *, reorder_ms: int, max_metrics: int, max_skew_ms: int) -> None:
        """Prepare for a rule. `table` has the devices, of which the rule's own bounds and thresholds count."""
        self.means = PastGroupMeans()
        """What a rule that compares with means is compared with; the caller fills it."""
        self._rules, self._table, self._max_skew_ms = RuleBook([rule]), table, max_skew_ms
        self._engine = RuleEngine(self._rules, self._rules.overridden([]), reorder_ms, max_metrics, means=self.means)
        self._states: dict[str, DeviceRuleState] = {}
        self._devices: dict[str, DeviceMetadata | None] = {}
        self._fired: dict[str, int] = {}
        self._readings = 0
        self._from_ms: int | None = None
        self._until_ms: int | None = None

    def apply(self, reading: Reading) -> None:
        """Apply a reading."""
        if filter_reason(reading, self._max_skew_ms) is not None:
            return
        device_id = reading.device_id
        if device_id not in self._states:
            self._states[device_id] = DeviceRuleState()
            self._devices[device_id] = self._table.metadata_under(self._rules, device_id)
        state = self._states[device_id]
        if not self._engine.admits(state, reading):
            return
        self._readings += 1
        at_ms = reading.event_time_ms
        self._from_ms = at_ms if self._from_ms is None else min(self._from_ms, at_ms)
        self._until_ms = at_ms if self._until_ms is None else max(self._until_ms, at_ms)
        self.means.at_ms = at_ms
        self._engine.apply(state, reading, self._devices[device_id])
        self._count(device_id, state)

    def result(self, *, is_complete: bool) -> TrialResult:
        """Let time pass until the newest reading of all devices, and return what was counted."""
        if self._until_ms is not None:
            self.means.at_ms = self._until_ms
            for device_id, state in self._states.items():
                self._engine.advance_time(state, device_id, self._devices[device_id], self._until_ms)
                self._count(device_id, state)
        return TrialResult(
            sum(self._fired.values()), len(self._fired), self._readings, self._from_ms, self._until_ms, is_complete
        )

    def _count(self, device_id: str, state: DeviceRuleState) -> None:
        opened = sum(1 for alert in state.outbox if alert["state"] == "opened")
        state.outbox.clear()
        if opened:
            self._fired[device_id] = self._fired.get(device_id, 0) + opened
