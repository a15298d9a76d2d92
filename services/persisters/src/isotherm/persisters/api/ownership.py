"""Whether a task still owns a partition, for the threads that write for it.

A revoked partition has another owner as soon as the revocation is acknowledged. From then on this task must begin
nothing for it. A process that stood still (SIGSTOP, a paused virtual machine) may have lost its partitions without
being told; it waits until its consumer has had time to learn that. See docs/adr/0047.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class OwnershipLostError(Exception):
    """The partition has, or may have, another owner: this task must not write for it any more."""


class Lease:
    """How long a task may rely on what its consumer last told it. The polling thread renews it.

    The group's coordinator gives a member's partitions to others if it has not heard from the member for the session
    timeout. If polling paused for `share` of that time, the member may be out of the group already. Its next heartbeats
    tell it, so nothing is written before they had the same time again.
    """

    share = 0.6
    """Less than 1, because the last heartbeat may have been sent 3 s (of a session of 10 s) before the process stopped.
    """

    def __init__(self, session_timeout_ms: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = session_timeout_ms / 1000 * self.share
        self._clock = clock
        self._renewed_s: float | None = None
        """None until the first poll; nothing is owned before it."""
        self._suspended_until_s = float("-inf")

    def renew(self) -> None:
        """Note that the consumer was polled just now."""
        now_s = self._clock()
        if self._renewed_s is not None and now_s - self._renewed_s > self._limit_s:
            self._suspended_until_s = now_s + self._limit_s
        self._renewed_s = now_s

    @property
    def is_valid(self) -> bool:
        """Whether the task may rely on what its consumer last told it."""
        now_s = self._clock()
        renewed_s = self._renewed_s
        return renewed_s is not None and self._suspended_until_s <= now_s <= renewed_s + self._limit_s


class Ownership:
    """The ownership of one partition, from its assignment until it is revoked, lost, or released by the end of the
    task.
    """

    __slots__ = ("_is_released", "_lease")

    def __init__(self, lease: Lease | None = None) -> None:
        """An ownership without a lease is held until `release`."""
        self._lease = lease
        self._is_released = False

    def release(self) -> None:
        """Give the partition up: another task may own it from here on. Safe to call from any thread."""
        self._is_released = True

    @property
    def is_held(self) -> bool:
        """Whether this task may write for the partition."""
        return not self._is_released and (self._lease is None or self._lease.is_valid)

    def check(self) -> None:
        """Raise OwnershipLostError unless the ownership is held; to be called before every request that writes."""
        if not self.is_held:
            raise OwnershipLostError("this task does not own the partition any more")
