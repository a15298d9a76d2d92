"""Decoding values: of any kind for display, and records of one schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import orjson

from isotherm.console.errors import UnavailableError
from isotherm.console.records.record import Record
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, WireFormatError

MAX_SHOWN = 64 * 1024
"""Characters of a text, or bytes of a hexadecimal value, that are shown."""
MAX_DEPTH = 100
"""Allowed nesting of lists and objects. orjson writes 255 levels at most, and responses add levels of their own."""


class DisplayValue(NamedTuple):
    """A value, decoded as far as it can be, that pages and REST responses can hold."""

    format: str
    """`avro`, `json`, `text`, `binary` or `null`."""
    value: Any
    problem: str = ""
    """Why a value with the Avro wire format's magic byte could not be decoded."""


DecodeValue = Callable[[bytes | None], DisplayValue]
Item = TypeVar("Item")


class _TooDeepError(ValueError):
    """The value is nested too deeply to be written as JSON again."""

    def __init__(self) -> None:
        super().__init__(f"nested more than {MAX_DEPTH} levels deep")


def value_decoder(decode: Decoder) -> DecodeValue:
    """Return a function that decodes values as far as possible."""

    def read(value: bytes | None) -> DisplayValue:
        if value is None:
            return DisplayValue("null", None)
        if value[:1] == b"\x00":
            try:
                # Convert through JSON, so that times and bytes become values that pages and REST responses can hold.
                return DisplayValue("avro", _parse_json(_to_json(decode(value).record)))
            except (WireFormatError, RegistryUnavailableError, _TooDeepError) as error:
                return DisplayValue("binary", _to_hex(value), str(error))
        try:
            return DisplayValue("json", _parse_json(value))
        except (orjson.JSONDecodeError, _TooDeepError):
            pass
        try:
            return DisplayValue("text", value.decode()[:MAX_SHOWN])
        except UnicodeDecodeError:
            return DisplayValue("binary", _to_hex(value))

    return read


def _to_json(record: Any) -> bytes:
    try:
        return orjson.dumps(record, default=_plain)
    except orjson.JSONEncodeError:
        # Every Avro value has a JSON form, so only orjson's limit of nesting is left as the cause.
        raise _TooDeepError from None


def _parse_json(text: bytes) -> Any:
    """Parse JSON that can be written again. Raises orjson.JSONDecodeError, _TooDeepError."""
    value = orjson.loads(text)
    # Most records have too few brackets to be deep, so only the others are walked.
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        raise _TooDeepError
    return value


def _is_too_deep(value: Any) -> bool:
    """Whether lists and objects nest more than MAX_DEPTH levels. It walks level by level: recursion could overflow."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, (dict, list)) for one in level)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _to_hex(value: bytes) -> str:
    return value[:MAX_SHOWN].hex(" ")


def decoded(decode: Decoder, read: Callable[[Mapping[str, Any]], Item]) -> Callable[[Record], Item | None]:
    """Return a function that reads the values of records; None for a value that is not of the schema.

    The function raises UnavailableError while the registry does not answer.
    """

    def of(record: Record) -> Item | None:
        if record.value is None:
            return None
        try:
            return read(decode(record.value).record)
        except RegistryUnavailableError as error:
            raise UnavailableError(f"the schema registry: {error}") from error
        except WireFormatError:
            return None

    return of
