"""Rows as JSON documents: times as epoch milliseconds, times of day as ISO 8601, bytes as base64, exact decimals."""

from __future__ import annotations

import base64
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import orjson

from isotherm.kcql.dates import epoch_ms

_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME


class NotADocumentError(ValueError):
    """A value has no form in JSON: a number beyond 64 bits, text that is not Unicode."""


def to_json(value: Any) -> bytes:
    """The value as compact JSON, UTF-8.

    Not-a-number and the infinities, which JSON does not have, become null.

    Raises NotADocumentError.
    """
    try:
        return orjson.dumps(value, default=_other, option=_OPTIONS)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise NotADocumentError(f"no JSON document can be made of the row: {error}") from error


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
    raise TypeError(f"{type(value).__name__} has no form in JSON")
