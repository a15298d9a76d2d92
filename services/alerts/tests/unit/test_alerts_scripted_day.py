"""A scripted day through the pure core: twelve incidents, twelve alerts, whatever happens to the readings."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

import pytest

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.reading import reading_of
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.simulators.scripted_day import ScriptedDay

PARTITIONS = 4
QUIET = ScriptedDay(interval_ms=1_200_000)
DISTURBED = ScriptedDay(interval_ms=1_200_000, late_share=0.1, twice_share=0.05)


class PureService:
    """The core as the service drives it, without Kafka; `crash` loses all but the changelog."""

    def __init__(self, day: ScriptedDay) -> None:
        rules = AlertsSettings.model_validate({"rules": day.rules()}).rule_book()
        self.known = DeviceTable(rules, {})
        self.engine = RuleEngine(rules, self.known.default_bounds, day.reorder_ms)
        self.store = DeviceStateStore()
        self.store.own(range(PARTITIONS))
        self.changelog: dict[tuple[int, str], bytes] = {}
        self.alerts: list[dict[str, Any]] = []

    def crash(self) -> None:
        self.store = DeviceStateStore()
        for (partition, device_id), value in self.changelog.items():
            self.store.restore(partition, device_id, value)
        self.store.own(range(PARTITIONS))

    def read(self, records: Iterable[dict[str, Any]]) -> None:
        for record in records:
            reading = reading_of(record)
            number = int(reading.device_id[-2:]) % PARTITIONS
            partition = self.store.partitions[number]
            state = partition.state(reading.device_id)
            self._keep(number, reading.device_id, self.engine.apply(state, reading, self.known.get(reading.device_id)))
            partition.advance_clock("in", reading.ingest_time_ms)
            for device_id in list(partition.pop_due(partition.clock_ms())):
                state = partition.state(device_id)
                decided = self.engine.advance_time(state, device_id, self.known.get(device_id), partition.clock_ms())
                self._keep(number, device_id, decided)
                partition.schedule(device_id, self.engine.due_ms(state, self.known.get(device_id)))

    def _keep(self, number: int, device_id: str, decided: list[dict[str, Any]] | None) -> None:
        state = self.store.partitions[number].state(device_id)
        due_ms = self.engine.due_ms(state, self.known.get(device_id))
        self.store.partitions[number].schedule(device_id, due_ms)
        if decided is not None:
            state.outbox.clear()
            self.changelog[number, device_id] = changelog.encode(state, due_ms)
            self.alerts += decided


def live(day: ScriptedDay, crashes: int = 0) -> PureService:
    """The day with its change at noon; after a crash a part of the readings is read again."""
    service = PureService(day)
    readings = day.readings()
    for record in day.devices_records(after_noon=False):
        service.known.put(record["device_id"], record)
    noon = next(at for at, reading in enumerate(readings) if reading["ingest_time"] >= day.noon_ms)
    chance = random.Random(day.seed)
    stops = sorted(chance.randrange(noon, len(readings)) for _ in range(crashes))
    service.read(readings[:noon])
    for record in day.devices_records(after_noon=True):
        service.known.put(record["device_id"], record)
    begin = noon
    for stop in stops:
        service.read(readings[begin:stop])
        service.crash()
        begin = chance.randrange(max(noon, stop - 3_000), stop + 1)
    service.read(readings[begin:])
    return service


def incidents(alerts: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The closed alerts, one line each."""
    found = {(a["alert_id"], a["state"]): a for a in alerts}
    assert {key[1] for key in found} == {"opened", "closed"}
    opened = sorted(key[0] for key in found if key[1] == "opened")
    closed = [found[alert, "closed"] for alert in opened]
    return sorted((a["device_id"], a["rule"], a["opened_at"], a["closed_at"]) for a in closed)


@pytest.mark.parametrize(
    ("day", "crashes"),
    [(QUIET, 0), pytest.param(DISTURBED, 0, marks=pytest.mark.long), (DISTURBED, 5)],
    ids=["quiet", "disturbed", "crashes"],
)
def test_twelve_incidents_are_twelve_alerts(day: ScriptedDay, crashes: int) -> None:
    service = live(day, crashes)
    assert len(day.incidents) == 12
    assert incidents(service.alerts) == [astuple(incident) for incident in day.incidents]
    once = {(a["alert_id"], a["state"]) for a in service.alerts}
    assert len(once) == 24
    assert len(service.alerts) == 24, "what the changelog holds is not decided again"


def test_a_disturbed_day_is_disturbed() -> None:
    quiet, disturbed = QUIET.readings(), DISTURBED.readings()
    identities = [(r["device_id"], r["event_time"]) for r in disturbed]
    assert set(identities) == {(r["device_id"], r["event_time"]) for r in quiet}
    assert 0.04 < len(identities) / len(quiet) - 1 < 0.06
    late, newest = 0, dict[str, int]()
    for device_id, at_ms in identities:
        late += at_ms < newest.get(device_id, 0)
        newest[device_id] = max(at_ms, newest.get(device_id, 0))
    assert late > len(quiet) * 0.09
