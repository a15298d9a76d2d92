"""Restored sessions that no client has asked for yet, kept as the bytes of the sessions topic.

A start may restore a million sessions. As objects they would take a gigabyte, and few of them are used soon.
"""

from __future__ import annotations

from collections.abc import Callable

from isotherm.mqtt_proxy.sessions.skimming import Skimmed
from isotherm.mqtt_proxy.sessions.store import StoredState, begin_to_expire

Skim = Callable[[str, bytes], Skimmed | None]
"""Returns what a client's encoded state says of itself, or None when it has to be decoded."""

_STEP_MS = 10_000
"""Sessions that expire within the same step are expired together."""


class DormantSessions:
    """Encoded states by client id.

    `decode` decodes a state; `skim` reads of the state of a client what a start needs, or returns None.
    `restored_ms` is the time of the start in epoch milliseconds.
    """

    def __init__(
        self,
        decode: Callable[[bytes], StoredState],
        restored_ms: int,
        skim: Skim = lambda _client_id, _value: None,
    ) -> None:
        self._decode = decode
        self._skim = skim
        self._restored_ms = restored_ms
        self._values: dict[str, bytes] = {}
        self._due: dict[int, list[str]] = {}
        self.with_will: list[str] = []
        """Clients whose session has a will at the start."""

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._values

    def take_over(self, values: dict[str, bytes], takes: Callable[[int], bool]) -> set[int]:
        """Move the states whose owner `takes` accepts out of `values`, which is emptied; return all owners.

        Raises what `decode` raises.
        """
        taken: dict[int, bool] = {}
        while values:
            client_id, value = values.popitem()
            skimmed = self._skim(client_id, value)
            has_will = False
            if skimmed is None:
                state = self._decode(value)
                owner, has_will = state.owner or 0, state.will is not None
                due_ms = begin_to_expire(state, self._restored_ms)
            else:
                owner, expiry_s, expires_at_ms = skimmed
                due_ms = self._restored_ms + expiry_s * 1000 if expires_at_ms is None else expires_at_ms
            if owner not in taken:
                taken[owner] = takes(owner)
            if taken[owner]:
                self._values[client_id] = value
                self._due.setdefault(due_ms // _STEP_MS, []).append(client_id)
                if has_will:
                    self.with_will.append(client_id)
        return set(taken)

    def pop(self, client_id: str) -> StoredState | None:
        """Remove and return the state of a client; None without one."""
        value = self._values.pop(client_id, None)
        if value is None:
            return None
        state = self._decode(value)
        begin_to_expire(state, self._restored_ms)
        return state

    def due(self, now_ms: int, limit: int) -> list[str]:
        """Return at most `limit` clients whose session has expired, each once."""
        clients: list[str] = []
        for step in sorted(self._due):
            if step >= now_ms // _STEP_MS or len(clients) >= limit:
                break
            waiting = self._due[step]
            while waiting and len(clients) < limit:
                client_id = waiting.pop()
                if client_id in self._values:
                    clients.append(client_id)
            if not waiting:
                del self._due[step]
        return clients
