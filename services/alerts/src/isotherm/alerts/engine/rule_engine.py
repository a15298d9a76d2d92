"""The decisions on one device: readings in, alerts out. Knows no clock, no Kafka, no file.

Every decision follows from the memory of the device, the reading (or the time) and what is known of the device. A
reading that was taken before changes nothing, so that a part of the input may be read again at any time. Time that
passes in one step has the effects of time that passes in many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isotherm.alerts.engine import alert_records, reorder, trend
from isotherm.alerts.engine.conditions import (
    Change,
    Finding,
    see,
    step,
)
from isotherm.alerts.engine.device_state import (
    MAX_METRICS,
    AlertRecord,
    DeviceMemory,
    Held,
    MetricMemory,
    Watch,
)
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.rules.device_table import KnownDevice
from isotherm.alerts.rules.rule_book import BaseRule, Bounds, RuleBook

_LEARNED_FROM = 5
"""Distances between readings that have to be known before a device can be silent."""
_WEIGHT = 8
"""The usual interval is an exponential mean: a new distance counts for an eighth."""
UNKNOWN = "unknown-device"
SILENT = "silent"


@dataclass(frozen=True)
class Engine:
    """The rules, applied to one device at a time; `reorder_ms` is how long a reading waits for earlier ones."""

    rules: RuleBook
    default_bounds: Mapping[str, Bounds]
    reorder_ms: int
    max_metrics: int = MAX_METRICS

    def admits(self, memory: DeviceMemory, reading: Reading) -> bool:
        """Whether a device may have the reading's metric; what is remembered of a device is limited."""
        return reading.metric in memory.metrics or len(memory.metrics) < self.max_metrics

    def take(self, memory: DeviceMemory, reading: Reading, device: KnownDevice | None) -> list[AlertRecord] | None:
        """Let a device's memory take in a reading that it admits.

        Returns the alerts that follow, None when the reading is stale.
        """
        metric = memory.metrics.get(reading.metric) or MetricMemory()
        held = Held(reading.event_time_ms, reading.sequence, reading.value, reading.unit)
        if not reorder.offer(metric, held):
            return None
        memory.metrics[reading.metric] = metric
        alerts: list[AlertRecord] = []
        self._release(memory, reading.device_id, reading.metric, device, alerts)
        while sum(len(one.held) for one in memory.metrics.values()) > reorder.MAX_HELD_OF_DEVICE:
            waiting = [name for name, one in memory.metrics.items() if one.held]
            first = min(waiting, key=lambda name: memory.metrics[name].held[0].event_time_ms)
            self._release(memory, reading.device_id, first, device, alerts, crowded=True)
        memory.revision += 1
        memory.outbox.extend(alerts)
        return alerts

    def tick(
        self, memory: DeviceMemory, device_id: str, device: KnownDevice | None, now_ms: int
    ) -> list[AlertRecord] | None:
        """Let time pass: `now_ms` is a time up to which everything has arrived; None when nothing is due."""
        alerts: list[AlertRecord] = []
        passed = False
        # One moment after the other: what happens in one says when the next is.
        while (at_ms := self.due_ms(memory, device)) is not None and at_ms <= now_ms:
            passed = True
            waiting = [name for name, one in memory.metrics.items() if reorder.due_ms(one, self.reorder_ms) == at_ms]
            for name in waiting:
                self._release(memory, device_id, name, device, alerts, at_ms)
            if not waiting:
                self._fall_silent(memory, device_id, at_ms, alerts)
        if not passed:
            return None
        memory.revision += 1
        memory.outbox.extend(alerts)
        return alerts

    def due_ms(self, memory: DeviceMemory, device: KnownDevice | None) -> int | None:
        """When `tick` will have something to do if no reading comes; None for never."""
        times = [reorder.due_ms(metric, self.reorder_ms) for metric in memory.metrics.values()]
        times.append(self._silent_ms(memory, device))
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def _release(
        self,
        memory: DeviceMemory,
        device_id: str,
        name: str,
        device: KnownDevice | None,
        alerts: list[AlertRecord],
        now_ms: int | None = None,
        *,
        crowded: bool = False,
    ) -> None:
        metric = memory.metrics[name]
        before = metric.event_time_ms, metric.value
        while reorder.release(metric, self.reorder_ms, now_ms, crowded=crowded) is not None:
            crowded = False
            self._hear(memory, device_id, metric.event_time_ms, device, alerts)
            _learn_interval(metric, before[0], self._silence_ms(memory, device))
            now = metric.event_time_ms, metric.value
            metric.trend_per_hour, before = trend.followed(metric.trend_per_hour, before, now), now
            self._see(memory, device_id, name, metric, device, alerts)

    def _see(
        self,
        memory: DeviceMemory,
        device_id: str,
        name: str,
        metric: MetricMemory,
        device: KnownDevice | None,
        alerts: list[AlertRecord],
    ) -> None:
        bounds = device.bounds if device else self.default_bounds
        for rule in self.rules.by_metric.get(name, ()):
            watch = memory.watches.get(rule.key) or Watch()
            change = see(rule, bounds[rule.key], watch, metric)
            self._note(memory, device_id, rule, watch, change, metric.unit, alerts)
        metric.samples.clear()
        self._drop_removed_rules(memory, device_id, metric.event_time_ms, alerts)

    def _see_known(
        self, memory: DeviceMemory, device_id: str, at_ms: int, device: KnownDevice | None, alerts: list[AlertRecord]
    ) -> None:
        rule = self.rules.unknown_device
        watch = memory.watches.get(UNKNOWN)
        # A known device is the rule: nothing to remember of it.
        if rule is None or (device is not None and watch is None):
            return
        watch = watch or Watch()
        finding = Finding(device is None, device is not None, None, None)
        bounds = device.bounds if device else self.default_bounds
        self._note(memory, device_id, rule, watch, step(watch, at_ms, finding, bounds[UNKNOWN]["for_ms"]), "", alerts)

    def _drop_removed_rules(self, memory: DeviceMemory, device_id: str, at_ms: int, alerts: list[AlertRecord]) -> None:
        """Close what a rule has opened that is configured no more: an alert that opened closes."""
        if memory.watches.keys() <= self.rules.keys:
            return
        for key in sorted(memory.watches.keys() - self.rules.keys):
            watch = memory.watches.pop(key)
            if watch.opened_ms is not None:
                change = Change(
                    "closed", watch.opened_ms, max(at_ms, watch.opened_ms), Finding(False, True, None, None)
                )
                alerts.append(alert_records.record(device_id, key, watch.severity, "rule", change, ""))

    def _note(
        self,
        memory: DeviceMemory,
        device_id: str,
        rule: BaseRule,
        watch: Watch,
        change: Change | None,
        unit: str,
        alerts: list[AlertRecord],
    ) -> None:
        if change is not None:
            if change.state == "opened":
                watch.severity = rule.severity
            alerts.append(alert_records.record(device_id, rule.key, watch.severity, rule.kind, change, unit))
        if watch.is_idle():
            memory.watches.pop(rule.key, None)
        else:
            memory.watches[rule.key] = watch

    def _silence_ms(self, memory: DeviceMemory, device: KnownDevice | None) -> int | None:
        """After how long without a reading the device counts as silent; None while that is not known."""
        if self.rules.silent is None:
            return None
        bounds = (device.bounds if device else self.default_bounds)[SILENT]
        interval_ms = int(bounds["interval_ms"])
        if not interval_ms:
            learned = [one.interval_ms for one in memory.metrics.values() if one.gaps >= _LEARNED_FROM]
            if not learned:
                return None
            interval_ms = min(learned)
        return max(int(bounds["intervals"] * interval_ms), int(bounds["min_ms"]), self.reorder_ms + 1)

    def _silent_ms(self, memory: DeviceMemory, device: KnownDevice | None) -> int | None:
        """When the device will be silent if it gives no further reading; None when it is, or that is not known."""
        # A reading that waits for its turn has been heard: nobody is silent who has one waiting.
        waiting = [one.held[-1].event_time_ms for one in memory.metrics.values() if one.held]
        heard_ms = max([memory.last_seen_ms, *waiting])
        return self._silent_after(memory, device, heard_ms)

    def _silent_after(self, memory: DeviceMemory, device: KnownDevice | None, heard_ms: int) -> int | None:
        silence_ms = self._silence_ms(memory, device)
        if silence_ms is None or heard_ms < 0 or SILENT in memory.watches:
            return None
        return heard_ms + silence_ms

    def _fall_silent(self, memory: DeviceMemory, device_id: str, at_ms: int, alerts: list[AlertRecord]) -> None:
        rule = self.rules.silent
        assert rule is not None
        watch = Watch(opened_ms=at_ms, severity=rule.severity)
        memory.watches[SILENT] = watch
        change = Change("opened", at_ms, at_ms, Finding(True, False, None, None))
        alerts.append(alert_records.record(device_id, rule.key, rule.severity, rule.kind, change, ""))

    def _hear(
        self, memory: DeviceMemory, device_id: str, at_ms: int, device: KnownDevice | None, alerts: list[AlertRecord]
    ) -> None:
        """A reading has its turn, and what is newer than all before it tells that the device is there.

        So does one of another metric that was measured before it and still waits.
        """
        heard = {one.event_time_ms for metric in memory.metrics.values() for one in metric.held}
        for heard_ms in sorted(one for one in {*heard, at_ms} if memory.last_seen_ms < one <= at_ms):
            self._end_silence(memory, device_id, heard_ms, device, alerts)
            memory.last_seen_ms = heard_ms
            self._see_known(memory, device_id, heard_ms, device, alerts)

    def _end_silence(
        self, memory: DeviceMemory, device_id: str, at_ms: int, device: KnownDevice | None, alerts: list[AlertRecord]
    ) -> None:
        """The silence before a sign of life, if there was one, is over, whether time told it or not."""
        silent_ms = self._silent_after(memory, device, memory.last_seen_ms)
        if silent_ms is not None and at_ms > silent_ms:
            self._fall_silent(memory, device_id, silent_ms, alerts)
        watch = memory.watches.get(SILENT)
        # What was measured before the silence began, and given later, does not say that it is over.
        if watch is not None and watch.opened_ms is not None and at_ms > watch.opened_ms:
            del memory.watches[SILENT]
            change = Change("closed", watch.opened_ms, at_ms, Finding(False, True, None, None))
            alerts.append(alert_records.record(device_id, SILENT, watch.severity, SILENT, change, ""))


def _learn_interval(metric: MetricMemory, before_ms: int, silence_ms: int | None) -> None:
    gap_ms = metric.event_time_ms - before_ms
    if before_ms < 0 or gap_ms <= 0 or (silence_ms is not None and gap_ms > silence_ms):
        return
    if metric.gaps == 0:
        metric.interval_ms = gap_ms
    else:
        metric.interval_ms += (gap_ms - metric.interval_ms) // _WEIGHT
    metric.gaps = min(metric.gaps + 1, _LEARNED_FROM)
