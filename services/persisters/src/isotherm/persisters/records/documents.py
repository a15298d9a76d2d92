"""Rows as JSON documents: times as epoch milliseconds, dates and times of day as ISO 8601, bytes as base64."""

from __future__ import annotations

import base64
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import orjson

from isotherm.kcql.dates import epoch_ms

_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME


class NotADocumentError(ValueError):
    """A value cannot be written as JSON: a number beyond 64 bits, text that is not Unicode."""


def to_json(value: Any) -> bytes:
    """Return the value as compact JSON in UTF-8; not-a-number and the infinities, which JSON lacks, become null.

    Raises NotADocumentError.
    """
    try:
        return orjson.dumps(value, default=_other, option=_OPTIONS)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise NotADocumentError(f"the row cannot be written as JSON: {error}") from error


def _other(value: Any) -> Any:
    if isinstance(value, datetime):
        return epoch_ms(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
