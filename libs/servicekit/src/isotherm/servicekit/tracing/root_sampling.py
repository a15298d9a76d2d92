"""Which messages without a trace context begin a trace. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

_MOST = 2**62
"""Compiled code counts in 64 bits."""


class RootSampling:
    """Draws messages at random: of `n` messages about `n * ratio`.

    It draws how many messages pass until the next one, so that a message costs a subtraction, in compiled code too.

    Attributes:
        left: the number of the message that begins a trace, counted from the next one as 1; 0 when none ever does.
    """

    __slots__ = ("_draw", "_log_of_rest", "left")

    def __init__(self, ratio: float, draw: Callable[[], float] = random.random) -> None:
        """`draw` returns numbers from 0 to below 1, all of them equally likely."""
        self._draw = draw
        self._log_of_rest = math.log1p(-ratio) if ratio < 1.0 else -math.inf
        self.left = self._next() if ratio > 0.0 else 0

    def is_due(self) -> bool:
        """Count a message; return whether it begins a trace."""
        if not self.left:
            return False
        self.left -= 1
        if self.left:
            return False
        self.left = self._next()
        return True

    def _next(self) -> int:
        # The geometric distribution: the number of the first success.
        return 1 + int(min(math.log1p(-self._draw()) / self._log_of_rest, _MOST))
