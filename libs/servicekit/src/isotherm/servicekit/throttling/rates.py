"""Rates in the form `n:seconds`, and the token bucket that enforces one.

Nothing here reads a clock: callers pass the time in seconds, always of the same monotonic clock.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

_FORM = re.compile(r"([1-9][0-9]{0,11}):([1-9][0-9]{0,5})")


class Rate(NamedTuple):
    """An amount per number of seconds."""

    amount: int
    seconds: int


def parse_rate(text: str) -> Rate:
    """Parse `n:seconds`, two whole numbers such as `100:1`. Raises ValueError that names the form."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rate; expected n:seconds, two whole numbers such as 100:1")
    return Rate(int(match[1]), int(match[2]))


def parse_optional_rate(text: str) -> Rate | None:
    """Parse `n:seconds`; the empty text gives None, no limit. Raises ValueError that names the form."""
    if not text.strip():
        return None
    try:
        return parse_rate(text)
    except ValueError as error:
        raise ValueError(f"{error}, or nothing for no limit") from None


def _checked(text: str) -> str:
    parse_optional_rate(text)
    return text.strip()


RateText = Annotated[str, AfterValidator(_checked)]
"""Type of a setting in the form `n:seconds`; empty means no limit."""


class TokenBucket:
    """A token bucket that holds `rate.amount` tokens when full and refills in `rate.seconds`.

    A caller may take more tokens than the bucket holds. The bucket then owes tokens and everybody waits for the debt,
    so that one large packet is not blocked forever.
    """

    __slots__ = ("_amount", "_at_s", "_per_s", "_tokens")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._amount = float(rate.amount)
        self._per_s = rate.amount / rate.seconds
        self._tokens = self._amount
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return 0 when a token is available, else the time in seconds until one is."""
        if now_s > self._at_s:
            self._tokens = min(self._amount, self._tokens + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self._per_s

    def left(self, now_s: float) -> int:
        """Return the number of whole tokens that the bucket holds."""
        self.wait_s(now_s)
        return max(0, int(self._tokens))

    def take(self, amount: int) -> None:
        """Take `amount` tokens."""
        self._tokens -= amount
