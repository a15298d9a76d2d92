"""Values of any record made readable: Avro in the wire format, JSON, text, and hexadecimal for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, WireFormatError

MOST_SHOWN = 64 * 1024
"""Characters of a text; bytes of what is shown in hexadecimal."""
DEEPEST = 100
"""Levels of lists and objects. What writes answers stops at 255, with levels of its own around the value."""


class Readable(NamedTuple):
    """A value for a person or a program to read."""

    format: str
    """`avro`, `json`, `text`, `binary` or `null`."""
    shown: Any
    problem: str = ""
    """Why what begins as Avro could not be read as Avro."""


Read = Callable[[bytes | None], Readable]


class _TooDeepError(ValueError):
    """JSON that could be read, and could not be written again."""

    def __init__(self) -> None:
        super().__init__(f"nested more than {DEEPEST} levels deep")


def reader(decode: Decoder) -> Read:
    """A function that reads values as far as they can be read."""

    def read(value: bytes | None) -> Readable:
        if value is None:
            return Readable("null", None)
        if value[:1] == b"\x00":
            try:
                # Through JSON and back, so that times and bytes are what a page and a REST answer can hold.
                return Readable("avro", _loaded(_dumped(decode(value).record)))
            except (WireFormatError, RegistryUnavailableError, _TooDeepError) as error:
                return Readable("binary", _hexadecimal(value), str(error))
        try:
            return Readable("json", _loaded(value))
        except (orjson.JSONDecodeError, _TooDeepError):
            pass
        try:
            return Readable("text", value.decode()[:MOST_SHOWN])
        except UnicodeDecodeError:
            return Readable("binary", _hexadecimal(value))

    return read


def _dumped(record: Any) -> bytes:
    try:
        return orjson.dumps(record, default=_plain)
    except orjson.JSONEncodeError:
        # All that Avro holds has a form in JSON: only its own bound is left.
        raise _TooDeepError from None


def _loaded(text: bytes) -> Any:
    """JSON that can be written again. Raises orjson.JSONDecodeError, _TooDeepError."""
    value = orjson.loads(text)
    # Most records have too few brackets to be deep: only the others are looked through.
    if text.count(b"[") + text.count(b"{") > DEEPEST and _is_too_deep(value):
        raise _TooDeepError
    return value


def _is_too_deep(value: Any) -> bool:
    """Whether there are more than DEEPEST levels of lists and objects; level by level, because a stack has an end."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, (dict, list)) for one in level)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _hexadecimal(value: bytes) -> str:
    return value[:MOST_SHOWN].hex(" ")
