"""Avro's binary encoding of flat records, read by a function that is compiled for one schema: half of fastavro's time.

A flat record has fields of strings, integers, doubles, booleans, any of them or null, and maps of strings. The function
reads only short texts and plain maps. For all other bytes (texts of 64 bytes and more, maps in sized blocks, a body
that is cut or too long) it raises one of FALLBACK_ERRORS, and fastavro reads the value or reports what is wrong with
it. Source: Avro specification 1.11, "Binary Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Read = Callable[[bytes], dict[str, Any]]


class FallbackError(Exception):
    """The compiled function does not read these bytes; fastavro has to."""


FALLBACK_ERRORS = (FallbackError, IndexError, UnicodeDecodeError, struct.error)
"""What a compiled function raises for bytes that it does not read."""

_TIME_BYTES = 6
"""Length of today's epoch milliseconds as a varint; all bytes but the lowest two stay the same for 16 seconds."""
_LOW_BITS = (1 << 14) - 1
_REMEMBERED = 4_096
INTEGERS = ("int", "long")
_MILLIS = ("timestamp-millis", "local-timestamp-millis")


def times_as_numbers(schema: Any) -> Any:
    """Return a schema whose timestamps of milliseconds are plain numbers, as a flat record has them."""
    if isinstance(schema, list):
        return [times_as_numbers(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: times_as_numbers(inner)
        for name, inner in schema.items()
        if not (name == "logicalType" and inner in _MILLIS)
    }


def flat_reader(schema: Mapping[str, Any], start: int) -> Read | None:
    """Return a function from bytes, whose body begins at index `start`, to the record; None if the schema is not flat.

    `schema` is parsed JSON. A schema with logical types is not flat.
    """
    fields = schema.get("fields") if schema.get("type") == "record" else None
    if not fields:
        return None
    names: dict[str, Any] = {
        "FallbackError": FallbackError,
        "read_long": _read_long,
        "read_texts": read_texts,
        "times": {},
    }
    lines = _body([field["type"] for field in fields], names)
    if lines is None:
        return None
    record = ", ".join(f"{field['name']!r}: value{number}" for number, field in enumerate(fields))
    # One generated function for all fields, as for dataclasses: a loop over readers takes twice the time.
    source = "\n    ".join(
        [
            "def read(data):",
            f"at = {start}",
            *lines,
            "if at != len(data):",
            "    raise FallbackError",
            f"return {{{record}}}",
        ]
    )
    exec(source, names)  # noqa: S102 -- all that the text has of the schema are its fields' names, as literals
    compiled: Read = names["read"]
    return compiled


def _body(types: Sequence[Any], names: dict[str, Any]) -> list[str] | None:
    """Return the lines that read all fields into value0, value1, ...; add the objects that they use to `names`."""
    lines: list[str] = []
    number = 0
    while number < len(types):
        run = double_run(types, number)
        if run:
            names[f"unpack{number}"] = struct.Struct(f"<{run}d").unpack_from
            values = "".join(f"value{each}, " for each in range(number, number + run))
            lines += [f"{values}= unpack{number}(data, at)", f"at += {8 * run}"]
            number += run
            continue
        found = _lines(types[number], f"value{number}", names)
        if found is None:
            return None
        lines += found
        number += 1
    return lines


def double_run(types: Sequence[Any], first: int) -> int:
    """Return how many doubles stand next to each other from index `first` on."""
    end = first
    while end < len(types) and types[end] in ("double", {"type": "double"}):
        end += 1
    return end - first


def _lines(type_: Any, value: str, names: dict[str, Any]) -> list[str] | None:
    if isinstance(type_, list):
        return _nullable_lines(type_, value, names)
    if isinstance(type_, Mapping):
        if type_ == {"type": "map", "values": "string"}:
            return [f"{value}, at = read_texts(data, at)"]
        return _lines(type_["type"], value, names) if type_.keys() == {"type"} else None
    if type_ == "string":
        return [
            "first = data[at]",
            "at += 1",
            # Odd is negative, and from 128 on the length has a second byte.
            "if first & 129:",
            "    raise FallbackError",
            "end = at + (first >> 1)",
            f"{value} = data[at:end].decode()",
            "at = end",
        ]
    if type_ in INTEGERS:
        return [
            "first = data[at]",
            "if first < 128:",
            f"    {value} = first >> 1 ^ -(first & 1)",
            "    at += 1",
            "else:",
            f"    high, second = times.get(data[at + 2 : at + {_TIME_BYTES}]), data[at + 1]",
            "    if high is not None and second > 127:",
            "        first = first & 127 | (second & 127) << 7 | high",
            f"        {value} = first >> 1 ^ -(first & 1)",
            f"        at += {_TIME_BYTES}",
            "    else:",
            f"        {value}, at = read_long(data, at, times)",
        ]
    if type_ == "boolean":
        return ["first = data[at]", "if first > 1:", "    raise FallbackError", f"{value} = first == 1", "at += 1"]
    if type_ == "double":
        names["unpack"] = struct.Struct("<d").unpack_from
        return [f"({value},) = unpack(data, at)", "at += 8"]
    return None


def _nullable_lines(branches: Sequence[Any], value: str, names: dict[str, Any]) -> list[str] | None:
    if len(branches) != 2 or branches.count("null") != 1:
        return None
    null = branches.index("null")
    if isinstance(branches[1 - null], list):
        return None  # Avro has no unions in unions, and Python no hundred levels of indentation.
    lines = _lines(branches[1 - null], value, names)
    if lines is None:
        return None
    return [
        "branch = data[at]",
        "at += 1",
        f"if branch == {2 * null}:",
        f"    {value} = None",
        f"elif branch == {2 - 2 * null}:",
        *[f"    {line}" for line in lines],
        "else:",
        "    raise FallbackError",
    ]


def _read_long(data: bytes, at: int, times: dict[bytes, int]) -> tuple[int, int]:
    """Return a number and the index after it; remember in `times` the upper bytes of one as long as a time."""
    start, bits, shift = at, 0, 0
    while shift < 64:
        byte = data[at]
        at += 1
        bits |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    if shift > 63 or bits >> 64:
        raise FallbackError
    if at - start == _TIME_BYTES:
        if len(times) >= _REMEMBERED:
            times.clear()
        times[data[start + 2 : at]] = bits & ~_LOW_BITS
    return bits >> 1 ^ -(bits & 1), at


def read_texts(data: bytes, at: int) -> tuple[dict[str, str], int]:
    """Return a map of strings that begins at index `at`, and the index after it."""
    texts = {}
    while count := data[at]:
        at += 1
        if count & 129:
            raise FallbackError
        for _ in range(count >> 1):
            length = data[at]
            end = at + 1 + (length >> 1)
            next_length = data[end]
            if (length | next_length) & 129:
                raise FallbackError
            next_end = end + 1 + (next_length >> 1)
            texts[data[at + 1 : end].decode()] = data[end + 1 : next_end].decode()
            at = next_end
    return texts, at + 1
