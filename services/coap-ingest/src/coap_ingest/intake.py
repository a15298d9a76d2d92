"""The bounded queue between the sockets and Kafka: in order, nothing in it is ever overwritten."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Intake(Generic[T]):
    """A queue whose places are reserved first, so that an item that needs more work keeps its place in the bound.

    For one event loop and one reader.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._arrived = asyncio.Event()
        self.reserved = 0
        """Places in use: items in the queue and those that are still being completed."""

    def reserve(self) -> bool:
        """Take a place; False when the queue is full."""
        if self.reserved >= self._limit:
            return False
        self.reserved += 1
        return True

    def put(self, item: T) -> None:
        """Put an item into a reserved place."""
        self._items.append(item)
        self._arrived.set()

    async def get(self) -> T:
        """The oldest item; its place stays in use until `release`."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        return self._items.popleft()

    def release(self) -> None:
        """Free one place."""
        self.reserved -= 1
