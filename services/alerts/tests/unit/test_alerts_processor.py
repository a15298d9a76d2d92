"""The order in which things are written, and what is found after a crash between any two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from alerts import memory as changelog
from alerts.engine import Engine
from alerts.fleet import Fleet
from alerts.known import KnownDevices
from alerts.memory import AlertRecord, DeviceMemory
from alerts.metrics import Metrics
from alerts.processor import Processor
from alerts.reading import Reading
from alerts.settings import AlertsSettings

RULES = [
    {"kind": "above", "metric": "temperature", "threshold": 30},
    {"kind": "silent", "intervals": 3, "min_ms": 1_000},
]


class CrashError(Exception):
    """The process is killed here."""


class Outputs:
    """A Kafka that takes `lives` more records, and then the process is gone; what waits for a report may be lost."""

    def __init__(self, lives: int = 1_000) -> None:
        self.lives = lives
        self.written: list[tuple[str, Any]] = []

    async def room(self) -> None:
        """There always is."""

    async def stored_so_far(self) -> None:
        """It always is."""

    def change(
        self, partition: int, device_id: str, value: bytes | None, then: Callable[[], None] = lambda: None
    ) -> None:
        self._write("change", (partition, device_id, value))
        then()

    def alert(self, record: AlertRecord, then: Callable[[], None]) -> None:
        self._write("alert", dict(record))
        then()

    def state(self, device_id: str, memory: DeviceMemory, now_ms: int) -> None:
        self._write("state", (device_id, memory.last_seen_ms, memory.open_alerts(device_id)))

    def of(self, kind: str) -> list[Any]:
        return [one for name, one in self.written if name == kind]

    def _write(self, kind: str, one: Any) -> None:
        if self.lives == 0:
            raise CrashError
        self.lives -= 1
        self.written.append((kind, one))


def processor(outputs: Outputs, changes: list[tuple[int, str, bytes]] | None = None) -> Processor:
    """A processor that has recovered what the changelog holds."""
    book = AlertsSettings.model_validate({"rules": RULES}).rule_book()
    known = KnownDevices(book, {})
    fleet = Fleet()
    for partition, device_id, value in changes or []:
        fleet.restore(partition, device_id, value)
    fleet.own([0])
    engine = Engine(book, known.default_bounds, reorder_ms=0)
    return Processor(engine, known, fleet, outputs, Metrics(), 60_000, now_ms=lambda: 0)  # type: ignore[arg-type]  # a stand-in


def reading(number: int, value: float) -> Reading:
    return Reading("d", "temperature", value, "Cel", number * 1_000, number * 1_000, number)


READINGS = [reading(number, value) for number, value in enumerate((20, 31, 32, 20, 33, 20, 20, 20, 20), 1)]


async def live(service: Processor, readings: list[Reading], until_ms: int) -> None:
    for one in readings:
        await service.take("in", 0, one)
    await service.sweep(0, until_ms)
    await service.settle()


def distinct(alerts: list[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in alerts:
        key = (one["alert_id"], one["state"])
        assert found.setdefault(key, one) == one, "a repeat is another record"
    return found


async def test_the_changelog_comes_before_its_alert() -> None:
    outputs = Outputs()
    await live(processor(outputs), READINGS, 1_000_000)
    kinds = [name for name, _ in outputs.written]
    alerts = [at for at, name in enumerate(kinds) if name == "alert"]
    assert len(alerts) == 5
    before = [outputs.written[at - 1] for at in alerts]
    assert all(kind == "change" and changelog.decode(one[2]).outbox for kind, one in before)
    assert changelog.decode(outputs.of("change")[-1][2]).outbox == []
    assert outputs.of("state") == [("d", 9_000, ["d/silent/12000"])]


async def test_a_crash_between_any_two_writes_loses_nothing_and_changes_nothing() -> None:
    whole = Outputs()
    await live(processor(whole), READINGS, 1_000_000)
    expected = distinct(whole.of("alert"))
    for lives in range(len(whole.written)):
        first = Outputs(lives)
        crashed = False
        try:
            await live(processor(first), READINGS, 1_000_000)
        except CrashError:
            crashed = True
        assert crashed
        second = Outputs()
        # Nothing was committed: all of it is read again.
        await live(processor(second, first.of("change")), READINGS, 1_000_000)
        assert distinct(first.of("alert") + second.of("alert")) == expected, lives
        assert second.of("state")[-1] == whole.of("state")[-1]


async def test_an_older_memory_never_takes_the_place_of_a_newer_one() -> None:
    outputs = Outputs()
    await live(processor(outputs), READINGS, 0)
    changes = outputs.of("change")
    service = processor(Outputs(), [*changes, changes[0]])
    memory = service.fleet.partitions[0].memory("d")
    assert memory == changelog.decode(changes[-1][2])


async def test_who_lost_a_partition_does_nothing_for_it() -> None:
    outputs = Outputs()
    service = processor(outputs)
    service.fleet.own([1])
    await live(service, READINGS, 1_000_000)
    assert outputs.written == []


async def test_a_tombstone_forgets_a_device() -> None:
    outputs = Outputs()
    await live(processor(outputs), READINGS[:1], 0)
    fleet = processor(Outputs(), outputs.of("change")).fleet
    assert len(fleet) == 1
    fleet.restore(0, "d", None)
    assert len(fleet) == 0
