"""Avro schemas as Kafka Connect sees them: types, optional fields, and what the suite declares about fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from isotherm.connector.transforms.message import Schema, TransformError

IDENTITY, EVENT_TIME, REVISION = "isotherm.identity", "isotherm.event_time", "isotherm.revision"
"""What a schema declares: the fields that make two records the same, the time of the event, the highest that counts."""

_MOST_SCHEMAS = 1_000
_NULLS = ("null", {"type": "null"})
_TYPES = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "boolean",
    "string": "string",
    "enum": "string",
    "bytes": "bytes",
    "fixed": "bytes",
    "array": "array",
    "map": "map",
    "record": "struct",
    "error": "struct",
}
_LOGICAL = {
    "date": "Date",
    "time-millis": "Time",
    "timestamp-millis": "Timestamp",
    "local-timestamp-millis": "Timestamp",
    "decimal": "Decimal",
}
TIMESTAMP: Schema = {"type": "long", "logicalType": "timestamp-millis"}
DATE: Schema = {"type": "int", "logicalType": "date"}
TIME: Schema = {"type": "int", "logicalType": "time-millis"}
PRIMITIVES: Mapping[str, Schema] = {
    "int8": {"type": "int", "connect.type": "int8"},
    "int16": {"type": "int", "connect.type": "int16"},
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
}
"""Connect's simple types, each with its schema."""
STRUCT_NAME = "ConnectDefault"
"""The name of a record without one, as Confluent's converters have it."""

Result = TypeVar("Result")


class Shape(NamedTuple):
    """A schema in Connect's terms."""

    type: str
    """`int8` to `int64`, `float32`, `float64`, `boolean`, `string`, `bytes`, `array`, `map`, `struct` or `union`."""
    logical: str | None
    """`Date`, `Time`, `Timestamp` or `Decimal`."""
    optional: bool
    core: Schema
    """The schema without null."""


def shape(schema: Schema) -> Shape:
    """The schema in Connect's terms."""
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch not in _NULLS]
        if len(branches) == 1:
            return shape(branches[0])._replace(optional=True)
        return Shape("union", None, len(branches) < len(schema), schema)
    if isinstance(schema, str):
        return Shape(_TYPES.get(schema, schema), None, False, schema)
    inner = schema["type"]
    if not isinstance(inner, str):
        return shape(inner)
    narrow = schema.get("connect.type")
    logical = _LOGICAL.get(schema.get("logicalType", ""))
    return Shape(narrow if narrow in ("int8", "int16") else _TYPES.get(inner, inner), logical, False, schema)


def optional(schema: Schema, *, is_optional: bool = True) -> Schema:
    """The schema with null, unless it has it or `is_optional` is false."""
    return ["null", schema] if is_optional and not shape(schema).optional else schema


def field(name: str, schema: Schema) -> dict[str, Any]:
    """A field of a record; an optional one has the default null."""
    is_optional = isinstance(schema, list) and schema[0] in _NULLS
    return {"name": name, "type": schema, **({"default": None} if is_optional else {})}


def fields_of(schema: Schema, purpose: str) -> list[dict[str, Any]]:
    """The fields of a record's schema. Raises TransformError for any other schema."""
    found = shape(schema)
    if found.type != "struct":
        raise TransformError(f"{purpose} needs a record, found {found.type}")
    fields: list[dict[str, Any]] = found.core["fields"]
    return fields


def record(
    source: Schema,
    fields: Iterable[Mapping[str, Any]],
    *,
    origins: Mapping[str, str] | None = None,
    changed: Collection[str] = (),
) -> dict[str, Any]:
    """The schema of a record made from one of `source`: the same name and properties with other fields.

    What the schema declares about its fields follows renamed fields, and ends with a field that is missing, changed or
    replaced by another one: an identity of masked values would make different records the same.

    Args:
        source: the record's schema before.
        fields: the fields after.
        origins: by the names of fields after, the names before of those whose values they have, if they differ.
        changed: names of fields before, whose values are others now.

    Raises:
        TransformError: two fields have one name.
    """
    listed = [dict(one) for one in fields]
    names = [one["name"] for one in listed]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise TransformError(f"the record would have two fields {twice!r}")
    old = shape(source).core
    after_of = {(origins or {}).get(name, name): name for name in reversed(names)}
    result = {**old, "fields": listed}
    for declaration in (IDENTITY, EVENT_TIME, REVISION):
        if declaration in old:
            declared = old[declaration]
            texts = declared.split(",") if isinstance(declared, str) else list(declared)
            before = [text.strip() for text in texts]
            if set(before) & set(changed) or not set(before) <= set(after_of):
                del result[declaration]
            else:
                result[declaration] = ",".join(after_of[name] for name in before)
    return result


def resolved(schema: Schema) -> Schema:
    """The schema with each reference to a named type replaced by the type; one inside itself stays a reference."""
    return _resolved(schema, {}, "", ())


def _resolved(schema: Schema, named: dict[str, Any], namespace: str, inside: tuple[str, ...]) -> Schema:
    if isinstance(schema, list):
        return [_resolved(branch, named, namespace, inside) for branch in schema]
    if isinstance(schema, str):
        full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        found = named.get(full, named.get(schema))
        return schema if found is None or full in inside or schema in inside else found
    result = dict(schema)
    if schema["type"] in ("record", "error", "enum", "fixed"):
        space = schema.get("namespace", namespace)
        name = schema["name"] if "." in schema["name"] or not space else f"{space}.{schema['name']}"
        namespace = name.rpartition(".")[0]
        if "fields" in schema:
            inner = (*inside, name)
            result["fields"] = [
                {**one, "type": _resolved(one["type"], named, namespace, inner)} for one in schema["fields"]
            ]
        named[name] = result
        return result
    for key in ("type", "items", "values"):
        if key in schema:
            result[key] = _resolved(schema[key], named, namespace, inside)
    return result


def per_schema(compile_one: Callable[[Schema], Result]) -> Callable[[Schema], Result]:
    """A function that compiles each schema once; schemas are told apart as objects, and a thousand are kept."""
    known: dict[int, tuple[Schema, Result]] = {}

    def compiled(schema: Schema) -> Result:
        found = known.get(id(schema))
        if found is not None:
            return found[1]
        if len(known) >= _MOST_SCHEMAS:
            known.clear()
        result = compile_one(schema)
        # The schema is kept with its result, so that no other object can get its id.
        known[id(schema)] = schema, result
        return result

    return compiled


def defaults_for_nulls(schema: Schema) -> dict[str, Any]:
    """The defaults of a record's optional fields, with which Connect replaces null (KIP-1040)."""
    if shape(schema).type != "struct":
        return {}
    fields = shape(schema).core["fields"]
    return {
        one["name"]: one["default"] for one in fields if shape(one["type"]).optional and one.get("default") is not None
    }
