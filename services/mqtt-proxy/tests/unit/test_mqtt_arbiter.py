"""Claims of sessions between processes: by examples, and by random walks in which processes die at any moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from isotherm.mqtt_proxy.sessions.arbiter import (
    Arbiter,
    Grant,
    Order,
    Refusal,
    Yield,
)
from isotherm.mqtt_proxy.sessions.store import StoredState

STATE = StoredState(5, 60, 1_000, {1: 10})


def joined(processes: int) -> Arbiter:
    arbiter = Arbiter(range(processes))
    for process in range(processes):
        assert arbiter.joined(process) == []
    return arbiter


def test_every_other_process_is_asked_and_the_newest_state_counts() -> None:
    arbiter = joined(3)
    assert arbiter.claim(1, "c") == [Yield(0, "c", 1), Yield(2, "c", 1)]
    assert arbiter.released(0, "c", None) == []
    assert arbiter.released(2, "c", STATE) == [Grant(1, "c", STATE)]
    assert arbiter.claims == 0


def test_claims_of_one_client_come_one_after_the_other() -> None:
    arbiter = joined(2)
    assert arbiter.claim(0, "c") == [Yield(1, "c", 0)]
    assert arbiter.claim(1, "c") == []
    assert arbiter.claim(1, "c") == []
    assert arbiter.released(1, "c", None) == [Grant(0, "c", None), Yield(0, "c", 1)]
    assert arbiter.released(0, "c", STATE) == [Grant(1, "c", STATE)]


def test_a_claim_waits_for_the_successor_of_a_process_that_ended() -> None:
    arbiter = joined(2)
    arbiter.left(1)
    assert arbiter.claim(0, "c") == []
    assert arbiter.interrupted(1) == [], "it was never asked"
    assert arbiter.joined(1) == [Yield(1, "c", 0)]
    arbiter.left(1)
    assert arbiter.interrupted(1) == ["c"], "it may have written the session over before it ended"
    assert arbiter.joined(1) == [Yield(1, "c", 0)]
    assert arbiter.released(1, "c", STATE) == [Grant(0, "c", STATE)]


def test_what_was_written_over_to_a_process_that_ended_goes_to_its_successor() -> None:
    arbiter = joined(2)
    arbiter.claim(0, "c")
    arbiter.left(0)
    assert arbiter.released(1, "c", STATE) == []
    assert arbiter.joined(0) == [Grant(0, "c", STATE)]


def test_a_session_that_stays_is_refused() -> None:
    arbiter = joined(2)
    arbiter.claim(0, "c")
    assert arbiter.kept(1, "c") == [Refusal(0, "c")]


class Processes:
    """One client, and three processes that can be killed at any moment.

    Kafka is the owner and the epoch in the topic; each process holds the session or not. A transfer is a write to Kafka
    and then an answer, and a process can die between the two; a successor reads Kafka and then joins.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.arbiter = joined(3)
        self.owner, self.epoch = 0, 1
        self.holds: dict[int, int | None] = {0: 1, 1: None, 2: None}
        self.alive = {0, 1, 2}
        self.wants: set[int] = set()
        self.given: dict[int, int] = {}
        self.read: dict[int, tuple[bool, int, int]] = {}
        self.orders: dict[int, deque[Order]] = {process: deque() for process in range(3)}
        self.answers: dict[int, deque[int | None]] = {process: deque() for process in range(3)}

    def step(self) -> None:
        """Execute one of the possible next events."""
        can: list[tuple[Callable[[int], None], int]] = []
        for process in range(3):
            if process in self.alive:
                if self.holds[process] is None and process not in self.wants:
                    can.append((self.connect, process))
                can += [(self.follow_order, process)] * 2 if self.orders[process] else []
                can += [(self.answer, process)] if self.answers[process] else []
                can += [(self.die, process)] if self.random.random() < 0.2 else []
            else:
                can.append((self.join if process in self.read else self.restore, process))
        if can:
            action, process = self.random.choice(can)
            action(process)
        holders = [process for process, epoch in self.holds.items() if epoch is not None]
        assert len(holders) <= 1
        assert not holders or (self.owner, self.epoch) == (holders[0], self.holds[holders[0]]), (
            "it holds what Kafka has"
        )

    def settle(self) -> None:
        """Without further kills every claim is answered."""
        for process in {0, 1, 2} - self.alive:
            if process not in self.read:
                self.restore(process)
            self.join(process)
        while any(self.orders.values()) or any(self.answers.values()):
            for process in range(3):
                if self.orders[process]:
                    self.follow_order(process)
                if self.answers[process]:
                    self.answer(process)
        assert self.holds[self.owner] == self.epoch, "the session is lost"
        assert self.wants == set()
        assert self.arbiter.claims == 0

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            if order.process in self.alive:
                self.orders[order.process].append(order)

    def connect(self, process: int) -> None:
        self.wants.add(process)
        self._carry_out(self.arbiter.claim(process, "c"))

    def follow_order(self, process: int) -> None:
        order, held = self.orders[process].popleft(), self.holds[process]
        if isinstance(order, Yield) and held is None:
            self.answers[process].append(self.given.pop(process, None))
        elif isinstance(order, Yield):
            assert held is not None
            self.owner, self.epoch = order.claimant, held + 1
            self.holds[process] = None
            self.answers[process].append(self.epoch)
        elif isinstance(order, Grant):
            self.wants.discard(process)
            if held is None:
                assert order.state is not None, "something is stored, and the claimant is told nothing of it"
                self.holds[process] = order.state.epoch

    def answer(self, process: int) -> None:
        epoch = self.answers[process].popleft()
        self._carry_out(self.arbiter.released(process, "c", None if epoch is None else StoredState(epoch)))

    def die(self, process: int) -> None:
        while self.answers[process] and self.random.random() < 0.5:
            self.answer(process)
        self.alive.discard(process)
        self.wants.discard(process)
        self.holds[process] = None
        for left_behind in (self.orders[process], self.answers[process]):
            left_behind.clear()
        self.given.pop(process, None)
        self.arbiter.left(process)

    def restore(self, process: int) -> None:
        self.read[process] = (bool(self.arbiter.interrupted(process)), self.owner, self.epoch)

    def join(self, process: int) -> None:
        was_interrupted, owner, epoch = self.read.pop(process)
        if owner == process:
            self.holds[process] = epoch
        elif was_interrupted:
            self.given[process] = epoch
        self.alive.add(process)
        self._carry_out(self.arbiter.joined(process))


def test_a_session_is_never_lost_and_never_held_twice() -> None:
    for seed in range(2_000):
        processes = Processes(Random(seed))
        try:
            for _ in range(40):
                processes.step()
            processes.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_a_session_of_another_user_is_denied_and_the_next_claim_goes_on() -> None:
    arbiter = Arbiter([0, 1, 2])
    for process in (0, 1, 2):
        arbiter.joined(process)
    assert arbiter.claim(0, "c", "thief", is_bound=True) == [
        Yield(1, "c", 0, "thief", True),
        Yield(2, "c", 0, "thief", True),
    ]
    assert arbiter.claim(1, "c", "owner", is_bound=True) == []
    assert arbiter.denied(1, "c") == []
    orders = arbiter.released(2, "c", None)
    assert orders == [Refusal(0, "c", is_denied=True), Yield(0, "c", 1, "owner", True), Yield(2, "c", 1, "owner", True)]
    arbiter.left(1)
