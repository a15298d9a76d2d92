"""What drives the model: a clock, timers, and the seed's random generator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

Cancel = Callable[[], None]


class Timers(Protocol):
    """A virtual clock. Callbacks must not block; those of one time run in an order that the seed decides."""

    random: random.Random
    """The only source of chance, so that a run is a function of its seed."""

    @property
    def now_ms(self) -> float:
        """The virtual time, which starts at 0, in milliseconds."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancel:
        """Call `callback` after `delay_ms` milliseconds; return what cancels this."""

    def note(self, *words: object) -> None:
        """Add a line to the run's trace."""
