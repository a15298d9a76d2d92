"""A row's values in the form that the columns take. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from isotherm.persisters.records.documents import to_json
from isotherm.persisters.sinks.postgresql.sql import TIMESTAMP

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXTS = ("text", "character varying", "character", "name")

Convert = Callable[[Any], Any]


def converter(column_type: str) -> Convert:
    """Return how a value that is not null becomes what a column of this type takes.

    Values that PostgreSQL reads itself stay as they are: it says what is wrong with them. The function raises
    ValueError, TypeError or OverflowError for a value that cannot be converted.
    """
    name = column_type.partition("(")[0]
    if name in ("jsonb", "json"):
        return lambda value: to_json(value).decode()
    if name in _TEXTS:
        return _text
    if name == TIMESTAMP or name.startswith("timestamp"):
        return _timestamp if name == TIMESTAMP else lambda value: _without_zone(_timestamp(value))
    if name == "date":
        return _date
    if name.startswith("time"):
        return _time
    return _scalar


_SINGLE = frozenset((bool, int, float, str, bytes))


def _scalar(value: Any) -> Any:
    if type(value) in _SINGLE:
        # Asking an abstract class takes longer than all else that is done with a value.
        return value
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, (str, bytes))):
        raise TypeError(f"a column of single values takes no {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    """Return a value as text: numbers and truth values as in JSON, bytes as base64, structures as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    text = to_json(value).decode()
    return text[1:-1] if text.startswith('"') else text


def _timestamp(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return _EPOCH + timedelta(milliseconds=value)
    return _scalar(value)


def _without_zone(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _date(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return date(1970, 1, 1) + timedelta(days=value)
    return _scalar(value)


def _time(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < 86_400_000:
            raise ValueError(f"{value} ms is no time of a day")
        return (datetime.min + timedelta(milliseconds=value)).time()
    return value if isinstance(value, time) else _scalar(value)
