"""Devices in the table of quiet devices when the rules change, and when their record is removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from alerts_batches import LATEST_HEADER, SCHEMA_ID, record
from test_alerts_processor import Outputs

from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.hotpath.compiled import QuietDevices
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.alerts.stream.outputs import QuietRow
from isotherm.alerts.stream.processor import Processor

RECORD: dict[str, Any] = {"home": None, "region": None, "model": None, "thresholds": {}}
EVERY_MS, NOW_MS, FORGET_MS = 10_000, 100_000_000, 50_000_000
ABOVE: dict[str, Any] = {"kind": "above", "metric": "t", "threshold": 30}


def book(threshold: float = 30, intervals: float = 10, *more: dict[str, Any]) -> RuleBook:
    silent = {"kind": "silent", "interval_ms": EVERY_MS, "intervals": intervals, "min_ms": 1_000}
    return book_of({"kind": "above", "metric": "t", "threshold": threshold}, silent, *more)


def book_of(*rules: dict[str, Any]) -> RuleBook:
    return AlertsSettings.model_validate({"rules": rules}).rule_book()


class QuietOutputs(Outputs):
    """Takes the rows of quiet devices, too."""

    latest_header = LATEST_HEADER

    def write_quiet(self, number: int, rows: Iterable[QuietRow]) -> None:
        for device_id, value, _latest in rows:
            self._write("change", (number, device_id.decode(), value))
            self._write("state", (device_id.decode(), value, []))


class Service:
    """A processor with the table of quiet devices, and readings of `attic` every ten seconds.

    It has recovered from `values` of the changelog. Without the table it stands for one without the compiled module.
    """

    def __init__(
        self,
        rules: RuleBook | None = None,
        values: Iterable[tuple[int, str, bytes | None]] = (),
        *,
        is_known: bool = True,
        has_table: bool = True,
    ) -> None:
        rules = rules or book()
        self.devices, self.outputs = DeviceTable(rules, {}), QuietOutputs()
        if is_known:
            self.devices.put("attic", RECORD, 0)
        store = DeviceStateStore(("in",), self._new_table if has_table else None)
        store.add_schemas([SCHEMA_ID])
        self.processor = Processor(
            RuleEngine(rules, self.devices.default_bounds, 0, forget_ms=FORGET_MS),
            self.devices,
            store,
            self.outputs,  # type: ignore[arg-type]  # a stand-in
            Metrics(),
            max_skew_ms=60_000,
            max_publish_delay_ms=0,
            now_ms=lambda: NOW_MS,
            partition_of=lambda _device_id: 0,
        )
        for value in values:
            store.restore(*value)
        store.own([0])
        self.processor.open()
        self.number = 0

    def _new_table(self) -> QuietDevices:
        return QuietDevices(0, self.processor.quiet_bounds)

    async def read(self, *values: float, at_ms: int | None = None) -> None:
        """Give the next readings; one by one, as parts of one record."""
        for value in values:
            if at_ms is None:
                self.number += 1
            time_ms = self.number * EVERY_MS if at_ms is None else at_ms
            await self.feed(Reading("attic", "t", value, "Cel", time_ms, time_ms, self.number))

    async def feed(self, reading: Reading) -> None:
        one = record(reading)
        judged = await self.processor.judge("in", 0, [one], 0, uses_append_time=True)
        assert judged is not None
        for _index, clock_ms in judged.rest:
            self.processor.advance_clock("in", 0, clock_ms)
            await self.processor.process("in", 0, reading)
        self.processor.advance_clock("in", 0, judged.clock_ms)

    def is_quiet(self) -> bool:
        """Return whether the device is in the compiled table."""
        partition = self.processor.store.partitions[0]
        return partition.quiet is not None and "attic" in partition.quiet and "attic" not in partition.states

    def alerts(self) -> list[tuple[str, str, int]]:
        return [(one["rule"], one["state"], one["opened_at"]) for one in self.outputs.of("alert")]


async def test_a_quiet_device_breaks_a_new_threshold_at_its_next_reading() -> None:
    service = Service()
    await service.read(*[20.0] * 10)
    assert service.is_quiet()
    await service.processor.reload_rules(book(threshold=15))
    await service.processor.end_changed()
    assert service.alerts() == []
    await service.read(20.0)
    assert service.alerts() == [("above", "opened", 110_000)]
    # The former rules come back: the alert ends by the change, and the device is quiet again from then on.
    await service.processor.reload_rules(book())
    await service.processor.end_changed()
    assert [state for _rule, state, _at in service.alerts()] == ["opened", "closed"]
    await service.read(*[20.0] * 3)
    assert service.is_quiet()


async def test_a_quiet_device_with_another_limit_of_silence_is_due_by_it_without_a_reading() -> None:
    service = Service()
    await service.read(*[20.0] * 10)
    await service.processor.advance_time(0, 199_999)
    assert (service.alerts(), service.is_quiet()) == ([], True)
    await service.processor.reload_rules(book(intervals=3))
    await service.processor.advance_time(0, 129_999)
    assert (service.alerts(), service.is_quiet()) == ([], True)
    await service.processor.advance_time(0, 130_000)
    assert service.alerts() == [("silent", "opened", 130_000)]


async def test_a_longer_limit_of_silence_holds_for_a_quiet_device_too() -> None:
    service = Service()
    await service.read(*[20.0] * 10)
    await service.processor.reload_rules(book(intervals=50))
    await service.processor.advance_time(0, 599_999)
    assert service.alerts() == []
    await service.processor.advance_time(0, 600_000)
    assert service.alerts() == [("silent", "opened", 600_000)]


async def test_a_quiet_device_that_leaves_the_registry_is_removed_and_its_old_readings_do_not_bring_it_back() -> None:
    service = Service()
    await service.read(*[20.0] * 10)
    await service.processor.settle(whole=True)
    service.devices.put("attic", None, 100_000)
    service.processor.reschedule(["attic"])
    await service.processor.advance_time(0, 100_000)
    assert len(service.processor.store) == 0
    assert service.outputs.of("change")[-1] == (0, "attic", None)
    assert service.outputs.of("state")[-1] == ("attic", None, None)
    await service.read(20.0, at_ms=100_000)
    await service.processor.settle(whole=True)
    assert len(service.processor.store) == 0
    assert service.outputs.of("change")[-1] == (0, "attic", None)
    # Later readings are those of an unknown device, which is quiet as others are.
    await service.read(*[20.0] * 5)
    assert service.is_quiet()


async def test_a_quiet_device_that_went_on_after_its_removal_gives_no_earlier_readings() -> None:
    service = Service()
    await service.feed(Reading("attic", "h", 40.0, "%", 5_000, 5_000, 1))
    await service.read(*[20.0] * 10)
    service.devices.put("attic", None, 95_000)
    service.processor.reschedule(["attic"])
    await service.processor.advance_time(0, 100_000)
    assert len(service.processor.store) == 1
    # From before the removal, and new to its metric.
    await service.feed(Reading("attic", "h", 41.0, "%", 90_000, 90_000, 2))
    state = service.processor.store.partitions[0].state("attic")
    assert (state.metrics["h"].value, state.metrics["t"].value) == (40.0, 20.0)


async def test_a_quiet_device_that_nobody_knows_is_forgotten_with_time() -> None:
    service = Service(is_known=False)
    await service.read(*[20.0] * 10)
    assert service.is_quiet()
    await service.processor.advance_time(0, 100_000 + FORGET_MS - 1)
    assert len(service.processor.store) == 1
    await service.processor.advance_time(0, 100_000 + FORGET_MS)
    assert len(service.processor.store) == 0
    assert service.outputs.of("change")[-1] == (0, "attic", None)


async def test_a_reading_after_the_time_of_forgetting_begins_another_device_without_silences_too() -> None:
    service = Service(is_known=False)
    await service.processor.reload_rules(book_of(ABOVE))
    await service.read(*[20.0] * 10)
    assert service.is_quiet()
    late_ms = 100_000 + FORGET_MS + 5_000
    await service.feed(Reading("attic", "t", 35.0, "Cel", late_ms, late_ms, 11))
    await service.processor.settle(whole=True)
    assert len(service.processor.store) == 1
    assert service.alerts() == [("above", "opened", late_ms)]
    assert service.outputs.of("state")[-1][1] == late_ms


async def test_a_quiet_device_is_not_told_as_one_that_never_reported() -> None:
    service = Service()
    await service.read(*[20.0] * 10)
    assert service.is_quiet()
    service.processor.reschedule(["attic"])
    service.processor.reschedule(["attic"], is_changed=False)
    await service.processor.advance_time(0, 150_000)
    assert (service.alerts(), service.is_quiet(), len(service.processor.store)) == ([], True, 1)


LONG_NAMED: dict[str, Any] = {"kind": "flat", "name": "x" * 300, "metric": "t", "tolerance": 0.1, "for_ms": 3_600_000}


async def test_the_engine_takes_the_devices_of_a_rule_whose_name_has_no_place_in_the_table() -> None:
    service = Service()
    await service.read(*[20.0] * 10)
    await service.processor.reload_rules(book(30, 10, LONG_NAMED))
    await service.read(20.0)
    assert (service.alerts(), service.is_quiet()) == ([], False)


async def test_a_silent_device_of_a_rule_whose_name_has_no_place_in_the_table_is_told() -> None:
    service = Service()
    await service.read(*[20.0] * 10)
    await service.processor.reload_rules(book(30, 10, LONG_NAMED))
    await service.processor.advance_time(0, 200_001)
    assert (service.alerts(), service.is_quiet()) == ([("silent", "opened", 200_000)], False)


@pytest.mark.parametrize("has_table", [True, False])
async def test_rules_that_changed_while_no_process_ran_hold_for_quiet_devices(has_table: bool) -> None:
    former = Service(book_of(ABOVE))
    await former.read(*[20.0] * 10)
    await former.processor.settle(whole=True)
    service = Service(book(), former.outputs.of("change"), has_table=has_table)
    await service.processor.end_changed()
    await service.processor.advance_time(0, 199_999)
    assert service.alerts() == []
    await service.processor.advance_time(0, 200_001)
    assert service.alerts() == [("silent", "opened", 200_000)]


async def test_a_device_that_never_gave_a_reading_is_told_by_rules_that_came_later() -> None:
    service = Service(book_of(ABOVE))
    silent = {"kind": "silent", "interval_ms": EVERY_MS, "unreported_ms": 50_000}
    await service.processor.reload_rules(book_of(ABOVE, silent))
    await service.processor.advance_time(0, 49_999)
    assert service.alerts() == []
    await service.processor.advance_time(0, 50_000)
    assert service.alerts() == [("silent", "opened", 50_000)]


async def test_a_device_that_goes_to_the_engine_and_back_takes_no_more_memory_each_time() -> None:
    service = Service()
    for number in range(1, 201):
        at_ms = number * EVERY_MS
        await service.feed(Reading("attic", "t", 20.0, ("Cel", "K")[number % 2], at_ms, at_ms, number))
    assert service.is_quiet()
    partition = service.processor.store.partitions[0]
    assert len(partition._queue) <= 2
    # The times of the former entries pass without effect.
    silent_ms = 201 * EVERY_MS + 9 * EVERY_MS
    await service.processor.advance_time(0, silent_ms - 1)
    assert (service.alerts(), service.is_quiet()) == ([], True)
    await service.processor.advance_time(0, silent_ms)
    assert service.alerts() == [("silent", "opened", silent_ms)]
