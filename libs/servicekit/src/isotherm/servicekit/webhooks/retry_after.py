"""The pause that an answer over HTTP asks for by `Retry-After` (RFC 9110, 10.2.3). Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_LONGEST_PAUSE_MS = 300_000.0
"""A server that asks for a longer pause is asked again all the same: it may have lied, or be replaced."""


def pause_ms(retry_after: str | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Return the pause that `Retry-After` asks for, at most five minutes; None if it asks for none.

    It is a number of seconds or a date; anything else counts as none.
    """
    text = (retry_after or "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text) * 1000, _LONGEST_PAUSE_MS)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return min(max(0.0, (until - now()).total_seconds() * 1000), _LONGEST_PAUSE_MS)
