"""The bounded queue between the sockets and Kafka: in order, nothing in it is ever overwritten."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_ALONE = ""
_MOST_TIMES_THE_REST = 4
"""A source among several gets no more while it holds more than four times what is free: four fifths at most."""


@dataclass(slots=True)
class _Held:
    places: int = 0
    size: int = 0


class Intake(Generic[T]):
    """A queue bounded in items and bytes. Places are reserved first: an item that needs more work keeps its own.

    What is free is shared as switches share their buffers (Choudhury and Hahne, "Dynamic queue length thresholds",
    1998): a source may hold a multiple of what is free, so that there is always room for the others. One that is alone
    may hold everything, and one item of any size is nobody's too much. For one event loop and one reader.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._items: deque[tuple[T, int, Hashable]] = deque()
        self._arrived = asyncio.Event()
        self._taken: tuple[int, Hashable] = (0, _ALONE)
        self._sources: dict[Hashable, _Held] = {}
        self.reserved = 0
        """Places in use: reserved ones, items in the queue, and the one that the reader works on."""
        self.reserved_bytes = 0

    def join(self, source: Hashable) -> None:
        """Share with `source` from now on; safe to call again."""
        self._sources.setdefault(source, _Held())

    def reserve(self, size: int, source: Hashable = _ALONE) -> bool:
        """Take a place for an item of `size` bytes; False when there is no room for the source."""
        held = self._sources.setdefault(source, _Held())
        if self.reserved >= self._limit or self.reserved_bytes + size > self._limit_bytes:
            return False
        if len(self._sources) > 1:
            most = _MOST_TIMES_THE_REST * (self._limit - self.reserved)
            if held.places and (held.places >= most or not self._has_share(held, size)):
                return False
        self.reserved += 1
        self.reserved_bytes += size
        held.places += 1
        held.size += size
        return True

    def grow(self, size: int, source: Hashable = _ALONE) -> bool:
        """Have a place hold `size` bytes more; False when there is no room for the source."""
        held = self._sources[source]
        if self.reserved_bytes + size > self._limit_bytes:
            return False
        if len(self._sources) > 1 and held.places > 1 and not self._has_share(held, size):
            return False
        self.reserved_bytes += size
        held.size += size
        return True

    def _has_share(self, held: _Held, size: int) -> bool:
        return held.size + size <= _MOST_TIMES_THE_REST * (self._limit_bytes - self.reserved_bytes - size)

    def put(self, item: T, size: int, *, reserved: int, source: Hashable = _ALONE) -> None:
        """Put an item of `size` bytes into a place that was reserved for `reserved` bytes."""
        self.reserved_bytes += size - reserved
        self._sources[source].size += size - reserved
        self._items.append((item, size, source))
        self._arrived.set()

    def cancel(self, *, reserved: int, source: Hashable = _ALONE) -> None:
        """Free a place that was reserved, and gets no item."""
        self._free(reserved, source)

    async def get(self) -> T:
        """The oldest item; its place stays in use until `release`."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        item, size, source = self._items.popleft()
        self._taken = size, source
        return item

    def release(self) -> None:
        """Free the place of the item that was taken last."""
        self._free(*self._taken)

    def _free(self, size: int, source: Hashable) -> None:
        self.reserved -= 1
        self.reserved_bytes -= size
        held = self._sources[source]
        held.places -= 1
        held.size -= size
