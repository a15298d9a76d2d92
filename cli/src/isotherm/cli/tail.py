"""`isotherm tail`: the records of a topic as JSON lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.avro import Decoder, WireFormatError


def condition(given: Sequence[str], decoder: Decoder) -> Callable[[Message], bool]:
    """Whether a message's record has all these values: each `field=value` or `outer.inner=value`, as JSON shows them.

    What is no record has none. Raises ValueError for what is no `field=value`.
    """
    wanted = []
    for text in given:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise ValueError(f"{text!r} is not of the form field=value")
        wanted.append((path.split("."), value))

    def holds(message: Message) -> bool:
        try:
            record = decoder(message.value() or b"").record if wanted else None
            return all(_at(record, path) == value for path, value in wanted)
        except (WireFormatError, RecursionError):
            return False

    return holds


def _at(record: object, path: Sequence[str]) -> str | None:
    for name in path:
        if not isinstance(record, dict) or name not in record:
            return None
        record = record[name]
    return record if isinstance(record, str) else _json(record)


def line(message: Message, decoder: Decoder, *, headers: bool) -> str:
    """One record as one line of JSON.

    Times are epoch milliseconds. A value that is not Avro of a known schema, or nested deeper than JSON can be written,
    is shown as `value_base64` beside an `error`, never left out. Raises RegistryUnavailableError.
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
    # The stubs allow for other forms of headers, which only a producer takes.
    return cast("list[tuple[str, bytes | str | None]]", message.headers() or [])


def _text(data: bytes | str | None) -> str | None:
    return data.decode("utf-8", errors="backslashreplace") if isinstance(data, bytes) else data


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return epoch_ms(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")
