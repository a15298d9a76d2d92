"""Shapes of the values in an Avro schema, read from its parsed JSON without an Avro library."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple


class Kind(Enum):
    """Kinds of values."""

    RECORD = auto()
    MAP = auto()
    ARRAY = auto()
    SCALAR = auto()
    ANY = auto()
    """Only the record determines it: there is no schema, or several branches of a union have fields."""


class Scoped(NamedTuple):
    """A schema inside another one, with the namespace of its short names."""

    schema: Any
    namespace: str


class Shape(NamedTuple):
    """The shape of a value: its kind, the fields of a record, the element of an array or map."""

    kind: Kind
    fields: Mapping[str, Scoped]
    element: Scoped | None = None
    logical_type: str | None = None


ANYTHING = Shape(Kind.ANY, {})
_SCALAR = Shape(Kind.SCALAR, {})
_NULLS = ("null", {"type": "null"})


class SchemaShapes:
    """The shapes of one Avro schema; named types are resolved, and a union with null counts as its other branch.

    Args:
        schema: the schema as parsed JSON, also as fastavro's parsed form; None for records without a schema,
            whose values have any shape.
    """

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Scoped] = {}
        self._root = Scoped(schema, "")
        if schema is not None:
            self._collect(self._root)

    @property
    def root(self) -> Shape:
        """The shape of the whole value."""
        return ANYTHING if self._root.schema is None else self.shape(self._root)

    def shape(self, place: Scoped) -> Shape:
        """The shape of a schema inside this one; a union with null has the shape of its other branch."""
        schema, namespace = place
        if isinstance(schema, list):
            return self._union([Scoped(branch, namespace) for branch in schema if branch not in _NULLS])
        if isinstance(schema, str):
            named = self._named.get(_full_name(schema, namespace), self._named.get(schema))
            return self.shape(named) if named else _SCALAR
        kind = schema["type"]
        if kind in ("record", "error"):
            inner = _namespace(schema, namespace)
            fields = {field["name"]: Scoped(field["type"], inner) for field in schema["fields"]}
            return Shape(Kind.RECORD, fields)
        if kind == "array":
            return Shape(Kind.ARRAY, {}, Scoped(schema["items"], namespace))
        if kind == "map":
            return Shape(Kind.MAP, {}, Scoped(schema["values"], namespace))
        if kind in ("enum", "fixed"):
            return Shape(Kind.SCALAR, {}, None, schema.get("logicalType"))
        inner_shape = self.shape(Scoped(kind, namespace))
        return inner_shape._replace(logical_type=schema.get("logicalType", inner_shape.logical_type))

    def _union(self, branches: list[Scoped]) -> Shape:
        shapes = [self.shape(branch) for branch in branches]
        if len(shapes) == 1:
            return shapes[0]
        return _SCALAR if all(shape.kind is Kind.SCALAR for shape in shapes) else ANYTHING

    def _collect(self, place: Scoped) -> None:
        schema, namespace = place
        if isinstance(schema, list):
            for branch in schema:
                self._collect(Scoped(branch, namespace))
        if not isinstance(schema, Mapping):
            return
        if schema["type"] in ("record", "error", "enum", "fixed"):
            self._named[_full_name(schema["name"], _namespace(schema, namespace))] = Scoped(dict(schema), namespace)
            namespace = _namespace(schema, namespace)
        for inner in (schema["type"], schema.get("items"), schema.get("values")):
            self._collect(Scoped(inner, namespace))
        for field in schema.get("fields", ()):
            self._collect(Scoped(field["type"], namespace))


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _namespace(schema: Mapping[str, Any], enclosing: str) -> str:
    """The namespace of the names inside a named type (Avro 1.11 specification, Names)."""
    prefix, dot, _ = schema["name"].rpartition(".")
    return prefix if dot else str(schema.get("namespace") or enclosing)
