"""Which process holds a client's session: asks all, decides one claim of a client after the other. Pure, no IO.

A process that does not hold a client's session claims it before it accepts the client. Every other process yields it:
closes the old connection, lets its transactions be decided and, when something is stored, writes the state over to
the claimant (ADR 0012). A process that is away may hold the session, so a claim waits for its successor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.mqtt_proxy.sessions.store import StoredState


class Yield(NamedTuple):
    """Asks a process to give a client's session to `claimant`."""

    process: int
    client_id: str
    claimant: int
    username: str | None = None
    """The verified user that the session is wanted for."""
    is_bound: bool = False
    """Whether it may only be given away to its own user."""


class Grant(NamedTuple):
    """Tells a process that the session is its own now, with what is stored of it."""

    process: int
    client_id: str
    state: StoredState | None


class Refusal(NamedTuple):
    """Tells a process that the session stays where it is: Kafka did not take the transfer, or it is another user's."""

    process: int
    client_id: str
    is_denied: bool = False


Order = Yield | Grant | Refusal


@dataclass(slots=True)
class _Claim:
    claimant: int
    waiting_for: set[int]
    state: StoredState | None = None
    kept: bool = False
    username: str | None = None
    is_bound: bool = False
    denied: bool = False
    interrupted: set[int] = field(default_factory=set)
    """Processes that ended after they were asked: they may have written the state over without saying so."""


class Arbiter:
    """The claims that are undecided, nothing else: a session's place is known to its process only."""

    def __init__(self, processes: Collection[int]) -> None:
        self._processes = frozenset(processes)
        self._joined: set[int] = set()
        self._claims: dict[str, _Claim] = {}
        self._queued: dict[str, deque[tuple[int, str | None, bool]]] = {}
        self._for_successor: dict[int, list[Grant]] = {}

    @property
    def claims(self) -> int:
        """Clients with an undecided claim."""
        return len(self._claims)

    def interrupted(self, process: int) -> list[str]:
        """Clients whose session `process` was asked for when its predecessor ended."""
        return [client_id for client_id, claim in self._claims.items() if process in claim.interrupted]

    def joined(self, process: int) -> list[Order]:
        """`process` has restored its sessions and answers from now on."""
        self._joined.add(process)
        orders: list[Order] = [*self._for_successor.pop(process, [])]
        orders += [
            Yield(process, client_id, claim.claimant, claim.username, claim.is_bound)
            for client_id, claim in self._claims.items()
            if process in claim.waiting_for
        ]
        return orders

    def left(self, process: int) -> list[Order]:
        """`process` ended."""
        was_asked = process in self._joined
        self._joined.discard(process)
        for claim in self._claims.values():
            if process in claim.waiting_for and was_asked:
                claim.interrupted.add(process)
        for queue in self._queued.values():
            for waiting in [each for each in queue if each[0] == process]:
                queue.remove(waiting)
        return []

    def claim(
        self, process: int, client_id: str, username: str | None = None, *, is_bound: bool = False
    ) -> list[Order]:
        """`process` wants the session of a client for `username`; `is_bound`: if it is not another user's."""
        current = self._claims.get(client_id)
        if current is not None:
            queue = self._queued.setdefault(client_id, deque())
            if all(each[0] != process for each in queue):
                queue.append((process, username, is_bound))
            return []
        claim = _Claim(process, set(self._processes - {process}), username=username, is_bound=is_bound)
        self._claims[client_id] = claim
        orders: list[Order] = [
            Yield(other, client_id, process, username, is_bound) for other in sorted(claim.waiting_for & self._joined)
        ]
        return orders or self._next(client_id, claim)

    def released(self, process: int, client_id: str, state: StoredState | None) -> list[Order]:
        """`process` does not hold the session any more; `state` is what it wrote over, if anything."""
        return self._answered(process, client_id, state, kept=False)

    def kept(self, process: int, client_id: str) -> list[Order]:
        """`process` could not write the session over and still holds it."""
        return self._answered(process, client_id, None, kept=True)

    def denied(self, process: int, client_id: str) -> list[Order]:
        """`process` holds the session, which is another user's."""
        claim = self._claims.get(client_id)
        if claim is not None:
            claim.denied = True
        return self._answered(process, client_id, None, kept=True)

    def _answered(self, process: int, client_id: str, state: StoredState | None, *, kept: bool) -> list[Order]:
        claim = self._claims.get(client_id)
        if claim is None or process not in claim.waiting_for:
            return []
        claim.waiting_for.discard(process)
        claim.interrupted.discard(process)
        claim.kept |= kept
        if state is not None and (claim.state is None or state.epoch > claim.state.epoch):
            claim.state = state
        return self._next(client_id, claim)

    def _next(self, client_id: str, claim: _Claim) -> list[Order]:
        if claim.waiting_for:
            return []
        del self._claims[client_id]
        orders: list[Order] = []
        if claim.kept and claim.state is None:
            orders.append(Refusal(claim.claimant, client_id, claim.denied))
        elif claim.claimant in self._joined:
            orders.append(Grant(claim.claimant, client_id, claim.state))
        elif claim.state is not None:
            # It is written over to a process that ended; its successor may have read the topic before that.
            self._for_successor.setdefault(claim.claimant, []).append(Grant(claim.claimant, client_id, claim.state))
        queue = self._queued.get(client_id)
        if queue:
            process, username, is_bound = queue.popleft()
            orders += self.claim(process, client_id, username, is_bound=is_bound)
        if not queue:
            self._queued.pop(client_id, None)
        return orders
