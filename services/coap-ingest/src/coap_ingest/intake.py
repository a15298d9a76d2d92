"""The bounded queue between the sockets and Kafka: in order, nothing in it is ever overwritten."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Intake(Generic[T]):
    """A queue bounded in items and bytes. Places are reserved first: an item that needs more work keeps its own.

    For one event loop and one reader.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._arrived = asyncio.Event()
        self._taken_bytes = 0
        self.reserved = 0
        """Places in use: reserved ones, items in the queue, and the one that the reader works on."""
        self.reserved_bytes = 0

    def reserve(self, size: int) -> bool:
        """Take a place for an item of at most `size` bytes; False when the queue is full."""
        if self.reserved >= self._limit or self.reserved_bytes + size > self._limit_bytes:
            return False
        self.reserved += 1
        self.reserved_bytes += size
        return True

    def put(self, item: T, size: int, *, reserved: int) -> None:
        """Put an item of `size` bytes into a place that was reserved for `reserved` bytes."""
        self.reserved_bytes += size - reserved
        self._items.append((item, size))
        self._arrived.set()

    async def get(self) -> T:
        """The oldest item; its place stays in use until `release`."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        item, self._taken_bytes = self._items.popleft()
        return item

    def release(self) -> None:
        """Free the place of the item that was taken last."""
        self.reserved -= 1
        self.reserved_bytes -= self._taken_bytes
