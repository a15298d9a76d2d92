"""When batches of session writes go to the writer, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isotherm.mqtt_proxy.delivery.transactional_writer import TransactionalWriter, WriteResult
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sessions.store import Session
from isotherm.mqtt_proxy.sessions.writes import OrderedSource, Outcome, PublishWrite, SessionWrite

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
        assert records[-1].topic == "sessions", "the writer may have to look for it"
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

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        self.call_later(0, lambda: callback(*arguments))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def commits(self) -> None:
        await self.ends(WriteResult.COMMITTED)

    async def ends(self, result: WriteResult | BaseException | None) -> None:
        """Let the batch that is being written end so; None cancels it."""
        assert self._writing is not None
        writing, self._writing = self._writing, None
        if isinstance(result, BaseException):
            writing.set_exception(result)
        elif result is None:
            writing.cancel()
        else:
            writing.set_result(result)
        await asyncio.sleep(0)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_records: int = 5_000) -> None:
        self.loop = StandingLoop()
        self.told: list[str] = []
        self.metrics = Metrics()
        self.fatal: list[BaseException] = []
        self.attested: list[object] = []
        self.writer: Any = SimpleNamespace(write=None, fault="too large", stored=[])
        self.transactions = Transactions(
            cast(TransactionalWriter, self.writer),
            executor=cast(Any, None),
            session_record=lambda client_id, _state: ProducerRecord("sessions", f"state of {client_id}", None, []),
            witness=WITNESS,
            max_records=max_records,
            linger_s=LINGER_S,
            metrics=self.metrics,
            on_fatal=self.fatal.append,
            on_stored=self.attested.append,
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


async def test_only_what_was_committed_is_attested_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)

    def submit(*records: ProducerRecord) -> None:
        world.transactions.submit(SessionWrite(lambda _outcome: None, records=list(records)))
        world.loop.passes(LINGER_S)

    for result, stored in ((WriteResult.COMMITTED, "x"), (WriteResult.ABORTED, "y"), (WriteResult.COMMITTED, "z")):
        submit(ProducerRecord("t", "a", b"", []))
        world.writer.stored = [stored]
        await world.loop.ends(result)
    # A session that ends with its connection has nothing to commit, and its batch counts as committed: alone, or with
    # others behind a refused record, after which each is tried alone.
    submit()
    assert world.attested == ["x", "z"]
    world.transactions.submit(SessionWrite(lambda _outcome: None, records=[]))
    submit(ProducerRecord("t", "a", b"", []))
    world.writer.stored = ["aborted"]
    await world.loop.ends(WriteResult.ABORTED_RECORD_AT_FAULT)
    world.loop.passes(LINGER_S)
    assert world.attested == ["x", "z"]


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


async def test_what_has_waited_out_its_time_behind_a_transaction_starts_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.submit("a")
    world.loop.passes(LINGER_S)
    world.submit("b")
    world.loop.passes(LINGER_S + 0.001)
    await world.loop.commits()
    assert world.loop.written == [["a"], ["b"]]


async def test_enough_writes_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for number in range(1_000):
        world.submit(str(number))
    await world.loop.commits()
    assert [len(batch) for batch in world.loop.written] == [250, 750]
    assert world.loop.now_s == 0


async def test_the_wait_of_a_batch_that_started_early_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for number in range(250):
        world.submit(str(number))
    await world.loop.commits()
    world.loop.passes(0.002)
    world.submit("later")
    world.loop.passes(LINGER_S - 0.001)
    assert len(world.loop.written) == 1
    world.loop.passes(0.002)
    assert world.loop.written[1:] == [["later"]]


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


def publish(session: Session, decided: Callable[[Outcome], None], **more: Any) -> PublishWrite:
    return PublishWrite(decided, session=session, records=[ProducerRecord("t", "p", b"", [])], packet_id=1, **more)


async def test_the_state_of_a_durable_session_is_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    world, outcomes = World(monkeypatch), list[Outcome]()
    session = Session("anna", durable=True)
    world.transactions.submit(publish(session, outcomes.append, crc32=7))
    world.loop.passes(LINGER_S)
    assert world.loop.written == [["p", "state of anna"]]
    world.loop.passes(2)
    await world.loop.commits()
    assert (outcomes, session.decided_s) == ([Outcome.COMMITTED], world.loop.now_s)
    assert session.stored is not None
    assert session.stored.committed == {1: 7}


async def test_a_session_that_ends_with_its_connection_needs_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    world, outcomes = World(monkeypatch), list[Outcome]()
    world.transactions.submit(SessionWrite(outcomes.append, session=Session("anna")))
    world.loop.passes(LINGER_S)
    assert (world.loop.written, outcomes) == ([], [Outcome.COMMITTED])
    await world.transactions.drain()
    assert world.metrics.transactions == {}


async def test_an_aborted_transaction_is_told_and_the_next_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    world, outcomes = World(monkeypatch), list[Outcome]()
    source = OrderedSource()
    for write in (SessionWrite(outcomes.append, records=[WITNESS], source=source) for _ in range(2)):
        world.transactions.submit(write)
        world.loop.passes(LINGER_S)
    await world.loop.ends(WriteResult.ABORTED)
    world.loop.passes(1)
    assert outcomes == [Outcome.ABORTED] * 2, "the second must not overtake the first"
    assert len(world.loop.written) == 1
    await world.transactions.drain()
    assert world.metrics.transactions == {"aborted": 1}
    world.submit("a")
    world.loop.passes(LINGER_S)
    await world.loop.commits()
    assert world.metrics.transactions == {"aborted": 1, "committed": 1}


async def test_a_refused_record_is_replaced_by_what_its_write_says(monkeypatch: pytest.MonkeyPatch) -> None:
    world, outcomes, reasons = World(monkeypatch), list[Outcome](), list[str]()

    def on_refused(reason: str) -> list[ProducerRecord]:
        reasons.append(reason)
        return [ProducerRecord("t", "dead letter", b"", [])]

    world.transactions.submit(publish(Session("anna", durable=True), outcomes.append, on_refused=on_refused))
    world.loop.passes(LINGER_S)
    await world.loop.ends(WriteResult.ABORTED_RECORD_AT_FAULT)
    world.loop.passes(1)
    assert reasons == ["too large"]
    assert world.loop.written == [["p", "state of anna"], ["dead letter", "state of anna"]]
    assert world.metrics.transactions == {"aborted": 1}
    await world.loop.commits()
    assert outcomes == [Outcome.COMMITTED]


async def test_a_writer_that_fails_ends_the_process_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (OSError("gone"), None):
        world = World(monkeypatch)
        world.submit("a")
        world.loop.passes(LINGER_S)
        world.submit("b")
        await world.loop.ends(end)
        world.loop.passes(1)
        assert (world.told, world.loop.written) == ([], [["a"]])
        assert world.fatal == ([end] if end else [])
        assert world.metrics.transactions == ({"fatal": 1} if end else {})


async def test_a_write_can_be_awaited_even_by_one_who_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    waiting = [
        asyncio.create_task(world.transactions.decide(SessionWrite(lambda _: None, records=[WITNESS])))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    world.loop.passes(LINGER_S)
    await world.loop.commits()
    assert await waiting[1] is Outcome.COMMITTED
    assert waiting[0].cancelled()


@pytest.mark.parametrize(
    ("kind", "clients", "pause_s", "wait_s"),
    [(PublishWrite, 40, 0.02, 0.04), (PublishWrite, 1, 0.001, LINGER_S), (SessionWrite, 40, 0.02, LINGER_S)],
)
async def test_publishes_of_clients_that_wait_for_no_answer_are_gathered_for_longer(
    monkeypatch: pytest.MonkeyPatch, kind: type[SessionWrite], clients: int, pause_s: float, wait_s: float
) -> None:
    """A device whose last answer is long ago; one that publishes after each answer is answered soon."""
    world, decided = World(monkeypatch), list[Outcome]()
    sessions = [Session(str(number)) for number in range(clients)]
    for number in range(80):
        world.transactions.submit(kind(decided.append, session=sessions[number % clients], records=[WITNESS]))
        world.loop.passes(0.041)
        await world.loop.commits()
        world.loop.passes(pause_s)
    assert len(decided) == len(world.loop.written) == 80
    world.transactions.submit(kind(decided.append, session=sessions[0], records=[WITNESS]))
    world.loop.passes(wait_s - 0.0001)
    assert len(world.loop.written) == 80
    world.loop.passes(0.0002)
    assert len(world.loop.written) == 81
