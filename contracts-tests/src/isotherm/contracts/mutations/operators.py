"""Every small change of a message at the seam where its provider hands it to Kafka: as a change of its code would look.

A field is renamed or dropped in record and schema alike, gets another type, or another value: times in seconds, numbers
times 1,000, other texts. So do keys and headers; and the producer gets another partitioner.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from isotherm.contracts.harness import PARTITIONER, Harness, Message, text_of
from isotherm.servicekit.avro import WireFormatError, split

RENAME, DROP, RETYPE, RESCALE = "rename", "drop", "retype", "rescale"
OTHER_PARTITIONER = "consistent_random"
_MARK = "~"
_RENAMED = "_renamed"
_DECLARED = ("isotherm.identity", "isotherm.event_time", "isotherm.revision")
_NUMBERS = ("int", "long", "float", "double")


class Mutant(NamedTuple):
    """A mutated message: what was changed, by which operator."""

    where: str
    operator: str
    message: Message


Path = tuple[str, ...]
EACH = "*"
"""Stands in a path for every item of an array."""


class _Target(NamedTuple):
    """A field, or an entry of a map, in a record: its container and the schema of the container."""

    path: Path
    kind: Any
    """The record schema (with `fields`), or the schema of the map."""


def mutants(message: Message, harness: Harness) -> Iterator[Mutant]:
    """Every mutant of a message."""
    yield from _value_mutants(message, harness)
    yield Mutant("key", DROP, message._replace(key=""))
    yield Mutant("key", RESCALE, message._replace(key=message.key + _MARK))
    for name, text in message.headers.items():
        others = {key: of for key, of in message.headers.items() if key != name}
        for operator, headers in (
            (RENAME, {**others, name + _RENAMED: text}),
            (DROP, others),
            (RESCALE, {**message.headers, name: text + _MARK}),
        ):
            yield Mutant(f"header {name}", operator, message._replace(headers=headers))
    if message.partitioner == PARTITIONER:
        yield Mutant("partitioner", RESCALE, message._replace(partitioner=OTHER_PARTITIONER))


def _value_mutants(message: Message, harness: Harness) -> Iterator[Mutant]:
    if message.topic not in harness.catalog.records:
        yield Mutant("value", DROP, message._replace(value=b""))
        yield Mutant("value", RESCALE, message._replace(value=(text_of(message.value) + _MARK).encode("latin-1")))
        return
    schema = harness.registry.schema(split(message.value)).json
    record = harness.decode(message.value)
    for place in _targets(schema, record, ()):
        where = ".".join(place.path)
        for operator, change in _OPERATORS.items():
            changed, written = copy.deepcopy(record), copy.deepcopy(dict(schema))
            if change(changed, written, place.path) and (changed, written) != (record, schema):
                try:
                    value = _encoded(message.topic, written, changed, harness)
                except WireFormatError:
                    continue
                yield Mutant(where, operator, message._replace(value=value))


def _encoded(topic: str, schema: Mapping[str, Any], record: Mapping[str, Any], harness: Harness) -> bytes:
    harness.registry.register(topic, schema)
    return harness.registry.encoder(topic, schema)(record)


def _targets(kind: Any, value: Any, path: Path) -> Iterator[_Target]:
    """Every field and every entry of a map in a record; those of an array's items once."""
    kind = _branch(kind, value)
    if not isinstance(kind, Mapping) or value is None:
        return
    if kind["type"] == "record":
        for field in kind["fields"]:
            yield _Target((*path, field["name"]), kind)
            yield from _targets(field["type"], value[field["name"]], (*path, field["name"]))
    elif kind["type"] == "map":
        for key in value:
            yield _Target((*path, key), kind)
            yield from _targets(kind["values"], value[key], (*path, key))
    elif kind["type"] == "array" and value:
        yield from _targets(kind["items"], value[0], (*path, EACH))


def _branch(kind: Any, value: Any) -> Any:
    """Of a union the branch of a value: there is one beside null."""
    if isinstance(kind, list):
        return "null" if value is None else next((one for one in kind if one != "null"), "null")
    return kind


def _containers(record: Any, schema: Any, path: Path) -> tuple[list[Any], Any]:
    """The containers of a place, one unless it is in an array, and their schema."""
    values, kind = [record], schema
    for step in path[:-1]:
        if step == EACH:
            values, inner = [item for value in values for item in value], kind["items"]
        else:
            values = [value[step] for value in values]
            inner = _field(kind, step)["type"] if kind["type"] == "record" else kind["values"]
        kind = _branch(inner, values[0])
    return values, kind


def _field(kind: Any, name: str) -> Any:
    return next(field for field in kind["fields"] if field["name"] == name)


def _rename(record: Any, schema: Any, path: Path) -> bool:
    values, kind = _containers(record, schema, path)
    name = path[-1]
    for value in values:
        value[name + _RENAMED] = value.pop(name)
    if kind["type"] == "record":
        _field(kind, name)["name"] = name + _RENAMED
        _declare(schema, kind, name, name + _RENAMED)
    return True


def _declare(schema: Any, kind: Any, name: str, renamed: str) -> None:
    """Rename a field in what the schema declares about its fields."""
    if kind is schema:
        for declared in _DECLARED:
            found = schema.get(declared)
            if isinstance(found, list):
                schema[declared] = [renamed if one == name else one for one in found]
            elif found == name:
                schema[declared] = renamed


def _drop(record: Any, schema: Any, path: Path) -> bool:
    values, kind = _containers(record, schema, path)
    for value in values:
        del value[path[-1]]
    if kind["type"] == "record":
        kind["fields"].remove(_field(kind, path[-1]))
    return True


def _retype(record: Any, schema: Any, path: Path) -> bool:
    """Give a field another type, with the same content where there is one: a number becomes a text, a text a number."""
    values, kind = _containers(record, schema, path)
    if kind["type"] != "record":
        return False
    name = path[-1]
    field, before = _field(kind, name), values[0][name]
    is_number = _name_of(_branch(field["type"], before)) in _NUMBERS
    is_nullable = isinstance(field["type"], list)
    other: Any = "string" if is_number else "long"
    field["type"] = ["null", other] if is_nullable else other
    field.pop("default", None)
    for value in values:
        if not (is_nullable and value[name] is None):
            value[name] = str(value[name]) if is_number else 7
    return True


def _rescale(record: Any, schema: Any, path: Path) -> bool:
    """Give a field another value of its type: another unit, another text."""
    values, kind = _containers(record, schema, path)
    declared = _field(kind, path[-1])["type"] if kind["type"] == "record" else kind["values"]
    branch = next((one for one in declared if one != "null"), "null") if isinstance(declared, list) else declared
    for value in values:
        before = value[path[-1]]
        after = _other(branch, _SOMETHING.get(_name_of(branch)) if before is None else before)
        if after is None:
            return False
        value[path[-1]] = after
    return True


_SOMETHING: Mapping[str, Any] = {"string": "", "long": 1, "int": 1, "double": 1.5, "float": 1.5, "boolean": False}


def _other(kind: Any, value: Any) -> Any:
    """Another value of the type; None where its parts are mutated instead."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + _MARK
    if isinstance(value, bytes):
        return b"~" + value
    if isinstance(value, (int, float)):
        is_time = isinstance(kind, Mapping) and kind.get("logicalType") == "timestamp-millis"
        return value // 1_000 if is_time else value * 1_000 if value else 7
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [one + _MARK for one in value]
    return None


def _name_of(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, Mapping) else str(kind)


_OPERATORS: Mapping[str, Callable[[Any, Any, Path], bool]] = {
    RENAME: _rename,
    DROP: _drop,
    RETYPE: _retype,
    RESCALE: _rescale,
}
