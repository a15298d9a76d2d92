"""Converts the times that devices write to epoch milliseconds.

A number is seconds, milliseconds, microseconds or nanoseconds since 1970-01-01T00:00Z; its magnitude decides the unit:
below 1e11 seconds (until the year 5138), below 1e14 milliseconds (from March 1973), below 1e17 microseconds, above
that nanoseconds. A text is ISO 8601 with a time zone.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from isotherm.payloads.errors import PayloadError

MAX_EPOCH_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest time that every supported store can hold."""

_MS_FROM, _MS_BELOW = 100_000_000_000, 100_000_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def epoch_ms(time: object) -> int:
    """Return `time` as whole epoch milliseconds, rounded towards the past.

    Raises PayloadError for anything that is not a time between 1970 and 9999, and for a text without a time zone.
    """
    if type(time) is int:
        # Nearly every device writes whole milliseconds, so they take the shortest way.
        return time if _MS_FROM <= time < _MS_BELOW else _of_number(time)
    if type(time) is float:
        return _of_number(time)
    if isinstance(time, str):
        return _of_text(time)
    raise PayloadError(f"{_shown(time)} is not a time: expected epoch s, ms, us or ns, or ISO 8601 with a zone")


def _of_number(number: int | float) -> int:
    if not 0 <= number < math.inf:
        raise PayloadError(f"{_shown(number)} is not a time: expected a number from 0")
    if number < _MS_FROM:
        # In binary, 1486997194.029 * 1000 is 1486997194028.9999; no device means a hundredth of a millisecond.
        ms = number * 1000 if type(number) is int else math.floor(round(number * 1e3, 2))
    elif number < _MS_BELOW:
        ms = math.floor(number)
    elif number < 100_000_000_000_000_000:
        ms = math.floor(number) // 1000
    else:
        ms = math.floor(number) // 1_000_000
    if ms > MAX_EPOCH_MS:
        raise PayloadError(f"{_shown(number)} is not a time: it lies after the year 9999")
    return ms


def _of_text(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise PayloadError(f"{_shown(text)} is not a time: expected ISO 8601, such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise PayloadError(f"{_shown(text)} is not a time: it has no time zone (Z or +01:00)")
    try:
        ms = (moment - _EPOCH) // _MILLISECOND
    except OverflowError:
        ms = -1
    if not 0 <= ms <= MAX_EPOCH_MS:
        raise PayloadError(f"{_shown(text)} is not a time between 1970 and 9999")
    return ms


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
