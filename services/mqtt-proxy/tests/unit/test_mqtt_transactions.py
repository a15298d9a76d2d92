"""When batches of session writes go to the writer, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from isotherm.mqtt_proxy.delivery.transactional_writer import TransactionalWriter, WriteResult
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWrite

LINGER_S = 0.005
WITNESS = ProducerRecord("sessions", "witness", None, [])


@dataclass
class Timer:
    due_s: float
    callback: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class StandingLoop:
    """The part of an event loop that Transactions use. Time passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.written: list[list[object]] = []
        """The keys of each batch that reached the writer."""
        self._timers: list[Timer] = []
        self._writing: asyncio.Future[WriteResult] | None = None

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        self._timers.append(Timer(self.now_s + delay_s, callback))
        return self._timers[-1]

    def run_in_executor(self, _executor: object, _write: object, records: list[ProducerRecord]) -> Any:
        assert self._writing is None, "two transactions at a time"
        self.written.append([record.key for record in records if record is not WITNESS])
        self._writing = asyncio.get_running_loop().create_future()
        return self._writing

    def passes(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while due := [timer for timer in self._timers if not timer.cancelled and timer.due_s <= until_s]:
            timer = min(due, key=lambda each: each.due_s)
            self._timers.remove(timer)
            self.now_s = max(self.now_s, timer.due_s)
            timer.callback()
        self.now_s = until_s

    async def commits(self) -> None:
        assert self._writing is not None
        writing, self._writing = self._writing, None
        writing.set_result(WriteResult.COMMITTED)
        await asyncio.sleep(0)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_records: int = 5_000) -> None:
        self.loop = StandingLoop()
        self.told: list[str] = []
        self.transactions = Transactions(
            cast(TransactionalWriter, type("NeverCalled", (), {"write": None})()),
            executor=cast(Any, None),
            session_record=lambda _client_id, _state: WITNESS,
            witness=WITNESS,
            max_records=max_records,
            linger_s=LINGER_S,
            metrics=Metrics(),
            on_fatal=lambda failure: None,
        )
        monkeypatch.setattr(self.transactions, "_loop", self.loop)

    def submit(self, name: str) -> None:
        def decided(outcome: Outcome) -> None:
            assert outcome is Outcome.COMMITTED
            self.told.append(name)

        self.transactions.submit(SessionWrite(decided, records=[ProducerRecord("t", name, b"", [])]))


async def test_first_write_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.submit("a")
    world.loop.passes(0.004)
    world.submit("b")
    assert world.loop.written == []

    world.loop.passes(0.0011)
    assert world.loop.written == [["a", "b"]]
    assert world.told == []
    await world.loop.commits()
    assert world.told == ["a", "b"]


async def test_what_came_during_a_transaction_waits_only_for_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.submit("a")
    world.loop.passes(LINGER_S)
    world.submit("b")
    world.loop.passes(0.003)
    await world.loop.commits()
    world.submit("c")
    assert world.loop.written == [["a"]], "b has waited for 3 ms"

    world.loop.passes(0.0021)
    assert world.loop.written == [["a"], ["b", "c"]]

    world.submit("d")
    world.loop.passes(1)
    await world.loop.commits()
    assert world.loop.written[2:] == [["d"]], "d has waited longer than any linger"
    await world.loop.commits()
    assert world.told == ["a", "b", "c", "d"]


async def test_enough_writes_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for number in range(1_000):
        world.submit(str(number))
    await world.loop.commits()
    assert [len(batch) for batch in world.loop.written] == [250, 750]
    assert world.loop.now_s == 0


async def test_full_batch_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, max_records=8)
    for number in range(12):
        world.submit(str(number))
    await world.loop.commits()
    # A write counts as its record and a state; the four that are left do not fill a batch.
    assert [len(batch) for batch in world.loop.written] == [4, 4]
    await world.loop.commits()
    assert len(world.loop.written) == 2

    world.loop.passes(1)
    assert [len(batch) for batch in world.loop.written] == [4, 4, 4]


async def test_drain_ends_when_everything_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.transactions.drain()
    world.submit("a")
    draining = asyncio.create_task(world.transactions.drain())
    world.loop.passes(LINGER_S)
    world.submit("b")
    await world.loop.commits()
    assert not draining.done()

    world.loop.passes(1)
    await world.loop.commits()
    await draining
    assert world.told == ["a", "b"]
