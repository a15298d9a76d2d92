"""Values of any record made readable: Avro in the wire format, JSON, text, and hexadecimal for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from servicekit.avro import Decoder, RegistryUnavailableError, WireFormatError

_MOST_SHOWN = 64 * 1024


class Readable(NamedTuple):
    """A value for a person or a program to read."""

    format: str
    """`avro`, `json`, `text`, `binary` or `null`."""
    shown: Any
    problem: str = ""
    """Why what begins as Avro could not be read as Avro."""


Read = Callable[[bytes | None], Readable]


def reader(decode: Decoder) -> Read:
    """A function that reads values as far as they can be read."""

    def read(value: bytes | None) -> Readable:
        if value is None:
            return Readable("null", None)
        if value[:1] == b"\x00":
            try:
                # Through JSON and back, so that times and bytes are what a page and a REST answer can hold.
                return Readable("avro", orjson.loads(orjson.dumps(decode(value).record, default=_plain)))
            except (WireFormatError, RegistryUnavailableError) as error:
                return Readable("binary", _hexadecimal(value), str(error))
        try:
            return Readable("json", orjson.loads(value))
        except orjson.JSONDecodeError:
            pass
        try:
            return Readable("text", value.decode()[:_MOST_SHOWN])
        except UnicodeDecodeError:
            return Readable("binary", _hexadecimal(value))

    return read


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _hexadecimal(value: bytes) -> str:
    return value[:_MOST_SHOWN].hex(" ")
