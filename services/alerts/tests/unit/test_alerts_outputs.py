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


class NarrowProducer(PromptProducer):
    """A producer with room for one record, which is reported at the third poll."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = 0

    def produce(self, topic: str, *, on_delivery: Callable[[None, None], None], **record: Any) -> None:
        if self._reports:
            raise BufferError
        self.polls = 0
        super().produce(topic, on_delivery=on_delivery, **record)

    def poll(self, timeout_s: float) -> int:
        self.polls += 1
        return super().poll(timeout_s) if self.polls >= 3 else 0


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


@pytest.mark.parametrize("is_quiet", [False, True])
async def test_the_bound_of_the_client_itself_leaves_the_loop_to_the_reports(is_quiet: bool) -> None:
    made = NarrowProducer()
    ours = outputs(made)
    if is_quiet:
        ours.write_quiet(0, [(b"d", b"state", b"newest"), (b"e", b"state", b"newest")])
    else:
        for device_id in ("d", "d", "e", "e"):
            ours.write_changelog(0, device_id, b"state")
    await asyncio.wait_for(ours.flush(), LIMIT_S)
    assert len(made.records) == 4
    ours.release()
