"""What one resource's keeper learns of its server, the keepers of the server's other resources act on."""

from __future__ import annotations

import time
from collections.abc import Callable

Hasten = Callable[[float], None]

_SPREAD_MS = 1_000.0
_QUIET_MS = 10_000.0


class Endpoint:
    """The keepers of one server.

    A server that restarted forgot all observations at once, but each is missed only after its own Max-Age. The first
    keeper that notices has the others ask again within `spread_ms`, once in `quiet_ms`: what they find then is the
    same restart.
    """

    def __init__(
        self,
        spread_ms: float = _SPREAD_MS,
        quiet_ms: float = _QUIET_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spread_ms = spread_ms
        self._quiet_ms = quiet_ms
        self._clock = clock
        self._members: list[Hasten] = []
        self._told_at = float("-inf")

    def join(self, hasten: Hasten) -> None:
        """Tell this keeper of restarts that others notice."""
        self._members.append(hasten)

    def leave(self, hasten: Hasten) -> None:
        """Tell it no more."""
        self._members.remove(hasten)

    def restarted(self, witness: Hasten) -> None:
        """The keeper `witness` saw the server answer anew."""
        now = self._clock()
        if (now - self._told_at) * 1000 < self._quiet_ms:
            return
        self._told_at = now
        for hasten in self._members:
            if hasten != witness:
                hasten(self._spread_ms)
