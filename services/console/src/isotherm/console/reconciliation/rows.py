"""Records whose rows are to be read back from stores: new ones first, then those read back longest ago. Pure."""

from __future__ import annotations

import threading
from collections import OrderedDict
from enum import Enum, auto
from typing import NamedTuple

from isotherm.console.records.record import Record
from isotherm.console.trace.model import TopicPartitionOffset

RecordKey = tuple[str, bytes | None]
"""Topic and key: of the records of a key the newest one counts."""


class Waiting(NamedTuple):
    """A record, and when it came."""

    record: Record
    since_ms: int

    @property
    def place(self) -> TopicPartitionOffset:
        """Its place in Kafka."""
        return TopicPartitionOffset.of(self.record)


class Again(Enum):
    """When a record is to be read back again."""

    LATER = auto()
    """It was read back: after the others that were."""
    SOON = auto()
    """It could not be: as a new one."""
    NEXT = auto()
    """A row is not right, or was not: with those, for as long as that is so."""


class RowPool:
    """The newest record of each key, for a while. One thread adds, another one chooses."""

    def __init__(self, *, most: int, keep_ms: int) -> None:
        """Keep `most` records, each for `keep_ms`; those of which a row is not right are kept until they are right."""
        self._most, self._keep_ms = most, keep_ms
        self._lock = threading.Lock()
        self._groups: dict[Again, OrderedDict[RecordKey, Waiting]] = {again: OrderedDict() for again in Again}

    def add(self, record: Record, now_ms: int) -> None:
        """Add a record in place of an earlier one of its key."""
        key = (record.topic, record.key)
        with self._lock:
            for group in self._groups.values():
                group.pop(key, None)
            self._groups[Again.SOON][key] = Waiting(record, now_ms)
            if sum(map(len, self._groups.values())) > self._most:
                (self._groups[Again.LATER] or self._groups[Again.SOON]).popitem(last=False)

    def choose(self, most: int, now_ms: int) -> list[Waiting]:
        """Take the records to read back now; each has to be given back by `note`.

        A quarter are those of which a row is not right, a quarter those that were read back before, the rest new ones.
        """
        share = max(1, most // 4)
        with self._lock:
            for again in (Again.LATER, Again.SOON):
                group = self._groups[again]
                for key in [key for key, one in group.items() if now_ms - one.since_ms > self._keep_ms]:
                    del group[key]
            chosen: list[Waiting] = []
            for again, limit in (
                (Again.NEXT, share),
                (Again.LATER, share if most > 1 else 0),
                (Again.SOON, most),
                (Again.LATER, most),
                (Again.NEXT, most),
            ):
                group = self._groups[again]
                count = min(limit, most - len(chosen), len(group))
                chosen += [group.popitem(last=False)[1] for _ in range(count)]
            return chosen

    def note(self, waiting: Waiting, again: Again) -> None:
        """Give a record back, unless a newer one of its key came."""
        key = (waiting.record.topic, waiting.record.key)
        with self._lock:
            if not any(key in group for group in self._groups.values()):
                self._groups[again][key] = waiting

    def is_newest(self, waiting: Waiting) -> bool:
        """Whether no newer record of its key came."""
        with self._lock:
            newest = self._groups[Again.SOON].get((waiting.record.topic, waiting.record.key))
            return newest is None or newest.record.offset <= waiting.record.offset
