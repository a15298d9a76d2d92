"""Rates in the form `n:seconds`, and the token bucket that keeps one. No clock: times are given, in seconds."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

_FORM = re.compile(r"([1-9][0-9]{0,11}):([1-9][0-9]{0,5})")


class Rate(NamedTuple):
    """So much in so many seconds."""

    amount: int
    seconds: int


def parse_rate(text: str) -> Rate | None:
    """What `n:seconds` says; None for the empty text, no limit. Raises ValueError naming the form."""
    if not text:
        return None
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError("expected n:seconds, two whole numbers such as 100:1, or nothing for no limit")
    return Rate(int(match[1]), int(match[2]))


def _checked(text: str) -> str:
    parse_rate(text.strip())
    return text.strip()


RateText = Annotated[str, AfterValidator(_checked)]
"""A setting in the form `n:seconds`, empty for no limit."""


class Bucket:
    """Holds `rate.amount` tokens when full, and fills in `rate.seconds`.

    What is taken may be more than it holds: the debt is waited for, so that one large packet cannot stay for ever.
    """

    __slots__ = ("_amount", "_at_s", "_per_s", "_tokens")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._amount = float(rate.amount)
        self._per_s = rate.amount / rate.seconds
        self._tokens = self._amount
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """0 when something may be taken, else after how long it may."""
        if now_s > self._at_s:
            self._tokens = min(self._amount, self._tokens + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self._per_s

    def left(self, now_s: float) -> int:
        """How many whole tokens it holds."""
        self.wait_s(now_s)
        return max(0, int(self._tokens))

    def take(self, amount: int) -> None:
        """Take so many tokens."""
        self._tokens -= amount


class Meter:
    """Messages and payload bytes of one client, or of all, against their rates; at least one of them is limited."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages: Rate | None, payload_bytes: Rate | None, now_s: float) -> None:
        self._messages = Bucket(messages, now_s) if messages else None
        self._bytes = Bucket(payload_bytes, now_s) if payload_bytes else None

    def took(self, payload_bytes: int) -> None:
        """A message came."""
        if self._messages is not None:
            self._messages.take(1)
        if self._bytes is not None:
            self._bytes.take(payload_bytes)

    def wait_s(self, now_s: float) -> float:
        """0 when the next message may come, else after how long it may."""
        return max(bucket.wait_s(now_s) for bucket in (self._messages, self._bytes) if bucket is not None)


def meter(messages: str, payload_bytes: str, now_s: float) -> tuple[Meter, ...]:
    """A meter for the rates of two settings; none when neither limits anything."""
    rates = parse_rate(messages), parse_rate(payload_bytes)
    return (Meter(*rates, now_s),) if any(rates) else ()
