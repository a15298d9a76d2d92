"""Whether a task still owns a partition, for the threads that write for it.

A revoked partition has another owner as soon as the revocation is acknowledged: from then on nothing may be begun for
it here. A process that stood still (SIGSTOP, a virtual machine that was paused) may have lost its partitions without
knowing; it waits until its consumer has had time to be told. See docs/adr/0047.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class OwnershipLostError(Exception):
    """The partition has another owner, or may have one: nothing more may be written for it here."""


class Lease:
    """How long a task may rely on what its consumer told it last; renewed by the thread that polls.

    The group's coordinator gives the partitions of a member to others when it has not heard from it for the session
    timeout. Where polling paused for `share` of that, the member may be out already: its heartbeats tell it, and
    nothing is written before they had the same time again to do so.
    """

    share = 0.6
    """A heartbeat may have been 3 s old, of a session of 10 s, when the process stopped."""

    def __init__(self, session_timeout_ms: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = session_timeout_ms / 1000 * self.share
        self._clock = clock
        self._renewed_s: float | None = None
        """None until the first poll, before which nothing is owned."""
        self._suspended_until_s = float("-inf")

    def renew(self) -> None:
        """The consumer was polled just now."""
        now_s = self._clock()
        if self._renewed_s is not None and now_s - self._renewed_s > self._limit_s:
            self._suspended_until_s = now_s + self._limit_s
        self._renewed_s = now_s

    @property
    def is_valid(self) -> bool:
        """Whether what the consumer told last can be relied on."""
        now_s = self._clock()
        renewed_s = self._renewed_s
        return renewed_s is not None and self._suspended_until_s <= now_s <= renewed_s + self._limit_s


class Ownership:
    """Of one partition, from its assignment until it is revoked, lost, or left by the end of the task."""

    __slots__ = ("_is_released", "_lease")

    def __init__(self, lease: Lease | None = None) -> None:
        """Without a lease it lasts until it is released."""
        self._lease = lease
        self._is_released = False

    def release(self) -> None:
        """Another task may own the partition from here on. Safe to call from any thread."""
        self._is_released = True

    @property
    def is_held(self) -> bool:
        """Whether the partition may be written for."""
        return not self._is_released and (self._lease is None or self._lease.is_valid)

    def check(self) -> None:
        """To be called before every request that writes. Raises OwnershipLostError."""
        if not self.is_held:
            raise OwnershipLostError("the partition is not owned any more")
