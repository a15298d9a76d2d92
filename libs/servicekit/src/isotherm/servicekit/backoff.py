"""Capped exponential back-off with full jitter: how the suite waits for a server."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Waits after consecutive failures.

    The n-th wait is drawn evenly from [0, min(cap_ms, base_ms * 2**n)], never under `floor_ms`, so that clients
    that failed together do not come back together.
    """

    base_ms: float = 100.0
    cap_ms: float = 30_000.0
    floor_ms: float = 10.0
    # Looked up at each use and not bound here, so that a simulation can put its seeded source in the module's place.
    random: random.Random = field(default_factory=lambda: random.SystemRandom())
    failures: int = 0

    def next_ms(self) -> float:
        """Count one more failure; the wait in ms."""
        # 2**63 already exceeds every cap; a bound keeps the power from growing without end.
        ceiling = min(self.cap_ms, self.base_ms * 2 ** min(self.failures, 63))
        self.failures += 1
        return max(self.floor_ms, self.random.uniform(0.0, ceiling))

    def reset(self) -> None:
        """Start again from the base, because the server answered."""
        self.failures = 0
