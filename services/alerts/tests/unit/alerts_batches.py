"""Two ways through the same records: the engine one by one, and batches whose quiet readings compiled code judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import isotherm.schemas
from isotherm.alerts.engine import device_state
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState
from isotherm.alerts.engine.reading import Reading, filter_reason
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.hotpath.compiled import QuietDevices
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit.avro import encoder

SCHEMA_ID = 7
DELAY_MS, MAX_SKEW_MS, NOW_MS = 40_000, 60_000, 4_000_000_000_000
ENCODE = encoder(isotherm.schemas.schema("SensorReading", 1), SCHEMA_ID)
ENCODE_LATEST = encoder(isotherm.schemas.schema("DeviceState", 2), SCHEMA_ID)
LATEST_HEADER = b"\0" + SCHEMA_ID.to_bytes(4, "big")


class Record(NamedTuple):
    """A record as Kafka's client gives it."""

    value: bytes
    timestamp: int
    timestamp_type: int
    reading: Reading


def record(reading: Reading, attributes: Mapping[str, str] | None = None, appended_ms: int | None = None) -> Record:
    """Return the record of a reading; with `appended_ms` its topic has append times."""
    fields = {
        "device_id": reading.device_id,
        "metric": reading.metric,
        "value": reading.value,
        "unit": reading.unit,
        "event_time": reading.event_time_ms,
        "ingest_time": reading.ingest_time_ms,
        "sequence": reading.sequence,
        "attributes": dict(attributes or {}),
    }
    time_ms, kind = (reading.ingest_time_ms, 0) if appended_ms is None else (appended_ms, 1)
    return Record(ENCODE(fields), time_ms, kind, reading)


def rule_engine(rules: Sequence[Mapping[str, Any]], reorder_ms: int = 5_000) -> RuleEngine:
    """Return an engine with these rules."""
    book = AlertsSettings.model_validate({"rules": list(rules)}).rule_book()
    return RuleEngine(book, DeviceTable(book, {}).default_bounds, reorder_ms)


@dataclass
class OneByOne:
    """The engine judges every record: what is right."""

    engine: RuleEngine
    devices: DeviceTable
    states: dict[str, DeviceRuleState] = field(default_factory=dict)
    alerts: list[AlertRecord] = field(default_factory=list)
    clock_ms: int = 0
    written: Callable[[str], None] = lambda _device_id: None
    """Called when a device's state has decided alerts."""

    def state(self, device_id: str) -> DeviceRuleState:
        return self.states.setdefault(device_id, DeviceRuleState())

    def process(self, one: Record) -> None:
        """Apply a record as the service does."""
        reading = one.reading
        self.clock_ms = max(self.clock_ms, min(one.timestamp, NOW_MS))
        if filter_reason(reading, MAX_SKEW_MS) is not None:
            return
        state = self.state(reading.device_id)
        self.advance(reading.device_id, state)
        self.publish(reading.device_id, state, self.engine.apply(state, reading, self.devices.get(reading.device_id)))

    def advance(self, device_id: str, state: DeviceRuleState) -> None:
        """Advance the time of a device to the clock."""
        device = self.devices.get(device_id)
        decided = self.engine.advance_time(state, device_id, device, self.clock_ms - DELAY_MS)
        self.publish(device_id, state, decided)

    def publish(self, device_id: str, state: DeviceRuleState, decided: list[AlertRecord] | None) -> None:
        self.alerts.extend(decided or [])
        state.outbox.clear()
        if decided:
            self.written(device_id)


class Batches:
    """Compiled code judges batches, and the engine what is left; checkpoints and kills in between."""

    def __init__(self, engine: RuleEngine, devices: DeviceTable) -> None:
        self.engine, self.devices = engine, devices
        self.changelog: dict[str, bytes] = {}
        self.latest: dict[str, bytes] = {}
        self.alerts: list[AlertRecord] = []
        self.quiet = 0
        self._begin()

    def _begin(self) -> None:
        self.table = QuietDevices(
            self.engine.reorder_ms, lambda device_id, name: self.engine.quiet_bounds(name, self.devices.get(device_id))
        )
        self.table.add_schema(SCHEMA_ID)
        self.single = OneByOne(self.engine, self.devices, alerts=self.alerts, written=self._write)

    def feed(self, records: Sequence[Record]) -> None:
        """Judge a batch."""
        begin = 0
        while begin < len(records):
            rest, begin = self.table.judge(
                records,
                begin,
                clock_ms=self.single.clock_ms,
                other_clocks_ms=NOW_MS,
                now_ms=NOW_MS,
                delay_ms=DELAY_MS,
                max_skew_ms=MAX_SKEW_MS,
                uses_append_time=True,
            )
            clock_ms = self.table.clock_ms
            self.quiet += self.table.quiet
            for index, before_ms in rest:
                self.single.clock_ms = before_ms
                self._process(records[index])
            self.single.clock_ms = max(clock_ms, self.single.clock_ms)

    def _process(self, one: Record) -> None:
        self._take(one.reading.device_id)
        self.single.process(one)
        self._put(one.reading.device_id)

    def _take(self, device_id: str) -> None:
        taken = self.table.take(device_id)
        if taken is not None:
            assert device_id not in self.single.states
            self.single.states[device_id] = taken[0]

    def _put(self, device_id: str) -> None:
        state = self.single.states.get(device_id)
        if state is None:
            return
        bounds = self.engine.quiet_bounds_of(state, self.devices.get(device_id))
        if bounds is not None and self.table.put(device_id, state, bounds, changed_in=self.table.checkpoint_number + 1):
            del self.single.states[device_id]

    def advance(self) -> None:
        """Advance the time of all due devices."""
        for device_id in [*self.table.pop_due(self.single.clock_ms - DELAY_MS), *self.single.states]:
            self._take(device_id)
            self.single.advance(device_id, self.single.state(device_id))
            self._put(device_id)

    def _write(self, device_id: str) -> None:
        state = self.single.states[device_id]
        due_ms = self.engine.due_ms(state, self.devices.get(device_id))
        self.changelog[device_id] = device_state.encode(state, due_ms)

    def checkpoint(self) -> None:
        """Write the states of all changed devices, two at a time."""
        for device_id in self.single.states:
            self._write(device_id)
        self.table.begin_checkpoint(self.table.checkpoint_number + 1)
        while self.table.unwritten:
            for key, value, latest in self.table.checkpoint(2, LATEST_HEADER, NOW_MS):
                self.changelog[key.decode()] = value
                self.latest[key.decode()] = latest

    def kill(self) -> None:
        """Forget everything that is not in the changelog, and recover."""
        self._begin()
        for device_id, value in self.changelog.items():
            if not self.table.restore(device_id.encode(), value):
                self.single.states[device_id] = device_state.decode(value)

    def states(self, clock_ms: int) -> dict[str, DeviceRuleState]:
        """Advance all devices to the clock, which a kill has reset; hand their states back and return them."""
        self.single.clock_ms = clock_ms
        self.advance()
        self.checkpoint()  # Names every device.
        known = {*self.changelog, *(one["device_id"] for one in self.alerts)}
        for device_id in known | {*self.single.states}:
            self._take(device_id)
        return self.single.states
