"""Single values as the text of ids and targets, and as event times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from fractions import Fraction
from typing import Any

from isotherm.kcql.dates import EPOCH, epoch_ms, utc
from isotherm.kcql.errors import ProjectionError
from isotherm.kcql.projection.paths import MISSING

UNIT_IN_MS: Mapping[str, Fraction] = {
    "NANOSECONDS": Fraction(1, 1_000_000),
    "MICROSECONDS": Fraction(1, 1_000),
    "MILLISECONDS": Fraction(1),
    "SECONDS": Fraction(1_000),
    "MINUTES": Fraction(60_000),
    "HOURS": Fraction(3_600_000),
    "DAYS": Fraction(86_400_000),
}
_EARLIEST_MS = epoch_ms(datetime.min)
_LATEST_MS = epoch_ms(datetime.max)


def single(value: Any, path: str) -> Any:
    """The value itself.

    Raises:
        ProjectionError: it is missing, null, a record or an array.
    """
    if value is MISSING:
        raise ProjectionError(path, "the record has no such field")
    if value is None:
        raise ProjectionError(path, "is null")
    if isinstance(value, Mapping):
        raise ProjectionError(path, "is a record, not a single value")
    if isinstance(value, list | tuple):
        raise ProjectionError(path, "is an array, not a single value")
    return value


def text_of(value: Any, path: str, *, microseconds: bool = False, bytes_are_text: bool = False) -> str:
    """A single value as text; different values give different texts.

    Args:
        value: a value that `single` returned.
        path: the path of the statement, for the error.
        microseconds: whether a datetime is written as epoch microseconds instead of milliseconds.
        bytes_are_text: whether bytes are UTF-8 text; they are written in hexadecimal otherwise.

    Raises:
        ProjectionError: bytes that should be text and are not UTF-8.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        if microseconds:
            return str((utc(value) - EPOCH) // timedelta(microseconds=1))
        return str(epoch_ms(value))
    if isinstance(value, date | time):
        return value.isoformat()
    if not isinstance(value, bytes):
        return str(value)
    if not bytes_are_text:
        return value.hex()
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ProjectionError(path, "holds bytes that are not UTF-8 text") from None


def event_time_ms_of(value: Any, path: str, unit: str) -> int:
    """An event time in epoch milliseconds, rounded down.

    Args:
        value: a number in `unit` since 1970-01-01 UTC, a datetime, or ISO 8601 text; without a zone it is UTC.
        path: the path of the statement, for the error.
        unit: a TIMESTAMPUNIT.

    Raises:
        ProjectionError: the value is no time, or outside the years 1 to 9999.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ProjectionError(path, f"{value[:40]!r} is no time in ISO 8601") from None
    if isinstance(value, datetime):
        return epoch_ms(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ProjectionError(path, f"a {type(value).__name__} ({str(value)[:40]}) is no time")
    time_ms = math.floor(value if unit == "MILLISECONDS" else Fraction(value) * UNIT_IN_MS[unit])
    if not _EARLIEST_MS <= time_ms <= _LATEST_MS:
        raise ProjectionError(path, f"{value} {unit.lower()} is outside the years 1 to 9999")
    return time_ms
