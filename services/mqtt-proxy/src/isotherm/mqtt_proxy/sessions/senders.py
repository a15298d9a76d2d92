"""Who left which sessions behind, so that one sender cannot take the room of all. No IO."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class SessionSender(NamedTuple):
    """Who begins a session: a verified user, or for clients without one an address."""

    kind: str
    name: str


def sender_of(username: str | None, address: str) -> SessionSender:
    """Return the sender of a client with this verified user name, if any, and this address."""
    return SessionSender("address", address) if username is None else SessionSender("user", username)


class UnconnectedSessions:
    """Counts the sessions of each sender that no connection uses, and that it may have at most `maximum` of."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._by_sender: Counter[SessionSender] = Counter()
        self._senders: dict[str, SessionSender] = {}

    def add(self, client_id: str, sender: SessionSender) -> None:
        """Count the session of a client, which nobody uses from now on, once."""
        self.remove(client_id)
        self._senders[client_id] = sender
        self._by_sender[sender] += 1

    def remove(self, client_id: str) -> None:
        """Count the session of a client no more; do nothing when it is not counted."""
        sender = self._senders.pop(client_id, None)
        if sender is None:
            return
        self._by_sender[sender] -= 1
        if not self._by_sender[sender]:
            del self._by_sender[sender]

    def is_full(self, sender: SessionSender) -> bool:
        """Return whether a sender has as many as it may."""
        return self._by_sender[sender] >= self._maximum
