"""Records as JSON lines, and conditions on their fields."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.avro import Decoder, WireFormatError


def where_condition(given: Sequence[str], decoder: Decoder) -> Callable[[Message], bool]:
    """Return a function that tells whether a message's record has all given values.

    Each condition is `field=value` or `outer.inner=value`, with the value as JSON shows it. A value that cannot be
    decoded does not match. Raises ValueError for a condition of another form.
    """
    conditions = []
    for text in given:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise ValueError(f"{text!r} is not of the form field=value")
        conditions.append((path.split("."), value))

    def matches(message: Message) -> bool:
        try:
            record = decoder(message.value() or b"").record if conditions else None
            return all(_at(record, path) == value for path, value in conditions)
        except (WireFormatError, RecursionError):
            return False

    return matches


def _at(record: object, path: Sequence[str]) -> str | None:
    for name in path:
        if not isinstance(record, dict) or name not in record:
            return None
        record = record[name]
    return record if isinstance(record, str) else _json(record)


def json_line(message: Message, decoder: Decoder, *, headers: bool) -> str:
    """Return one record as one line of JSON, with times in epoch milliseconds.

    A value that is not Avro of a known schema, or that is nested too deeply for JSON, appears as `value_base64` beside
    an `error`. Raises RegistryUnavailableError.
    """
    kind, timestamp_ms = message.timestamp()
    shown: dict[str, Any] = {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        "key": _text(message.key()),
    }
    if headers:
        shown["headers"] = [[name, _text(value)] for name, value in _headers(message)]
    value = message.value()
    try:
        record = None if value is None else decoder(value).record
        return _json(shown | {"value": record})
    except (WireFormatError, RecursionError) as error:
        return _json(shown | {"error": str(error), "value_base64": base64.b64encode(value or b"").decode()})


def _json(shown: object) -> str:
    return json.dumps(shown, default=_plain, ensure_ascii=False)


def _headers(message: Message) -> list[tuple[str, bytes | str | None]]:
    # The stubs also allow forms of headers that only a producer accepts.
    return cast("list[tuple[str, bytes | str | None]]", message.headers() or [])


def _text(data: bytes | str | None) -> str | None:
    return data.decode("utf-8", errors="backslashreplace") if isinstance(data, bytes) else data


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return epoch_ms(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")
