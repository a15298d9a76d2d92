"""Measures the compiled judging of quiet devices in one process, without servers: readings, checkpoints, restoring.

    python bench/alerts/quiet_devices_bench.py --devices 1200000

Each device gives a reading in each round, in another random order; one in 10,000 is too hot and goes to the engine, as
does the next one, which closes the alert. What a service adds (fetching, producing, commits) is not in the figures.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import isotherm.schemas
from isotherm.alerts.engine import device_state
from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.hotpath.compiled import QuietDevices
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit.avro import encoder
from isotherm.stack.measurement import environment, load_average

RULES = [
    {"kind": "above", "metric": "temperature", "threshold": 30, "hysteresis": 1},
    {"kind": "below", "metric": "temperature", "threshold": 5, "hysteresis": 1},
    {"kind": "rate", "metric": "temperature", "threshold": 50},
    {"kind": "flat", "metric": "temperature"},
    {"kind": "silent"},
]
_SCHEMA_ID = 7
_START_MS, _EVERY_MS, _DELAY_MS, _MAX_SKEW_MS = 1_750_000_000_000, 10_000, 40_000, 60_000
_NEVER_MS = 2**62
_BATCH, _AT_ONCE, _HOT_SHARE = 10_000, 1_000, 10_000
_ENCODE = encoder(isotherm.schemas.schema("SensorReading", 1), _SCHEMA_ID)


class Record(NamedTuple):
    """A record as Kafka's client gives it."""

    value: bytes
    timestamp: int
    timestamp_type: int
    reading: Reading


class World:
    """The devices, and the engine for what the compiled code leaves to it."""

    def __init__(self, devices: int, seed: int) -> None:
        book = AlertsSettings.model_validate({"rules": RULES}).rule_book()
        self.engine = RuleEngine(book, DeviceTable(book, {}).default_bounds, 5_000)
        self.devices, self._choose = devices, random.Random(seed)
        self._hot = set[int]()
        self._open: dict[str, DeviceRuleState] = {}
        self.decided = 0
        self.clock_ms = 0
        self.table = self.empty_table()

    def empty_table(self) -> QuietDevices:
        """Return a table without devices."""
        table = QuietDevices(self.engine.reorder_ms, lambda _device, metric: self.engine.quiet_bounds(metric, None))
        table.add_schema(_SCHEMA_ID)
        return table

    def fill(self) -> None:
        """Give every device its first reading by the engine."""
        for device in range(self.devices):
            self.apply(_record(device, 0, 20.0).reading)

    def batches(self, round_number: int) -> Iterator[list[Record]]:
        """Yield one reading of each device, in another order in each round."""
        order = list(range(self.devices))
        self._choose.shuffle(order)
        for begin in range(0, self.devices, _BATCH):
            yield [_record(device, round_number, self._value(device)) for device in order[begin : begin + _BATCH]]

    def _value(self, device: int) -> float:
        if device in self._hot:
            self._hot.remove(device)
        elif self._choose.randrange(_HOT_SHARE) == 0:
            self._hot.add(device)
            return 35.0
        return self._choose.uniform(19.0, 23.0)

    def judge(self, records: list[Record]) -> None:
        """Judge a batch, and give what is left to the engine."""
        begin = 0
        while begin < len(records):
            rest, begin = self.table.judge(
                records,
                begin,
                clock_ms=self.clock_ms,
                other_clocks_ms=_NEVER_MS,
                now_ms=_NEVER_MS,
                delay_ms=_DELAY_MS,
                max_skew_ms=_MAX_SKEW_MS,
                uses_append_time=False,
            )
            self.clock_ms = self.table.clock_ms
            for index, _clock_ms in rest:
                self.apply(records[index].reading)

    def apply(self, reading: Reading) -> None:
        """Apply a reading by the engine."""
        taken = self.table.take(reading.device_id)
        state = self._open.pop(reading.device_id, DeviceRuleState()) if taken is None else taken[0]
        self.decided += len(self.engine.apply(state, reading, None) or ())
        state.outbox.clear()
        bounds = self.engine.quiet_bounds_of(state, None)
        if bounds is None or not self.table.put(
            reading.device_id, state, bounds, changed_in=self.table.checkpoint_number + 1
        ):
            self._open[reading.device_id] = state


def _record(device: int, number: int, value: float) -> Record:
    at_ms = _START_MS + number * _EVERY_MS
    reading = Reading(f"device-{device:07}", "temperature", value, "Cel", at_ms, at_ms, number + 1)
    fields: dict[str, Any] = {
        "device_id": reading.device_id,
        "metric": reading.metric,
        "value": value,
        "unit": reading.unit,
        "event_time": at_ms,
        "ingest_time": at_ms,
        "sequence": reading.sequence,
        "attributes": {},
    }
    return Record(_ENCODE(fields), at_ms, 0, reading)


def _cpu_s(act: Callable[[], object]) -> float:
    begin_s = time.process_time()
    act()
    return time.process_time() - begin_s


def _resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1_200_000)
    parser.add_argument("--rounds", type=int, default=5, help="readings of each device that are judged")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("\n".join(environment()))
    world = World(arguments.devices, arguments.seed)
    fill_s = _cpu_s(world.fill)
    print(f"{len(world.table):,} devices, {len(RULES)} rules, filled by the engine in {fill_s:.1f} CPU s")
    judged_s = 0.0
    for number in range(1, arguments.rounds + 1):
        for records in world.batches(number):
            judged_s += _cpu_s(partial(world.judge, records))
    count = arguments.rounds * arguments.devices
    print(f"{count:,} readings judged, {world.decided:,} alerts: {count / judged_s:,.0f} a CPU second")
    changelog: list[tuple[bytes, bytes]] = []

    def checkpoint() -> None:
        world.table.begin_checkpoint(1)
        while world.table.unwritten:
            written = world.table.checkpoint(_AT_ONCE, b"\0\0\0\0\7", _START_MS)
            changelog.extend((device_id, value) for device_id, value, _latest in written)

    checkpoint_s = _cpu_s(checkpoint)
    size = sum(len(value) for _device_id, value in changelog) / len(changelog)
    print(f"{len(changelog):,} devices in a checkpoint in {checkpoint_s:.2f} CPU s, {size:.0f} bytes a changelog value")
    print(f"at most {_resident_mb():,.0f} MB, with the readings of a batch and the whole checkpoint")
    restored = world.empty_table()
    restore_s = _cpu_s(lambda: [restored.restore(*one) for one in changelog])
    print(f"{len(restored):,} devices restored in {restore_s:.2f} CPU s, load {load_average()}")
    sample = random.Random(arguments.seed).sample(changelog, min(1_000, len(changelog)))
    if any(device_state.decode(value) != _taken(restored, device_id) for device_id, value in sample):
        raise RuntimeError("restored states differ from the written ones")


def _taken(table: QuietDevices, device_id: bytes) -> DeviceRuleState | None:
    taken = table.take(device_id.decode())
    return None if taken is None else taken[0]


if __name__ == "__main__":
    main()
