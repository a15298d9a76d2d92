"""What the kit has to know of a sink: its plug-in, its configuration, and how to read and disturb its store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

REFUSED_FROM = 32_768
"""A level from here on is refused by a target of `refuse_high_levels`: it is no 16-bit number."""


class SinkUnderTest(ABC):
    """One sink and a store for it; a test makes a new one, and targets have names that nobody else uses."""

    sink: ClassVar[str]
    """Where the sink's `SinkKind` is, as an entry point names it: `package.module:ATTRIBUTE`."""
    is_append: ClassVar[bool] = False
    """Whether the store keeps every record, one behind the other, and not one row for each id."""

    wins_by_event_time: ClassVar[bool] = False
    """Whether the row of an id with the latest event time stays, and not the one that was written last."""

    @abstractmethod
    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        """Return the keys of a connector that are the sink's: the store's address, and a KCQL statement.

        The statement takes `SELECT *` of `topic` into `target` and creates what is missing; `pk` are the fields of its
        PK. The fields of every record are `device` (string), `sequence` (long), `level` (int), `time`
        (timestamp-millis) and `revision` (long).
        """

    @abstractmethod
    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        """Return what `target` holds, nothing if it does not exist: `device`, `sequence` and `level` of each row.

        The kit also calls it while the sink writes. An appending store returns its items in their order.
        """

    @abstractmethod
    def outage(self) -> AbstractContextManager[None]:
        """Make the store take no writes until the end of the context; the sink must notice within ten seconds."""

    def refuse_high_levels(self, target: str) -> bool:
        """Create `target` so that it refuses a `level` above 32767, as a column of a narrower type does.

        Returns whether it does: False, the default, for a store that takes everything.
        """
        return False
