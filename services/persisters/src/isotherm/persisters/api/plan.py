"""What a statement means for the records of one writer schema: compiled projection and the schema's declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from isotherm import kcql
from isotherm.connector.transforms.schemas import EVENT_TIME, IDENTITY, REVISION
from isotherm.kcql.model import Part, Statement
from isotherm.persisters.api.statements import pk_names
from isotherm.servicekit.avro import WriterSchema


@dataclass(frozen=True, eq=False)
class Plan:
    """One statement applied to one writer schema (None: values without a schema)."""

    statement: Statement
    writer: WriterSchema | None
    projection: kcql.Projection
    identity: tuple[str, ...]
    """The fields that the schema declares as identity; empty without such a declaration."""
    event_time: str | None
    revision: str | None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The Avro type of each field of the writer's schema; empty for values without a schema."""
        return (
            {}
            if self.writer is None
            else {field["name"]: field["type"] for field in self.writer.json.get("fields", ())}
        )

    @property
    def selects_whole_record(self) -> bool:
        """Whether a row is the record itself: `SELECT *` without IGNORE."""
        fields = self.statement.fields
        is_star = len(fields) == 1 and fields[0].wildcard and not fields[0].path.segments
        return is_star and fields[0].path.part is Part.VALUE and not self.statement.ignore

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The Avro type of each projected field, in order; empty for values without a schema.

        The projection is applied to a record that holds in each field the type of that field, so that the names come
        out exactly as they do for data.
        """
        return {name: _type_of(place) for name, place in self._shape.items()}

    @cached_property
    def revision_column(self) -> str | None:
        """The name of the revision in the row; None if the statement does not select it."""
        return next((name for name, place in self._shape.items() if getattr(place, "is_revision", False)), None)

    @cached_property
    def event_time_column(self) -> str | None:
        """The name of the column that holds the event time; None if it is not selected."""
        clause = self.statement.timestamp
        name = self.event_time if clause is None else getattr(clause, "segments", ("",))[-1]
        return name if name in self.columns else None

    @cached_property
    def identity_columns(self) -> tuple[str, ...]:
        """The columns by which rows are the same: PK, else the declared identity if all of it is selected."""
        if self.statement.primary_key:
            return tuple(pk_names(self.statement))
        return self.identity if all(name in self.columns for name in self.identity) else ()

    @cached_property
    def _shape(self) -> Mapping[str, Any]:
        if self.writer is None:
            return {}
        places = _places(self.writer.json, {})
        if self.revision in places:
            places[self.revision].is_revision = True
        record = kcql.Record(value=places, topic="", partition=0, offset=0, timestamp_ms=0)
        row: dict[str, Any] = self.projection.row(record)
        return row


class TypeAt:
    """Stands for a value in a record that shows the shape of a schema."""

    def __init__(self, avro: Any) -> None:
        self.avro = avro
        self.is_revision = False


class MapAt(dict[str, Any]):
    """Stands for a map: whatever the key, the element is the same."""

    def __init__(self, avro: Any, element: Any) -> None:
        super().__init__()
        self.avro = avro
        self.element = element

    def get(self, _key: str, _default: Any = None) -> Any:
        """Return the element."""
        return self.element


def compile_plan(statement: Statement, writer: WriterSchema | None, pk_separator: str) -> Plan:
    """Compile `statement` for values written with `writer` (None: values without a schema).

    Raises kcql.ProjectionError if the schema declares a field as identity or revision that it does not have.
    """
    schema = None if writer is None else writer.json
    declared = schema or {}
    identity, revision = _names(declared.get(IDENTITY)), declared.get(REVISION)
    known = {field["name"] for field in declared.get("fields", ())}
    for name in (*identity, *(() if revision is None else (revision,))):
        if name not in known:
            raise kcql.ProjectionError(name, "the schema declares it as identity or revision, and has no such field")
    return Plan(
        statement,
        writer,
        kcql.compile_projection(statement, schema=schema, pk_separator=pk_separator),
        identity,
        declared.get(EVENT_TIME),
        revision,
    )


def _names(declared: Any) -> tuple[str, ...]:
    if isinstance(declared, str):
        return tuple(name.strip() for name in declared.split(",") if name.strip())
    return tuple(declared or ())


def _places(schema: Any, named: dict[str, Any], namespace: str = "") -> Any:
    """Return a value that shows each field's type in its position: records as dicts, arrays as lists of one element.

    `named` holds the types that are defined so far, by full name; a reference is shown as the type that it names.
    """
    if isinstance(schema, str):
        defined = named.get(_full_name(schema, namespace), schema)
        return TypeAt(schema) if defined == schema else _places(defined, named, namespace)
    if isinstance(schema, list):
        branches = [_places(branch, named, namespace) for branch in schema if branch != "null"]
        return branches[0] if len(branches) == 1 else TypeAt(_union(schema, branches))
    kind = schema["type"]
    if kind in ("record", "error", "enum", "fixed"):
        full_name = _full_name(schema["name"], schema.get("namespace", namespace))
        if kind in ("enum", "fixed"):
            named[full_name] = schema
            return TypeAt(schema)
        # A record inside itself has no end: its inner occurrence is shown as a map of texts.
        named[full_name] = {"type": "map", "values": "string"}
        inside = full_name.rpartition(".")[0]
        places = {field["name"]: _places(field["type"], named, inside) for field in schema["fields"]}
        named[full_name] = schema | {"name": full_name}
        return places
    if kind == "array":
        return [_places(schema["items"], named, namespace)]
    if kind == "map":
        element = _places(schema["values"], named, namespace)
        return MapAt({"type": "map", "values": _type_of(element)}, element)
    is_wrapped = isinstance(kind, (dict, list)) or _full_name(kind, namespace) in named
    return _places(kind, named, namespace) if is_wrapped else TypeAt(schema)


def _union(schema: Sequence[Any], branches: Sequence[Any]) -> list[Any]:
    nothing = ["null"] if "null" in schema else []
    return nothing + [_type_of(place) for place in branches]


def _full_name(name: str, namespace: str) -> str:
    """Qualify a name without dots with the namespace around it (Avro specification, "Names")."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _type_of(place: Any) -> Any:
    if isinstance(place, (TypeAt, MapAt)):
        return place.avro
    if isinstance(place, list):
        return {"type": "array", "items": _type_of(place[0])}
    if isinstance(place, dict):
        fields = [{"name": name, "type": _type_of(inner)} for name, inner in place.items()]
        return {"type": "record", "name": "nested", "fields": fields}
    # A part of the record beside its value: topic, partition, offset, key.
    return "long" if isinstance(place, int) else "string"
