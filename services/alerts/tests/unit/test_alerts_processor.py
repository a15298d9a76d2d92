"""The order of writes, and the state after a crash between any two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState
from isotherm.alerts.engine.reading import Reading, RejectedReadingError
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.alerts.stream.outputs import Cause
from isotherm.alerts.stream.processor import MAX_ALERTS_IN_FLIGHT, Processor

NOW_MS, MAX_PUBLISH_DELAY_MS = 1_000_000_000, 2_000
RULES = [
    {"kind": "above", "metric": "temperature", "threshold": 30},
    {"kind": "silent", "intervals": 3, "cautious_intervals": 3, "min_ms": 1_000},
]


class CrashError(Exception):
    """The process is killed here."""


class Outputs:
    """A Kafka that accepts `lives` more records until the process dies; unreported records may be lost."""

    def __init__(self, lives: int = 1_000) -> None:
        self.lives = lives
        self.written: list[tuple[str, Any]] = []

    async def wait_for_room(self) -> None:
        """There always is."""

    wait_for_quiet_room = wait_for_room

    async def flush_earlier(self) -> None:
        """It always is."""

    async def flush(self) -> None:
        """It always is."""

    def write_changelog(
        self, partition: int, device_id: str, value: bytes | None, on_stored: Callable[[], None] = lambda: None
    ) -> None:
        self._write("change", (partition, device_id, value))
        on_stored()

    def write_alert(self, record: AlertRecord, on_stored: Callable[[], None], cause: Cause | None = None) -> None:
        self._write("alert", dict(record))
        on_stored()

    def write_latest(self, device_id: str, state: DeviceRuleState, now_ms: int) -> None:
        self._write("state", (device_id, state.last_seen_ms, state.open_alerts(device_id)))

    def forget_latest(self, device_id: str) -> None:
        self._write("state", (device_id, None, None))

    def of(self, kind: str) -> list[Any]:
        return [one for name, one in self.written if name == kind]

    def _write(self, kind: str, one: Any) -> None:
        if self.lives == 0:
            raise CrashError
        self.lives -= 1
        self.written.append((kind, one))


class SlowOutputs(Outputs):
    """A Kafka that acknowledges only when the caller waits."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Callable[[], None]] = []

    async def flush(self) -> None:
        while self.reports:
            self.reports.pop(0)()

    def write_changelog(
        self, partition: int, device_id: str, value: bytes | None, on_stored: Callable[[], None] = lambda: None
    ) -> None:
        self._write("change", (partition, device_id, value))
        self.reports.append(on_stored)

    def write_alert(self, record: AlertRecord, on_stored: Callable[[], None], cause: Cause | None = None) -> None:
        self._write("alert", dict(record))
        self.reports.append(on_stored)


def processor(
    outputs: Outputs,
    changes: list[tuple[int, str, bytes]] | None = None,
    topics: tuple[str, ...] = ("in",),
    reorder_ms: int = 0,
) -> Processor:
    """A processor that has recovered from the changelog."""
    book = AlertsSettings.model_validate({"rules": RULES}).rule_book()
    known = DeviceTable(book, {})
    store = DeviceStateStore(topics)
    for partition, device_id, value in changes or []:
        store.restore(partition, device_id, value)
    store.own([0])
    engine = RuleEngine(book, known.default_bounds, reorder_ms)
    return Processor(
        engine,
        known,
        store,
        outputs,  # type: ignore[arg-type]  # a stand-in
        Metrics(),
        max_skew_ms=60_000,
        max_publish_delay_ms=MAX_PUBLISH_DELAY_MS,
        now_ms=lambda: NOW_MS,
    )


def reading(number: int, value: float) -> Reading:
    return Reading("d", "temperature", value, "Cel", number * 1_000, number * 1_000, number)


READINGS = [reading(number, value) for number, value in enumerate((20, 31, 32, 20, 33, 20, 20, 20, 20), 1)]


async def live(service: Processor, readings: list[Reading], until_ms: int) -> None:
    for one in readings:
        await service.process("in", 0, one)
    await service.advance_time(0, until_ms)
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
    state = service.store.partitions[0].state("d")
    assert state == changelog.decode(changes[-1][2])


async def test_who_lost_a_partition_does_nothing_for_it() -> None:
    outputs = Outputs()
    service = processor(outputs)
    service.store.own([1])
    await live(service, READINGS, 1_000_000)
    assert outputs.written == []


async def test_a_tombstone_forgets_a_device() -> None:
    outputs = Outputs()
    await live(processor(outputs), READINGS[:1], 0)
    store = processor(Outputs(), outputs.of("change")).store
    assert len(store) == 1
    store.restore(0, "d", None)
    assert len(store) == 0


async def test_nobody_is_silent_while_a_topic_has_told_no_time() -> None:
    outputs = Outputs()
    service = processor(outputs, topics=("in", "behind"))
    for one in READINGS:
        await service.process("in", 0, one)
    partition = service.store.partitions[0]
    assert partition.clock_ms() == 0
    partition.advance_clock("behind", 8_000)
    assert partition.clock_ms() == 8_000
    # After a rebalance what was heard of a partition that stays is still so.
    service.store.own([0, 1])
    assert [service.store.partitions[number].clock_ms() for number in (0, 1)] == [8_000, 0]


async def test_a_wrong_time_of_taking_in_moves_no_clock_beyond_the_wall() -> None:
    service = processor(Outputs())
    await service.process("in", 0, READINGS[0]._replace(ingest_time_ms=NOW_MS * 1_000))
    assert service.store.partitions[0].clock_ms() == NOW_MS


async def test_one_metric_too_many_is_refused_and_changes_nothing() -> None:
    outputs = Outputs()
    service = processor(outputs)
    for number in range(64):
        await service.process("in", 0, READINGS[0]._replace(metric=f"m{number}"))
    await service.settle()
    written = list(outputs.written)
    with pytest.raises(RejectedReadingError, match="'d' has 64 metrics, 'm64' would be one more") as refused:
        await service.process("in", 0, READINGS[0]._replace(metric="m64"))
    assert refused.value.reason == "too-many-metrics"
    assert outputs.written == written
    await service.settle()
    assert outputs.of("change") == [one for kind, one in written if kind == "change"]
    await service.process("in", 0, READINGS[1]._replace(metric="m63"))
    await service.settle()
    assert len(outputs.of("change")) == 2


async def test_alerts_that_kafka_does_not_take_do_not_pile_up_in_a_memory() -> None:
    outputs = SlowOutputs()
    service = processor(outputs)
    for number in range(1, 4 * MAX_ALERTS_IN_FLIGHT):
        await service.process("in", 0, reading(number, 20 + 20 * (number % 2)))
    assert len(outputs.of("alert")) > 2 * MAX_ALERTS_IN_FLIGHT
    assert max(len(changelog.decode(one[2]).outbox) for one in outputs.of("change")) <= MAX_ALERTS_IN_FLIGHT + 1


@st.composite
def deliveries(draw: st.DrawFn) -> list[Reading]:
    """Readings of two metrics of a device in their order of arrival, some of them long after their event time."""
    found = []
    for metric in ("temperature", "humidity"):
        numbered, at_ms = draw(st.booleans()), 0
        for index, (gap_ms, delay_ms) in enumerate(
            draw(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 10_000)), min_size=1, max_size=20))
        ):
            at_ms += gap_ms
            number = index + 1 if numbered else 0
            found.append(Reading("d", metric, float(29 + index % 3), "Cel", at_ms, at_ms + delay_ms, number))
    return sorted(found, key=lambda one: one.ingest_time_ms + draw(st.integers(0, 500)))


async def alerts_of(readings: list[Reading], sweeps: list[list[int]]) -> list[Any]:
    """The alerts when time passes before each reading; no sweep uses readings that have not arrived yet."""
    outputs = Outputs(1_000_000)
    service = processor(outputs, reorder_ms=1_000)
    taken_in_ms = 0
    for one, times in zip(readings, sweeps, strict=True):
        taken_in_ms = max(taken_in_ms, one.ingest_time_ms)
        for at_ms in times:
            await service.advance_time(0, min(at_ms, taken_in_ms - MAX_PUBLISH_DELAY_MS))
        await service.process("in", 0, one)
    await service.advance_time(0, 10_000_000)
    return outputs.of("alert")


@given(deliveries(), st.data())
def test_a_service_that_catches_up_tells_what_it_would_have_told_live(
    readings: list[Reading], data: st.DataObject
) -> None:
    times = st.lists(st.integers(0, 120_000), max_size=3)
    live = data.draw(st.lists(times, min_size=len(readings), max_size=len(readings)))
    behind: list[list[int]] = [[] for _ in readings]
    assert asyncio.run(alerts_of(readings, live)) == asyncio.run(alerts_of(readings, behind))


async def test_the_brokers_time_moves_the_clock_and_tells_what_was_held_back() -> None:
    outputs = Outputs()
    service = processor(outputs)
    partition = service.store.partitions[0]
    # Taken in by a host whose clock is ahead of the broker's.
    await service.process("in", 0, reading(500, 20), appended_ms=400_000)
    assert partition.clock_ms() == 400_000
    await service.process("in", 0, reading(501, 40), appended_ms=501_000 + MAX_PUBLISH_DELAY_MS + 1)
    assert partition.clock_ms() == 501_000 + MAX_PUBLISH_DELAY_MS + 1
    late = "isotherm_alerts_readings_late_total"
    assert service._metrics.registry.get_sample_value(late) == 1
    await service.settle()
    # It tells what has happened: rules see it.
    assert [alert["state"] for alert in outputs.of("alert")] == ["opened"]


async def test_a_broker_whose_clock_is_ahead_makes_no_device_silent() -> None:
    outputs = Outputs()
    service = processor(outputs)
    for now_s in range(1_000, 1_020):
        service._now_ms = lambda now_ms=now_s * 1_000: now_ms  # type: ignore[misc]  # it has a default
        await service.process("in", 0, reading(now_s, 20), appended_ms=now_s * 1_000 + 3_600_000)
        assert service.store.partitions[0].clock_ms() == now_s * 1_000
        await service.advance_time(0, now_s * 1_000 - MAX_PUBLISH_DELAY_MS)
    assert outputs.of("alert") == []


async def test_what_was_fetched_before_a_rebalance_is_not_applied_until_the_states_are_recovered() -> None:
    """A state that grew by it would look newer than the new owner's, and replace it when the partition comes back."""
    outputs = Outputs()
    service = processor(outputs)
    assert await service.process("in", 0, READINGS[0]) is True
    await service.drain()
    before = list(outputs.written)
    assert before
    assert [await service.process("in", 0, one) for one in READINGS[1:4]] == [False] * 3
    await service.advance_time(0, NOW_MS)
    await service.settle()
    assert outputs.written == before
    service.open()
    assert await service.process("in", 0, READINGS[1]) is True
    assert len(outputs.of("change")) > sum(1 for kind, _ in before if kind == "change")


async def test_a_reading_of_another_processs_partition_is_not_applied() -> None:
    assert await processor(Outputs()).process("in", 1, READINGS[0]) is False


async def test_a_commit_writes_a_device_once_whatever_it_has_read() -> None:
    outputs = Outputs()
    service = processor(outputs)
    for number in range(1, 101):
        await service.process("in", 0, reading(number, 20))
    assert outputs.written == []
    await service.settle()
    ((_partition, device_id, value),) = outputs.of("change")
    assert (device_id, changelog.decode(value)) == ("d", service.store.partitions[0].state("d"))
    assert outputs.of("state") == [("d", 100_000, [])]
    await service.settle()
    assert len(outputs.written) == 2


class YieldingOutputs(Outputs):
    """A Kafka for which every write waits a moment, so that readings are processed between two writes."""

    async def wait_for_room(self) -> None:
        await asyncio.sleep(0)


OF_TWO_DEVICES = [one._replace(device_id=name) for one in READINGS for name in ("d", "e")]


async def alerts_over_crashes(steps: list[str]) -> list[Any]:
    """The alerts of all processes: each recovers the changelog, and reads on behind the last commit."""
    changes: list[Any] = []
    alerts: list[Any] = []
    outputs, committed, position = YieldingOutputs(), 0, 0
    service = processor(outputs)
    for step in [*steps, "crash", *["read"] * len(OF_TWO_DEVICES), "commit"]:
        if step == "crash":
            changes, alerts = [*changes, *outputs.of("change")], [*alerts, *outputs.of("alert")]
            outputs, position = YieldingOutputs(), committed
            service = processor(outputs, changes)
            continue
        processed = position
        settling = asyncio.create_task(service.settle()) if step == "commit" else None
        if position < len(OF_TWO_DEVICES):
            await service.process("in", 0, OF_TWO_DEVICES[position])
            position += 1
        if settling is not None:
            await settling
            committed = processed
    await service.advance_time(0, 1_000_000)
    return [*alerts, *outputs.of("alert")]


@given(st.lists(st.sampled_from(["read", "read", "commit", "crash"]), max_size=60))
def test_what_is_committed_is_in_the_changelog(steps: list[str]) -> None:
    expected = distinct(asyncio.run(alerts_over_crashes([])))
    assert len(expected) == 10
    assert distinct(asyncio.run(alerts_over_crashes(steps))) == expected
