"""The number of a process among those of one server, and the sessions that it owns by it."""

from __future__ import annotations

from typing import NamedTuple


class WorkerSlot(NamedTuple):
    """Slot `number` of `processes` slots; the slots use the ordinals from `first_ordinal` on."""

    number: int = 0
    processes: int = 1
    first_ordinal: int = 0

    @property
    def ordinal(self) -> int:
        """The number in the transactional id, which is also the owner of the sessions."""
        return self.first_ordinal + self.number

    def owns(self, owner: int) -> bool:
        """Return whether the sessions of process `owner` belong to this slot at the start.

        These are its own sessions and its share of the sessions of processes that do not exist any more.
        """
        return (owner - self.first_ordinal) % self.processes == self.number

    def is_gone(self, owner: int) -> bool:
        """Return whether process `owner` does not exist any more."""
        return not 0 <= owner - self.first_ordinal < self.processes
