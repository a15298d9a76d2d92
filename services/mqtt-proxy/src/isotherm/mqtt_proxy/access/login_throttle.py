"""Limits guessing of passwords: attempts count from their beginning, so that many at once are limited as in a row."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from isotherm.servicekit.rates import Rate, TokenBucket


class TooManyFailuresError(Exception):
    """Too many attempts failed for this key; none is made now."""


class Attempt:
    """One attempt; it counts as failed when it ends with `failed` set."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = False


class LoginLimit:
    """Failed logins by key (a user at an address, an address), against a rate.

    At a time only so many attempts of a key are under way as may still fail; the others wait for their outcome, so that
    a thousand devices behind one address get in while a thousand guesses do not. Keys that were quiet for longest are
    forgotten beyond `maximum`. To be used on one event loop.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float], maximum: int = 10_000) -> None:
        self._rate = rate
        self._clock = clock
        self._maximum = maximum
        self._keys: OrderedDict[str, _Key] = OrderedDict()

    @asynccontextmanager
    async def attempt(self, key: str) -> AsyncIterator[Attempt]:
        """Make an attempt, after waiting for those that decide whether it may be made. Raises TooManyFailuresError."""
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _Key(TokenBucket(self._rate, self._clock()))
        self._keys.move_to_end(key)
        state.users += 1
        try:
            await self._enter(state)
            attempt = Attempt()
            try:
                yield attempt
            finally:
                state.under_way -= 1
                if attempt.failed:
                    state.failures.take(1)
                state.wake()
        finally:
            state.users -= 1
            self._forget()

    async def _enter(self, state: _Key) -> None:
        while True:
            allowed = state.failures.left(self._clock())
            if not allowed:
                state.wake()
                raise TooManyFailuresError
            if state.under_way < allowed:
                state.under_way += 1
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            state.waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # It may have been its turn.
                state.wake()
                raise

    def _forget(self) -> None:
        while len(self._keys) > self._maximum:
            key, state = next(iter(self._keys.items()))
            if state.users:
                return
            del self._keys[key]


class _Key:
    __slots__ = ("failures", "under_way", "users", "waiting")

    def __init__(self, failures: TokenBucket) -> None:
        self.failures = failures
        self.under_way = 0
        self.users = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    def wake(self) -> None:
        """Let the next that waits look again."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
