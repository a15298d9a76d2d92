"""Whether a task still owns a partition, for the threads that write for it.

A revoked partition has another owner as soon as the revocation is acknowledged. From then on this task must begin
nothing for it. A task may also lose its partitions without being told: its process stood still (SIGSTOP, a paused
virtual machine), or Kafka cannot be reached while the client waits for the end of a rebalance, when it sends no
heartbeats and watches no session timeout. So a task writes only while the coordinator's last word is recent. See
docs/adr/0047.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class OwnershipLostError(Exception):
    """The partition has, or may have, another owner: this task must not write for it any more."""


class Lease:
    """How long a task may write since the group's coordinator last confirmed that it is a member.

    The coordinator confirms it by accepting a commit, and gives the member's partitions to nobody else for the session
    timeout from then on. The thread that polls confirms the lease; the writers' threads look at it.
    """

    share = 0.6
    """Share of the session timeout after which nothing is begun any more: the rest is for a write under way."""

    def __init__(self, session_timeout_ms: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = session_timeout_ms / 1000 * self.share
        self._clock = clock
        self._confirmed_s = float("-inf")

    def asked(self) -> float:
        """Return the time at which a commit is sent, for `confirm`."""
        return self._clock()

    def confirm(self, asked_s: float) -> None:
        """Note that the coordinator accepted a commit that was sent at `asked_s`."""
        self._confirmed_s = max(self._confirmed_s, asked_s)

    @property
    def is_valid(self) -> bool:
        """Whether the task may rely on being a member."""
        return self._clock() <= self._confirmed_s + self._limit_s

    @property
    def is_due(self) -> bool:
        """Whether half of the lease is over: time to commit, even if there is nothing new."""
        return self._clock() > self._confirmed_s + self._limit_s / 2


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
