"""What the loop reports, beside the writes that the writers' threads report."""

from __future__ import annotations

from typing import Protocol

from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.partition_buffer import Partition
from isotherm.persisters.consuming.offsets import CommitObserver
from isotherm.persisters.task.writers import WriteObserver


class Observer(WriteObserver, CommitObserver, Protocol):
    """Is told of the loop's progress, by the loop's thread and by the writers' threads."""

    def settled(self, partition: Partition, counts: Counts) -> None:
        """Records got their outcome."""
