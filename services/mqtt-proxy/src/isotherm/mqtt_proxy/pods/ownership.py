"""Which stored sessions belong to a process of a pod: at its start, and when it adopts those of removed pods."""

from __future__ import annotations

from typing import NamedTuple

from isotherm.mqtt_proxy.pods.log_copy import PROCESSES_OF_A_POD
from isotherm.mqtt_proxy.sessions.store import Dormant, StoredState


class PodSlot(NamedTuple):
    """A process at its start. All numbers are ordinals."""

    ordinal: int
    first_ordinal: int
    is_heir: bool
    others: frozenset[int]
    below: int

    def owns(self, owner: int) -> bool:
        """Return whether the sessions of `owner` are this process' own.

        The heir's first process also has those of every owner that is neither live nor waits for its adoption.
        """
        return owner == self.ordinal or (self.is_heir and owner < self.below and owner not in self.others)

    def is_gone(self, owner: int) -> bool:
        """Return whether `owner` is a process from before there were pods, which the log does not know."""
        return owner < self.first_ordinal + PROCESSES_OF_A_POD


class AdoptedSlots(NamedTuple):
    """The processes whose sessions an heir adopts. All numbers are ordinals."""

    first_ordinal: int
    gone: frozenset[int]
    is_whole: bool
    live: frozenset[int]
    below: int

    def owns(self, owner: int) -> bool:
        """Return whether the sessions of `owner` are adopted."""
        return owner in self.gone or (self.is_whole and owner < self.below and owner not in self.live)

    def is_gone(self, owner: int) -> bool:
        """Return whether `owner` is a process from before there were pods, which the log does not know."""
        return owner < self.first_ordinal + PROCESSES_OF_A_POD


class Estates:
    """Restored sessions that no client has asked for yet, of several adoptions. A `Dormant` of the session store."""

    def __init__(self) -> None:
        self._parts: list[Dormant] = []

    def add(self, part: Dormant) -> None:
        """Add the sessions of an adoption, which are here not yet."""
        self._parts = [each for each in self._parts if len(each)]
        self._parts.append(part)

    @property
    def with_will(self) -> list[str]:
        """Clients whose session has a will."""
        return [client_id for part in self._parts for client_id in part.with_will]

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def pop(self, client_id: str) -> StoredState | None:
        """Remove and return the state of a client; None without one."""
        for part in self._parts:
            state = part.pop(client_id)
            if state is not None:
                return state
        return None

    def due(self, now_ms: int, limit: int) -> list[str]:
        """Return at most `limit` clients whose session has expired."""
        found: list[str] = []
        for part in self._parts:
            if len(found) < limit:
                found += part.due(now_ms, limit - len(found))
        return found
