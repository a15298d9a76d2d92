"""A scripted day through the real service: twelve incidents give twelve alerts, whatever is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from alerts_world import Topics, Worker, until

from isotherm.simulators.scripted_day import UNKNOWN_DEVICE, ScriptedDay
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

FreePort = Callable[[], int]


class Day:
    """A day, its topics, and up to two workers that process it."""

    def __init__(self, topics: Topics, folder: Path, free_port: FreePort, day: ScriptedDay) -> None:
        self.topics, self.day = topics, day
        self._folder, self._free_port = folder, free_port
        self.workers: list[Worker] = []
        readings = day.readings()
        noon = next(at for at, one in enumerate(readings) if one["ingest_time"] >= day.noon_ms)
        self.morning, self.afternoon = readings[:noon], readings[noon:]

    def worker(self) -> Worker:
        made = Worker(
            self.topics,
            self._folder,
            self._free_port(),
            rules=self.day.rules(),
            reorder_ms=self.day.reorder_ms,
            max_publish_delay_ms=1_000,  # a reading is under way for a tenth of a second
            advance_when_idle="false",
        )
        self.workers.append(made)
        return made

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()

    def live_until_noon(self) -> Worker:
        """Let one worker read the morning; at noon the record of the last device is written."""
        self.topics.publish(self.topics.devices, self.day.devices_records(after_noon=False))
        worker = self.worker().start()
        self.topics.publish(self.topics.input, self.morning)
        self.until_unread(0)
        before = worker.counted("device_records_total")
        self.topics.publish(self.topics.devices, self.day.devices_records(after_noon=True))
        until("noon is known", lambda: worker.counted("device_records_total") > before)
        return worker

    def until_unread(self, at_most: int) -> None:
        until(f"{at_most} readings are left", lambda: self.topics.unread() <= at_most)

    def verify(self) -> None:
        """Twelve alerts with their times, and the newest state of every device."""
        found = self.topics.distinct_alerts()
        assert len(found) == 24
        closed = [one for (_, state), one in found.items() if state == "closed"]
        happened = sorted((one["device_id"], one["rule"], one["opened_at"], one["closed_at"]) for one in closed)
        assert happened == [astuple(incident) for incident in self.day.incidents]
        for (alert_id, state), one in found.items():
            opened = found[alert_id, "opened"]
            assert one["opened_at"] == opened["opened_at"], (alert_id, state)
            assert (one["closed_at"] is None) == (state == "opened")
        self._verify_latest()

    def _verify_latest(self) -> None:
        newest: dict[str, dict[str, Any]] = {}
        for one in self.topics.records(self.topics.latest):
            known = newest.get(one["device_id"])
            if known is None or one["updated_at"] >= known["updated_at"]:
                newest[one["device_id"]] = one
        assert len(newest) == self.day.devices
        assert [one["open_alerts"] for one in newest.values()] == [[]] * self.day.devices
        # Those that number their readings wait for none at the end of the day.
        last = {one["device_id"]: one["event_time"] for one in sorted(self.morning + self.afternoon, key=_measured)}
        for number in range(1, self.day.devices, 2):
            name = f"day-{number:04}"
            assert newest[name]["latest"]["temperature"]["event_time"] == last[name]
        assert UNKNOWN_DEVICE in newest


def _measured(record: dict[str, Any]) -> int:
    at_ms: int = record["event_time"]
    return at_ms


@pytest.fixture
def start_day(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: FreePort
) -> Iterator[Callable[[ScriptedDay], Day]]:
    with ExitStack() as at_end:

        def start(day: ScriptedDay) -> Day:
            topics = Topics(kafka.bootstrap_servers, registry.url)
            topics.declare()
            made = Day(topics, tmp_path, free_port, day)
            at_end.callback(made.end)
            return made

        yield start


def test_a_disturbed_day_with_a_kill_is_twelve_alerts(start_day: Callable[[ScriptedDay], Day]) -> None:
    today = start_day(ScriptedDay(interval_ms=1_800_000, late_share=0.1, twice_share=0.05))
    worker = today.live_until_noon()
    count = today.topics.publish(today.topics.input, today.afternoon)
    today.until_unread(count * 2 // 3)
    worker.kill()
    worker.start()
    today.until_unread(0)
    today.verify()
    assert worker.stop() == 0


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(2_400)
@pytest.mark.parametrize(
    "day", [ScriptedDay(), ScriptedDay(late_share=0.1, twice_share=0.05)], ids=["quiet", "disturbed"]
)
def test_a_long_day_is_twelve_alerts(start_day: Callable[[ScriptedDay], Day], day: ScriptedDay) -> None:
    today = start_day(day)
    today.live_until_noon()
    today.topics.publish(today.topics.input, today.afternoon)
    today.until_unread(0)
    today.verify()
    assert len(today.topics.messages(today.topics.alerts)) == 24, "nothing was repeated, for nothing happened"


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_long_day_with_twenty_kills_and_a_rebalance_is_twelve_alerts(
    start_day: Callable[[ScriptedDay], Day],
) -> None:
    today = start_day(ScriptedDay(late_share=0.1, twice_share=0.05))
    first = today.live_until_noon()
    count = today.topics.publish(today.topics.input, today.afternoon)
    today.until_unread(count * 9 // 10)
    shared_out = first.counted("recoveries_total")
    second = today.worker().start()
    until("the partitions are shared out", lambda: first.counted("recoveries_total") > shared_out)
    until("both have devices", lambda: min(one.counted("devices") for one in (first, second)) > 0)
    for kill in range(20):
        today.until_unread(count * (42 - 2 * kill) // 50)
        victim = (first, second)[kill % 2]
        # Launched anew a moment ago, it would be killed before it had any part in this.
        until("the victim has devices", lambda victim=victim: victim.counted("devices") > 0)  # type: ignore[misc]  # mypy infers no lambda's default
        victim.kill()
        victim.launch()
    today.until_unread(0)
    until("both are ready", lambda: first.is_ready() and second.is_ready())
    today.verify()
    assert [worker.stop() for worker in today.workers] == [0, 0]
