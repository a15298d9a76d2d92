"""Records that Kafka has not acknowledged when their run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.alerts.metrics import Metrics
from isotherm.alerts.service import outputs_producer
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream import outputs as outputs_module
from isotherm.alerts.stream.outputs import Outputs, OutputsClosedError

NOWHERE = AlertsSettings.model_validate({"kafka": {"bootstrap_servers": "127.0.0.1:1"}})
LIMIT_S = 20.0


class LateProducer:
    """A producer whose records are all written, and reported when `report` is called."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []
        self._reports: list[Callable[[None, None], None]] = []

    def produce(self, topic: str, *, on_delivery: Callable[[None, None], None], **record: Any) -> None:
        self.records.append((topic, record["key"], record["value"]))
        self._reports.append(on_delivery)

    def poll(self, _timeout_s: float) -> int:
        return 0

    def purge(self) -> None:
        """Purging has no effect: the records are already sent."""

    def report(self) -> None:
        reports, self._reports = self._reports, []
        for one in reports:
            one(None, None)


class PromptProducer(LateProducer):
    """A producer whose records are reported at the next poll."""

    def poll(self, _timeout_s: float) -> int:
        reported = len(self._reports)
        self.report()
        return reported


def outputs(made: Any) -> Outputs:
    registry: Any = SimpleNamespace(encoder=lambda *_arguments: lambda _record: b"an alert")
    return Outputs(NOWHERE, registry, Metrics(), made)


async def test_nothing_follows_from_a_report_that_comes_after_the_run() -> None:
    made = LateProducer()
    ours = outputs(made)
    followed: list[str] = []
    ours.write_changelog(0, "d", b"state", lambda: followed.append("an alert leaves"))
    ours.close()
    made.report()
    assert followed == []
    ours.write_changelog(0, "d", b"what the old run knows")
    assert [value for _topic, _key, value in made.records] == [b"state"]


async def test_who_waits_for_a_kafka_that_is_away_is_let_go() -> None:
    ours = outputs(outputs_producer(NOWHERE))
    followed: list[str] = []
    ours.write_changelog(0, "d", b"state", lambda: followed.append("an alert leaves"))
    waiting = [asyncio.create_task(wait()) for wait in (ours.flush_earlier, ours.flush)]
    done, _ = await asyncio.wait(waiting, timeout=0.1)
    assert not done
    ours.close()
    for task in waiting:
        with pytest.raises(OutputsClosedError):
            await asyncio.wait_for(task, LIMIT_S)
    with pytest.raises(OutputsClosedError):
        await ours.wait_for_room()
    assert followed == []


async def test_a_record_that_waits_for_room_was_written_earlier_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the offset of a reading is committed before the state that took it in is stored."""
    monkeypatch.setattr(outputs_module, "_MAX_OUTSTANDING", 1)
    made = PromptProducer()
    ours = outputs(made)
    for value in (b"state", b"a state that a delivery report writes"):
        ours.write_changelog(0, "d", value)
    async with asyncio.timeout(LIMIT_S):
        await ours.flush_earlier()
    assert [value for _topic, _key, value in made.records] == [b"state", b"a state that a delivery report writes"]
    ours.release()
