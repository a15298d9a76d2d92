"""JSON with Kafka Connect's schema envelope (`schemas.enable=true`), read as Connect's JsonConverter reads it.

The schema decides how the payload is read: fields that the schema lacks are left out, absent fields get their default,
bytes and decimals are base64, dates and times of day are numbers. Dates and times of day become Python's; timestamps
stay epoch milliseconds, as everywhere in this package. A value of another type than its schema says is a bad record,
while JsonConverter turns it into 0. Source: `JsonConverter.toConnectData` and `JsonSchema` of Apache Kafka.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

import orjson

from isotherm.persisters.records.derived_schemas import writer_of_connect
from isotherm.servicekit.avro import WriterSchema

Convert = Callable[[Any], Any]
_LOGICAL = "org.apache.kafka.connect.data."
_EPOCH_DAY = date(1970, 1, 1)
_MIDNIGHT = datetime(1970, 1, 1)
_WHOLE = ("int8", "int16", "int32", "int64")
_MOST_SCHEMAS = 1_000
_MAX_REMEMBERED_BYTES = 64 * 1024
"""Size of the largest schema whose function is remembered, so that all of them take a bounded amount of memory."""
_MAX_DECIMAL_BYTES, _MAX_SCALE = 1_024, 10_000
"""Bounds of a decimal. Written without an exponent, a number beyond them takes all memory, or minutes."""
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Keeps every digit; the default context rounds to 28."""
_MAX_DEFAULTS = 1_000_000
"""Largest size of a value that a schema with defaults makes, in values and characters. A default that is used for each
item of an array, on several levels, grows exponentially from a few bytes."""
_MS_PER_DAY = 86_400_000
_SCALARS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_WHOLE, (int,)),
    "float": (int, float),
    "double": (int, float),
    "boolean": (bool,),
    "string": (str,),
}


class EnvelopeError(ValueError):
    """The value is no envelope, its schema is invalid, or the payload does not fit it."""


class EnvelopeReader:
    """Reads values; compiles a function for each schema once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Convert, WriterSchema | None]] = {}

    def __call__(self, data: bytes) -> tuple[Any, WriterSchema | None]:
        """Return the payload of one value and its schema in Avro's terms, None if it has none.

        Raises ValueError (EnvelopeError, or orjson's).
        """
        document = orjson.loads(data)
        if not isinstance(document, dict) or document.keys() != {"schema", "payload"}:
            raise EnvelopeError(
                'JsonConverter with schemas.enable expects an object with "schema" and "payload" and nothing else; '
                "for plain JSON set schemas.enable=false"
            )
        schema = document["schema"]
        if schema is None:
            return document["payload"], None
        written = orjson.dumps(schema)
        known = self._known.get(written)
        if known is None:
            if len(self._known) >= _MOST_SCHEMAS:
                self._known.clear()
            convert = _bounded(schema, _converter(schema, "the payload"))
            if len(written) > _MAX_REMEMBERED_BYTES:
                # Every record would make a schema of its own, with plans and caches.
                return convert(document["payload"]), None
            known = self._known[written] = convert, writer_of_connect(schema)
        return known[0](document["payload"]), known[1]


def _bounded(schema: Any, convert: Convert) -> Convert:
    """Return `convert`, for a schema with defaults with a check of the result's size."""
    if not _has_default(schema):
        return convert

    def checked(value: Any) -> Any:
        result = convert(value)
        if _size(result, _MAX_DEFAULTS) > _MAX_DEFAULTS:
            raise EnvelopeError(f"with the defaults of its schema the payload has more than {_MAX_DEFAULTS} values")
        return result

    return checked


def _has_default(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_has_default, schema))
    return isinstance(schema, dict) and (schema.get("default") is not None or any(map(_has_default, schema.values())))


def _size(value: Any, most: int) -> int:
    """Return the number of values and characters in `value`, or any number above `most` when there are more."""
    size, left = 0, [value]
    while left and size <= most:
        one = left.pop()
        size += 1
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str | bytes):
            size += len(one)
    return size


def _converter(schema: Any, where: str) -> Convert:
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        raise EnvelopeError(f"the schema of {where} has no type")
    convert = _of_type(schema, schema["type"], where)
    has_default, is_optional = schema.get("default") is not None, bool(schema.get("optional"))
    default = convert(schema["default"]) if has_default else None

    def nullable(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if not (has_default or is_optional):
            raise EnvelopeError(f"{where} is null, and its schema says that it is required")
        return default

    return nullable


def _of_type(schema: Mapping[str, Any], kind: str, where: str) -> Convert:
    if kind == "struct":
        return _struct(schema, where)
    if kind == "array":
        element = _converter(schema.get("items"), f"an element of {where}")
        return lambda value: [element(one) for one in _checked(value, (list,), where, "an array")]
    if kind == "map":
        return _map(schema, where)
    logical = _logical(str(schema.get("name", "")), schema, where)
    if logical is not None:
        return logical
    if kind == "bytes":
        return lambda value: _decoded(value, where)
    types = _SCALARS.get(kind)
    if types is None:
        raise EnvelopeError(f"the schema of {where} has an unknown type {kind!r}")
    return lambda value: _checked(value, types, where, kind)


def _struct(schema: Mapping[str, Any], where: str) -> Convert:
    fields: list[tuple[str, Convert]] = []
    for field in _checked(schema.get("fields"), (list,), f"fields of {where}", "an array"):
        name = field.get("field") if isinstance(field, dict) else None
        if not isinstance(name, str):
            raise EnvelopeError(f"a field in the schema of {where} has no name")
        fields.append((name, _converter(field, f"field {name!r}")))

    def convert(value: Any) -> Any:
        found = _checked(value, (dict,), where, "an object")
        return {name: convert_field(found.get(name)) for name, convert_field in fields}

    return convert


def _map(schema: Mapping[str, Any], where: str) -> Convert:
    key = _converter(schema.get("keys"), f"a key of {where}")
    element = _converter(schema.get("values"), f"a value of {where}")

    def convert(value: Any) -> Any:
        # A map whose keys are no texts is an array of pairs.
        pairs = value.items() if isinstance(value, dict) else _checked(value, (list,), where, "an object or pairs")
        return {key(name): element(inner) for name, inner in pairs}

    return convert


def _logical(name: str, schema: Mapping[str, Any], where: str) -> Convert | None:
    kind = name.removeprefix(_LOGICAL) if name.startswith(_LOGICAL) else ""
    if kind == "Decimal":
        scale = int((schema.get("parameters") or {}).get("scale", 0))
        if abs(scale) > _MAX_SCALE:
            raise EnvelopeError(f"the schema of {where} has the scale {scale}, beyond {_MAX_SCALE}")
        return lambda value: _decimal(value, scale, where)
    if kind == "Date":
        return lambda value: _EPOCH_DAY + timedelta(days=_checked(value, (int,), where, "a number of days"))
    if kind == "Time":
        return lambda value: _time_of_day(value, where)
    # A timestamp is written as its number of milliseconds, which is the form used here.
    return None


def _decimal(value: Any, scale: int, where: str) -> Decimal:
    # JsonConverter also takes numbers (`decimal.format=NUMERIC`).
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(str(value))
    unscaled = _decoded(value, where)
    if len(unscaled) > _MAX_DECIMAL_BYTES:
        raise EnvelopeError(f"{where} is a decimal of {len(unscaled)} bytes; allowed: {_MAX_DECIMAL_BYTES}")
    return Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-scale, _EXACT)


def _time_of_day(value: Any, where: str) -> time:
    number = _checked(value, (int,), where, "a number of milliseconds")
    if not 0 <= number < _MS_PER_DAY:
        raise EnvelopeError(f"{where} is {number} ms, which is no time of a day")
    return (_MIDNIGHT + timedelta(milliseconds=number)).time()


def _decoded(value: Any, where: str) -> bytes:
    try:
        return base64.b64decode(_checked(value, (str,), where, "base64 text"), validate=True)
    except ValueError as error:
        raise EnvelopeError(f"{where} is no base64 text: {error}") from None


def _checked(value: Any, types: tuple[type, ...], where: str, expected: str) -> Any:
    if type(value) not in types:
        raise EnvelopeError(f"{where}: expected {expected}, found {str(value)[:40]!r}")
    return value
