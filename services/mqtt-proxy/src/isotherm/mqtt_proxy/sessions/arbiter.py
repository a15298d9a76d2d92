"""Decides which process owns a client's session, one claim of a client after the other (ADR 0012). No IO.

A process that does not own a client's session claims it before it accepts the client. Every other process yields it:
it closes the old connection, waits until its transactions are decided, and transfers the stored state to the claimant.
A process that is away may own the session, so a claim waits for its successor.

With pods (ADR 126) each supervisor has a copy, which the log of claims feeds. Processes are added and removed there: an
heir answers for what the processes of a removed pod owned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.mqtt_proxy.sessions.state_json import decode_state, encode_state
from isotherm.mqtt_proxy.sessions.store import StoredState


class Yield(NamedTuple):
    """Tells a process to yield a client's session to `claimant`."""

    process: int
    client_id: str
    claimant: int
    username: str | None = None
    """The verified user for whom the claimant claims the session."""
    is_bound: bool = False
    """Whether only the session's own user may have it."""


class Grant(NamedTuple):
    """Tells a process that it owns the session now, with the stored state."""

    process: int
    client_id: str
    state: StoredState | None


class Refusal(NamedTuple):
    """Tells a process that the session stays where it is: Kafka did not store the transfer, or the user is another."""

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
    """Processes that ended after they were asked. They may have transferred the state without saying so."""


class Arbiter:
    """Holds the undecided claims. Only its owner knows where a session is."""

    def __init__(self, processes: Collection[int]) -> None:
        self._processes = set(processes)
        self._joined: set[int] = set()
        self._claims: dict[str, _Claim] = {}
        self._queued: dict[str, deque[tuple[int, str | None, bool]]] = {}
        self._for_successor: dict[int, list[Grant]] = {}
        self._removed: set[int] = set()
        """Processes of removed pods. No heir has their sessions yet."""

    @property
    def claims(self) -> int:
        """How many clients have an undecided claim."""
        return len(self._claims)

    def interrupted(self, process: int) -> list[str]:
        """Return the clients whose session `process` was yielding when its predecessor ended."""
        return [client_id for client_id, claim in self._claims.items() if process in claim.interrupted]

    def interrupted_by(self, processes: Collection[int]) -> list[tuple[str, int]]:
        """Return the clients whose session one of `processes` was yielding when it ended, and the claimants."""
        ended = set(processes)
        return [(client_id, claim.claimant) for client_id, claim in self._claims.items() if ended & claim.interrupted]

    def is_known(self, process: int) -> bool:
        """Return whether `process` may own sessions."""
        return process in self._processes

    def is_joined(self, process: int) -> bool:
        """Return whether `process` answers now."""
        return process in self._joined

    def joined(self, process: int) -> list[Order]:
        """Note that `process` has restored its sessions and answers from now on; return what to tell the processes.

        A process that was unknown owns nothing yet, so no earlier claim waits for it.
        """
        self._processes.add(process)
        self._joined.add(process)
        orders: list[Order] = [*self._for_successor.pop(process, [])]
        orders += [
            Yield(process, client_id, claim.claimant, claim.username, claim.is_bound)
            for client_id, claim in self._claims.items()
            if process in claim.waiting_for
        ]
        return orders

    def left(self, process: int) -> None:
        """Note that `process` ended."""
        was_asked = process in self._joined
        self._joined.discard(process)
        for claim in self._claims.values():
            if process in claim.waiting_for and was_asked:
                claim.interrupted.add(process)
        for queue in self._queued.values():
            for waiting in [each for each in queue if each[0] == process]:
                queue.remove(waiting)

    def removed(self, processes: Collection[int]) -> None:
        """Note that `processes` ended for good, and that an heir will have their sessions."""
        for process in processes:
            self.left(process)
        self._removed |= set(processes)

    def claimed_by(self, processes: Collection[int]) -> list[str]:
        """Return the clients whose session one of `processes` claims."""
        claimants = set(processes)
        return [client_id for client_id, claim in self._claims.items() if claim.claimant in claimants]

    def succeeded(self, gone: Collection[int], heir: int) -> list[Order]:
        """Note that process `heir` owns what the processes `gone` owned; return what to tell the processes.

        The heir has fenced them and has their sessions, also those that others transferred to them. It is asked again
        for each claim that waited for one of them, because its earlier answer was about its own sessions only.
        """
        removed = set(gone)
        self._processes -= removed
        self._processes.add(heir)
        self._joined -= removed
        self._removed -= removed
        orders: list[Order] = []
        for process in removed:
            # Transferred before the removal, so the heir has found it in the topic.
            self._for_successor.pop(process, None)
        for client_id, claim in list(self._claims.items()):
            is_inherited = claim.claimant in removed
            if is_inherited:
                claim.claimant = heir
                # The user that it was claimed for is not connected any more, and the state goes to the heir as it is.
                claim.username, claim.is_bound = None, False
            if not is_inherited and not removed & claim.waiting_for:
                continue
            was_waiting = bool(removed & claim.waiting_for)
            claim.waiting_for -= removed
            claim.interrupted -= removed
            # An answer of the heir that has not come yet follows its adoption and is about those sessions, too. Asked
            # again while it transfers one, it would answer that it owns none.
            if was_waiting and heir != claim.claimant and heir not in claim.waiting_for:
                claim.waiting_for.add(heir)
                if heir in self._joined:
                    orders.append(Yield(heir, client_id, claim.claimant, claim.username, claim.is_bound))
            orders += self._next(client_id, claim)
        return orders

    def dump(self) -> list[Any]:
        """Return everything that the arbiter knows, as JSON can carry it."""
        claims = [
            [
                client_id,
                claim.claimant,
                sorted(claim.waiting_for),
                encode_state(claim.state),
                claim.kept,
                claim.username,
                claim.is_bound,
                claim.denied,
                sorted(claim.interrupted),
            ]
            for client_id, claim in self._claims.items()
        ]
        queued = [[client_id, [list(each) for each in queue]] for client_id, queue in self._queued.items()]
        successors = [
            [process, [[client_id, encode_state(state)] for _, client_id, state in grants]]
            for process, grants in self._for_successor.items()
        ]
        return [sorted(self._processes), sorted(self._joined), claims, queued, successors, sorted(self._removed)]

    @classmethod
    def load(cls, dumped: list[Any]) -> Arbiter:
        """Return an arbiter that knows what `dump` returned."""
        processes, joined, claims, queued, successors, removed = dumped
        arbiter = cls(processes)
        arbiter._removed = set(removed)
        arbiter._joined = set(joined)
        for client_id, claimant, waiting_for, state, kept, username, is_bound, denied, interrupted in claims:
            arbiter._claims[client_id] = _Claim(
                claimant, set(waiting_for), decode_state(state), kept, username, is_bound, denied, set(interrupted)
            )
        arbiter._queued = {
            client_id: deque((process, username, is_bound) for process, username, is_bound in queue)
            for client_id, queue in queued
        }
        arbiter._for_successor = {
            process: [Grant(process, client_id, decode_state(state)) for client_id, state in grants]
            for process, grants in successors
        }
        return arbiter

    def claim(
        self, process: int, client_id: str, username: str | None = None, *, is_bound: bool = False
    ) -> list[Order]:
        """Claim the session of a client for `process` and `username`; return what to tell the processes.

        With `is_bound` the claim fails when the session belongs to another user.
        """
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
        """Note that `process` does not own the session any more, with the `state` that it transferred, if any."""
        return self._answered(process, client_id, state, kept=False)

    def kept(self, process: int, client_id: str) -> list[Order]:
        """Note that `process` could not transfer the session and still owns it."""
        return self._answered(process, client_id, None, kept=True)

    def denied(self, process: int, client_id: str) -> list[Order]:
        """Note that `process` owns the session, which belongs to another user."""
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
        if claim.waiting_for or claim.claimant in self._removed:
            # What is transferred to a removed process belongs to its heir, which nobody asks before it has the rest.
            return []
        del self._claims[client_id]
        orders: list[Order] = []
        if claim.kept and claim.state is None:
            orders.append(Refusal(claim.claimant, client_id, claim.denied))
        elif claim.claimant in self._joined:
            orders.append(Grant(claim.claimant, client_id, claim.state))
        elif claim.state is not None:
            # The claimant ended, and its successor may have read the topic before the transfer.
            self._for_successor.setdefault(claim.claimant, []).append(Grant(claim.claimant, client_id, claim.state))
        queue = self._queued.get(client_id)
        if queue:
            process, username, is_bound = queue.popleft()
            orders += self.claim(process, client_id, username, is_bound=is_bound)
        if not queue:
            self._queued.pop(client_id, None)
        return orders
