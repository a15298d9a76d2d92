"""Connects the processes of a supervisor with the arbiter of their session claims, where that is its own (ADR 0012)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from isotherm.mqtt_proxy.sessions.arbiter import Arbiter, Grant, Order, Yield
from isotherm.mqtt_proxy.sessions.state_json import decode_state

Send = Callable[..., None]
"""Sends a message to a process: its index, the kind, and the values. Does nothing when the process has ended."""


class Arbitration(Protocol):
    """Decides the claims of the processes of a supervisor, which are named by their index here."""

    send: Send

    @property
    def claims(self) -> int:
        """How many clients have an undecided claim."""

    @property
    def pods(self) -> int:
        """How many pods the server has."""

    async def open(self) -> bool:
        """Return True when the processes may start, False when told to stop before."""

    def number(self, index: int) -> int:
        """Return the number of a process among all of the server."""

    async def wait_to_start(self, index: int) -> None:
        """Return when a process may start, after its predecessor has ended."""

    def greeting(self, index: int) -> Sequence[object]:
        """Return what a process must know at its start."""

    def receive(self, index: int, kind: str, values: Sequence[Any]) -> None:
        """Handle a message of a process."""

    def left(self, index: int) -> None:
        """Note that a process ended."""

    async def close(self) -> None:
        """End, after all processes have ended."""


class LocalArbitration:
    """The arbitration of a server that is one supervisor. `first_ordinal` is the ordinal of the first process."""

    def __init__(self, processes: int, first_ordinal: int) -> None:
        self.send: Send = lambda _index, _kind, *_values: None
        self._arbiter = Arbiter(range(processes))
        self._first_ordinal = first_ordinal

    @property
    def claims(self) -> int:
        """How many clients have an undecided claim."""
        return self._arbiter.claims

    @property
    def pods(self) -> int:
        """One: this server."""
        return 1

    async def open(self) -> bool:
        """Return True: the processes may start at once."""
        return True

    def number(self, index: int) -> int:
        """Return the number of a process, which is its index."""
        return index

    async def wait_to_start(self, index: int) -> None:
        """Return at once."""

    def greeting(self, index: int) -> Sequence[object]:
        """Return the clients whose sessions the predecessor of a process was yielding."""
        return [self._arbiter.interrupted(index)]

    def receive(self, index: int, kind: str, values: Sequence[Any]) -> None:
        """Handle a message of a process."""
        arbiter = self._arbiter
        if kind == "joined":
            self._send_orders(arbiter.joined(index))
            return
        client_id, *more = values
        assert isinstance(client_id, str)
        if kind == "claim":
            username, is_bound = more
            assert username is None or isinstance(username, str)
            self._send_orders(arbiter.claim(index, client_id, username, is_bound=bool(is_bound)))
        elif kind == "denied":
            self._send_orders(arbiter.denied(index, client_id))
        elif kind == "kept":
            self._send_orders(arbiter.kept(index, client_id))
        else:
            (stored,) = more
            assert stored is None or isinstance(stored, list)
            self._send_orders(arbiter.released(index, client_id, decode_state(stored)))

    def left(self, index: int) -> None:
        """Note that a process ended."""
        self._arbiter.left(index)

    async def close(self) -> None:
        """Do nothing."""

    def _send_orders(self, orders: Sequence[Order]) -> None:
        for order in orders:
            send_order(self.send, order, order.process, self._first_ordinal)


def send_order(send: Send, order: Order, index: int, first_ordinal: int) -> None:
    """Send an order to process `index`. The sessions topic names the ordinal of a claimant, not its number."""
    if isinstance(order, Yield):
        ordinal = first_ordinal + order.claimant
        send(index, "yield", order.client_id, ordinal, order.username, order.is_bound)
    elif isinstance(order, Grant):
        send(index, "grant", order.client_id, order.state)
    else:
        send(index, "refuse", order.client_id, order.is_denied)
