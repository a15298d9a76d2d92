"""The bounded queue between the sockets and Kafka. It keeps the order and never overwrites an item."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_SINGLE_SOURCE = ""
_MAX_TIMES_FREE = 4
"""A source among several holds at most four times what is free: at most four fifths of the queue."""


@dataclass(slots=True)
class _Usage:
    slots: int = 0
    size: int = 0


class BoundedQueue(Generic[T]):
    """A queue bounded in items and bytes, with reservations: an item that needs more work first keeps its slot.

    Sources share the free space with dynamic thresholds, as network switches share their buffers (Choudhury and Hahne,
    "Dynamic queue length thresholds", 1998): a source may hold a multiple of what is free, so that there is always room
    for the others. A single source may hold everything, and one item of any size always fits a source that holds none.
    For one event loop and one reader.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._items: deque[tuple[T, int, Hashable]] = deque()
        self._has_items = asyncio.Event()
        self._current: tuple[int, Hashable] = (0, _SINGLE_SOURCE)
        self._sources: dict[Hashable, _Usage] = {}
        self.reserved = 0
        """Slots in use: reserved ones, items in the queue, and the item that the reader works on."""
        self.reserved_bytes = 0

    def add_source(self, source: Hashable) -> None:
        """Share the queue with `source` from now on; repeated calls do no harm."""
        self._sources.setdefault(source, _Usage())

    def reserve(self, size: int, source: Hashable = _SINGLE_SOURCE) -> bool:
        """Reserve a slot for an item of `size` bytes; return False when there is no room for the source."""
        usage = self._sources.setdefault(source, _Usage())
        if self.reserved >= self._limit or self.reserved_bytes + size > self._limit_bytes:
            return False
        if len(self._sources) > 1:
            most = _MAX_TIMES_FREE * (self._limit - self.reserved)
            if usage.slots and (usage.slots >= most or not self._has_share(usage, size)):
                return False
        self.reserved += 1
        self.reserved_bytes += size
        usage.slots += 1
        usage.size += size
        return True

    def grow(self, size: int, source: Hashable = _SINGLE_SOURCE) -> bool:
        """Enlarge a reserved slot by `size` bytes; return False when there is no room for the source."""
        usage = self._sources[source]
        if self.reserved_bytes + size > self._limit_bytes:
            return False
        if len(self._sources) > 1 and usage.slots > 1 and not self._has_share(usage, size):
            return False
        self.reserved_bytes += size
        usage.size += size
        return True

    def _has_share(self, usage: _Usage, size: int) -> bool:
        return usage.size + size <= _MAX_TIMES_FREE * (self._limit_bytes - self.reserved_bytes - size)

    def put(self, item: T, size: int, *, reserved: int, source: Hashable = _SINGLE_SOURCE) -> None:
        """Put an item of `size` bytes into a slot that was reserved for `reserved` bytes."""
        self.reserved_bytes += size - reserved
        self._sources[source].size += size - reserved
        self._items.append((item, size, source))
        self._has_items.set()

    def cancel(self, *, reserved: int, source: Hashable = _SINGLE_SOURCE) -> None:
        """Free a reserved slot of `reserved` bytes without putting an item."""
        self._free(reserved, source)

    async def get(self) -> T:
        """Return the oldest item; its slot stays in use until `release`."""
        while not self._items:
            self._has_items.clear()
            await self._has_items.wait()
        return self._take()

    def get_nowait(self) -> T | None:
        """Return the oldest item as `get` does; None when there is none."""
        return self._take() if self._items else None

    def _take(self) -> T:
        item, size, source = self._items.popleft()
        self._current = size, source
        return item

    def release(self) -> None:
        """Free the slot of the item that `get` returned last."""
        self._free(*self._current)

    def _free(self, size: int, source: Hashable) -> None:
        self.reserved -= 1
        self.reserved_bytes -= size
        usage = self._sources[source]
        usage.slots -= 1
        usage.size -= size
