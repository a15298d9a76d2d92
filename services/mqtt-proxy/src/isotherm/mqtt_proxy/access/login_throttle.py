"""Limits how fast passwords can be guessed, whether the attempts come one after the other or all at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from isotherm.servicekit.throttling.rates import Rate, TokenBucket


class TooManyFailuresError(Exception):
    """Too many attempts failed for this key, so no further attempt is made now."""


class LoginAttempt:
    """One attempt. It counts as failed when it ends with `failed` set."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = False


class LoginThrottle:
    """Counts failed logins by key (a user at an address, or an address) against a rate.

    A key has at most as many concurrent attempts as may still fail. Further attempts wait for the outcome of those. So
    a thousand devices behind one address can log in, while a thousand guesses cannot. Beyond `maximum` keys the
    throttle forgets the least recently used ones. Used on one event loop.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float], maximum: int = 10_000) -> None:
        self._rate = rate
        self._clock = clock
        self._maximum = maximum
        self._keys: OrderedDict[str, _Key] = OrderedDict()

    @asynccontextmanager
    async def attempt(self, key: str) -> AsyncIterator[LoginAttempt]:
        """Wait until an attempt is allowed and make it in the body. Raises TooManyFailuresError when it is not."""
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _Key(TokenBucket(self._rate, self._clock()))
        self._keys.move_to_end(key)
        state.users += 1
        try:
            await self._enter(state)
            attempt = LoginAttempt()
            try:
                yield attempt
            finally:
                state.concurrent -= 1
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
            if state.concurrent < allowed:
                state.concurrent += 1
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            state.waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # It may have been this waiter's turn: pass it on.
                state.wake()
                raise

    def _forget(self) -> None:
        while len(self._keys) > self._maximum:
            key, state = next(iter(self._keys.items()))
            if state.users:
                return
            del self._keys[key]


class _Key:
    __slots__ = ("concurrent", "failures", "users", "waiting")

    def __init__(self, failures: TokenBucket) -> None:
        self.failures = failures
        self.concurrent = 0
        self.users = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    def wake(self) -> None:
        """Let the next waiter check again."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
