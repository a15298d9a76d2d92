"""Decodes payloads by their content format.

A CoAP number (RFC 7252 section 12.3, RFC 8428 section 12.3) or a media type names the format; parameters of the media
type do not matter. Without a format, and for plain text and octet-streams, the bytes decide: a JSON object, array,
number or boolean is decoded as such.
"""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import cbor2
import orjson

from isotherm.payloads import senml
from isotherm.payloads.cbor_keys import problem_of_keys
from isotherm.payloads.errors import NotNumericError, PayloadError

_NUMBERS = {
    0: "text/plain",
    42: "application/octet-stream",
    50: "application/json",
    60: "application/cbor",
    110: "application/senml+json",
    112: "application/senml+cbor",
}
_DECIMAL = re.compile(rb"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*")
_MAX_NUMBER_BYTES = 64
_MAX_UNCHECKED_BYTES = 4_096
"""So short a payload has too few keys to take much time, whatever their hashes are."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one payload, so that no device decides how much memory it takes.

    `max_items` counts every value in the payload, including those inside records and arrays.
    """

    max_bytes: int = 1024 * 1024
    max_depth: int = 16
    max_items: int = 100_000


_DEFAULT_LIMITS = Limits()


def decode(
    data: bytes,
    content_format: str | int | None,
    *,
    limits: Limits = _DEFAULT_LIMITS,
    now_ms: int | None = None,
) -> list[dict[str, Any]]:
    """Decode `data` to rows, one for each item of an array; a number or boolean becomes `[{"value": it}]`.

    `content_format` is a CoAP number or a media type, or None or "" when it is unknown. `now_ms` (epoch) is the base of
    SenML's relative times; its default is the clock.

    Raises PayloadError when the bytes hold no rows, exceed a limit, or have an unsupported format.
    """
    if len(data) > limits.max_bytes:
        raise PayloadError(f"{len(data)} bytes are over the limit of {limits.max_bytes}")
    reader = _read_unnamed if content_format is None else _reader(content_format)
    content = reader(data, now_ms, limits)
    # Nearly every payload has one of two shapes that need no walk through all values.
    if type(content) is dict and len(content) <= 64 and _SCALARS.issuperset(map(type, content.values())):
        return [_row(content)]
    if type(content) is list and content and _are_flat(content, limits):
        return content
    _check(content, limits)
    if isinstance(content, list):
        if not content:
            raise PayloadError("the payload holds no reading")
        return [_row(item) for item in content]
    return [_row(content) if isinstance(content, dict) else {"value": content}]


def _read_unnamed(data: bytes, _now_ms: int | None, _limits: Limits) -> object:
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # Devices that print numbers write "+21.5", ".5" and "21.", which JSON does not have.
        if len(data) <= _MAX_NUMBER_BYTES and _DECIMAL.fullmatch(data):
            return float(data)
        raise NotNumericError(f"neither JSON nor a number: {error}") from None
    return _object_array_or_number(content)


def _read_json(data: bytes, _now_ms: int | None, _limits: Limits) -> object:
    try:
        return _object_array_or_number(orjson.loads(data))
    except orjson.JSONDecodeError as error:
        raise PayloadError(f"not JSON: {error}") from None


def _read_cbor(data: bytes, _now_ms: int | None, limits: Limits) -> object:
    return _object_array_or_number(_cbor(data, limits))


def _read_senml_json(data: bytes, now_ms: int | None, limits: Limits) -> object:
    try:
        pack = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise PayloadError(f"not JSON: {error}") from None
    _check(pack, limits)
    return senml.resolve(pack, now_ms=_now(now_ms), cbor=False)


def _read_senml_cbor(data: bytes, now_ms: int | None, limits: Limits) -> object:
    return senml.resolve(_cbor(data, limits), now_ms=_now(now_ms), cbor=True)


_Reader = Callable[[bytes, int | None, Limits], object]

_READERS: dict[str, _Reader] = {
    "": _read_unnamed,
    "text/plain": _read_unnamed,
    "application/octet-stream": _read_unnamed,
    "application/json": _read_json,
    "application/cbor": _read_cbor,
    "application/senml+json": _read_senml_json,
    "application/senml+cbor": _read_senml_cbor,
}


# MQTT clients may send any content type, so the cache must have a limit.
@lru_cache(maxsize=256)
def _reader(content_format: str | int) -> _Reader:
    named = _NUMBERS.get(content_format) if isinstance(content_format, int) else content_format
    reader = _READERS.get(named.partition(";")[0].strip().lower()) if named is not None else None
    if reader is None:
        known = ", ".join(f"{media_type} ({number})" for number, media_type in _NUMBERS.items())
        raise PayloadError(f"content format {str(content_format)[:60]!r} is not supported; supported: {known}")
    return reader


def _cbor(data: bytes, limits: Limits) -> object:
    stream = io.BytesIO(data)
    try:
        content = _decoded(stream, limits, only_texts_as_keys=True)
    except (cbor2.CBORError, ValueError, TypeError, ArithmeticError):
        # SenML's keys are numbers.
        content = _with_any_keys(stream, data, limits)
    if stream.tell() != len(data):
        raise PayloadError(f"not CBOR: {len(data) - stream.tell()} bytes are left over")
    _check(content, limits)
    return _plain(content)


def _decoded(stream: io.BytesIO, limits: Limits, *, only_texts_as_keys: bool) -> object:
    decoder = cbor2.CBORDecoder(
        stream,
        allow_duplicate_keys=False,
        semantic_decoders=_TAGS,
        tag_hook=_refuse,
        max_depth=limits.max_depth * 2,
        strict_hashable_types=only_texts_as_keys,
    )
    return decoder.decode()


def _with_any_keys(stream: io.BytesIO, data: bytes, limits: Limits) -> object:
    problem = problem_of_keys(data, limits.max_items) if len(data) > _MAX_UNCHECKED_BYTES else None
    if problem is not None:
        raise PayloadError(problem)
    stream.seek(0)
    try:
        return _decoded(stream, limits, only_texts_as_keys=False)
    except (cbor2.CBORError, ValueError, TypeError, ArithmeticError) as error:
        # The error of cbor2 names only the tag that failed; its cause explains why.
        raise PayloadError(f"not CBOR: {error.__cause__ or error}") from None


def _refuse(*_arguments: object) -> object:
    raise ValueError("only the tags 0, 1 (times) and 4 (decimal fraction) are supported")


def _decimal_fraction(parts: tuple[int, int], _immutable: bool) -> float:
    exponent, mantissa = parts
    return float(Decimal(mantissa).scaleb(exponent))


_TAGS: dict[int, Callable[[Any, bool], object]] = {4: _decimal_fraction}
# No reading needs these types, and they are costly: big numbers with one hash, regular expressions, addresses, sets,
# and references, with which a few bytes repeat a long text or a whole array (25, 28, 29, 256).
_TAGS.update(
    (tag, _refuse) for tag in (2, 3, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000)
)


def _plain(value: object) -> object:
    """Convert the types of CBOR to those of JSON, and bytes."""
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    if isinstance(value, dict | cbor2.frozendict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat()
    raise PayloadError(f"CBOR type {type(value).__name__} is not supported")


def _object_array_or_number(content: object) -> object:
    if type(content) in (dict, list, int, bool) or (type(content) is float and math.isfinite(content)):
        return content
    kind = NotNumericError if isinstance(content, str | bytes) else PayloadError
    raise kind(f"expected an object, an array of objects, a number or a boolean, not {type(content).__name__}")


def _row(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise PayloadError(f"expected objects in the array, not {type(item).__name__}")
    if not _TEXTS.issuperset(map(type, item)):
        wrong = next(type(key).__name__ for key in item if type(key) is not str)
        raise PayloadError(f"expected texts as keys, not {wrong}")
    return item


def _are_flat(items: list[Any], limits: Limits) -> bool:
    """Return whether the items are rows of scalars within the limits; `_check` reports the problem of other items."""
    values = len(items)
    for item in items:
        if (
            type(item) is not dict
            or not _TEXTS.issuperset(map(type, item))
            or not _SCALARS.issuperset(map(type, item.values()))
        ):
            return False
        values += len(item)
    return values <= limits.max_items and limits.max_depth > 1


def _check(content: object, limits: Limits) -> None:
    items = 0
    level: list[object] = [content]
    for _ in range(limits.max_depth + 1):
        inner: list[object] = []
        for value in level:
            if not isinstance(value, _CONTAINERS):
                continue
            items += len(value)
            if items > limits.max_items:
                raise PayloadError(f"more than {limits.max_items} values")
            inner.extend(value if isinstance(value, list | tuple) else value.values())
        if not inner:
            return
        level = inner
    raise PayloadError(f"nested deeper than {limits.max_depth}")


_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
_TEXTS = frozenset((str,))

# cbor2 returns the last two for a container inside a tag.
_CONTAINERS = (dict, list, tuple, cbor2.frozendict)


def _now(now_ms: int | None) -> int:
    return time.time_ns() // 1_000_000 if now_ms is None else now_ms
