"""TimestampConverter: a field, or the whole data, as a text, a number, a date, a time of day or a timestamp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from isotherm.connector.transforms.date_format import DateFormat
from isotherm.connector.transforms.message import Message, Part, Schema, Transform, TransformError
from isotherm.connector.transforms.schemas import (
    DATE,
    TIME,
    TIMESTAMP,
    Shape,
    field,
    fields_of,
    optional,
    record,
    shape,
)
from isotherm.connector.transforms.steps import Compiled, required_map, step

MS_PER_DAY = 86_400_000
TARGETS: Mapping[str, Schema] = {"string": "string", "unix": "long", "Date": DATE, "Time": TIME, "Timestamp": TIMESTAMP}
PRECISIONS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
_PER_MS = {"microseconds": 1_000, "nanoseconds": 1_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO_TIME, _ISO_DATE = DateFormat("HH:mm:ss.SSS'Z'"), DateFormat("yyyy-MM-dd")
_ISO = DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def timestamp_converter(
    part: Part, name: str, target: str, date_format: DateFormat | None, precision: str, *, replaces_nulls: bool
) -> Transform:
    """TimestampConverter.

    Args:
        part: key or value.
        name: the field; empty for the whole data.
        target: a key of TARGETS.
        date_format: of texts, read and written.
        precision: one of PRECISIONS, of numbers, read and written.
        replaces_nulls: see `steps.step`.
    """
    convert = _Converter(target, date_format, precision)

    def with_schema(schema: Schema) -> Compiled:
        if not name:
            found = shape(schema)
            read = convert.reader(found)
            made = optional(TARGETS[target], is_optional=found.optional)
            return Compiled(made, lambda data, _: None if data is None else convert.write(read(data)))
        fields, readers = [], {}
        for one in fields_of(schema, "TimestampConverter"):
            if one["name"] != name:
                fields.append(one)
                continue
            found = shape(one["type"])
            readers[name] = convert.reader(found)
            fields.append(field(name, optional(TARGETS[target], is_optional=found.optional)))

        def convert_field(data: Any, _: Message) -> Any:
            if data is None:
                return None
            values = required_map(data, "TimestampConverter")
            converted = {
                one: None if values.get(one) is None else convert.write(read(values[one]))
                for one, read in readers.items()
            }
            return {**values, **converted}

        return Compiled(record(schema, fields, changed=(name,)), convert_field)

    def without_schema(data: Any, _: Message) -> Any:
        if not name:
            return convert.write(convert.read_any(data))
        values = required_map(data, "TimestampConverter")
        value = values.get(name)
        return {**values, name: None if value is None else convert.write(convert.read_any(value))}

    return step(part, with_schema, without_schema, replaces_nulls=replaces_nulls)


class _Converter:
    def __init__(self, target: str, date_format: DateFormat | None, precision: str) -> None:
        self._target, self._format, self._precision = target, date_format, precision

    def reader(self, kind: Shape) -> Callable[[Any], int]:
        """The function from a value of a type to epoch milliseconds. Raises TransformError for other types."""
        if kind.logical == "Date":
            return ms_of_date
        if kind.logical in ("Time", "Timestamp"):
            return ms_of
        if kind.type == "string":
            return self._parse
        if kind.type == "int64":
            return self._from_unix
        raise TransformError(f"TimestampConverter cannot read a time from {kind.type}")

    def read_any(self, value: Any) -> int:
        """Epoch milliseconds of a value without a schema. Raises TransformError."""
        if isinstance(value, date | time):
            return ms_of(value)
        if isinstance(value, str):
            return self._parse(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._from_unix(value)
        raise TransformError(f"TimestampConverter cannot read a time from a value of type {type(value).__name__}")

    def _parse(self, text: Any) -> int:
        if self._format is None:
            raise TransformError("TimestampConverter needs `format` to read a text")
        return self._format.parse(str(text))

    def _from_unix(self, number: Any) -> int:
        if isinstance(number, datetime):
            return ms_of(number)
        if self._precision == "seconds":
            return int(number) * 1_000
        return _truncated(int(number), _PER_MS.get(self._precision, 1))

    def write(self, ms: int) -> Any:
        """A time of epoch milliseconds in the target's form; a timestamp stays epoch milliseconds."""
        if self._target == "string":
            assert self._format is not None
            return self._format.format(ms)
        if self._target == "unix":
            if self._precision == "seconds":
                return _truncated(ms, 1_000)
            return ms * _PER_MS.get(self._precision, 1)
        if self._target == "Date":
            return date(1970, 1, 1) + timedelta(days=ms // MS_PER_DAY)
        if self._target == "Time":
            return (datetime(1970, 1, 1) + timedelta(milliseconds=ms % MS_PER_DAY)).time()
        return ms


def _truncated(number: int, divisor: int) -> int:
    """The quotient, rounded towards zero as Java's."""
    return -(-number // divisor) if number < 0 else number // divisor


def ms_of(value: Any) -> int:
    """Epoch milliseconds of a timestamp (a number of them, or a datetime), a date or a time of day."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days * MS_PER_DAY
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000 + value.microsecond // 1_000
    if isinstance(value, int):
        return value
    raise TransformError(f"a value of type {type(value).__name__} is no time")


def ms_of_date(value: Any) -> int:
    """Epoch milliseconds of a date, which decoders give as one or, of JSON Schema, as a number of days."""
    return value * MS_PER_DAY if isinstance(value, int) else ms_of(value)


def iso_text(ms: int) -> str:
    """A time as Connect writes it: of the first day without the date, of midnight without the time."""
    if ms < MS_PER_DAY:
        return _ISO_TIME.format(ms)
    return (_ISO_DATE if ms % MS_PER_DAY == 0 else _ISO).format(ms)
