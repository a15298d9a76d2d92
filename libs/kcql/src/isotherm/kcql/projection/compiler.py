"""Compiles a statement for one writer schema to functions from a record to its row, id, target and event time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, ParamSpec, TypeVar

from isotherm.kcql.dates import compile_pattern, epoch_ms, suffix_formatter
from isotherm.kcql.errors import ProjectionError
from isotherm.kcql.model import (
    SYS_TIME,
    Field,
    Part,
    Path,
    Statement,
)
from isotherm.kcql.projection.conditions import compile_condition
from isotherm.kcql.projection.ids import joiner
from isotherm.kcql.projection.paths import (
    MISSING,
    Fetch,
    Function,
    IgnoreTree,
    fetcher,
    ignore_tree,
    pruned,
    shape_at,
    through_array,
    through_scalar,
)
from isotherm.kcql.projection.record import Record
from isotherm.kcql.projection.rows import (
    Leaf,
    Names,
    Row,
    Wildcard,
    dynamic_row,
    named_elsewhere,
    static_row,
    whole_value,
)
from isotherm.kcql.projection.scalars import event_time_ms_of, single, text_of
from isotherm.kcql.projection.shapes import Kind, SchemaShapes, Shape
from isotherm.kcql.projection.structure import structured_row
from isotherm.kcql.syntax.names import write_path

NO_FUNCTIONS: Mapping[str, Function] = {}

_STRUCTURED = {Kind.RECORD: "a record", Kind.MAP: "a record", Kind.ARRAY: "an array"}
_MICROSECONDS = ("timestamp-micros", "local-timestamp-micros")
_NO_IGNORES: IgnoreTree = {}
_ALL = Field(Path(Part.VALUE), wildcard=True)
_PARTS_WITH_FIELDS = (Part.VALUE, Part.KEY, Part.HEADER)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Projection:
    """A statement compiled for one writer schema. Every function raises ProjectionError for a bad record.

    Attributes:
        statement: the statement.
        row: record -> row, its keys in the order of the projection. `SELECT *` returns the record's own dict:
            do not change it.
        pk: record -> the values of the PK; None without a PK.
        id: record -> these values as text, joined by the separator (see `ids`); None without a PK.
        accepts: record -> whether the condition of WHERE is true of it; None without a condition.
        timestamp_ms: record -> the time of WITHTIMESTAMP in epoch milliseconds; None without this clause.
        target: (record, event time) -> the name of the target with its suffix. The event time is in epoch
            milliseconds, a datetime or None; WITHTIMESTAMP overrides it.
    """

    statement: Statement
    row: Row
    pk: Callable[[Record], tuple[Any, ...] | None]
    id: Callable[[Record], str | None]
    timestamp_ms: Callable[[Record], int | None]
    target: Callable[[Record, int | datetime | None], str]
    accepts: Callable[[Record], bool] | None = None


def compile_projection(
    statement: Statement,
    *,
    schema: Mapping[str, Any] | None = None,
    pk_separator: str = "-",
    functions: Mapping[str, Function] = NO_FUNCTIONS,
) -> Projection:
    """Compile a statement once for all records of one writer schema.

    A mismatch between statement and schema is not raised here: the functions that it affects raise it for each record.

    Args:
        statement: the statement to compile.
        schema: the writer's Avro schema as parsed JSON; None for records without a schema.
        pk_separator: stands between the values of a PK; `ids.separator_problem` says which are not allowed.
        functions: the functions that the field list may call, by name.

    Raises:
        ValueError: the separator is not allowed.
    """
    shapes, where = SchemaShapes(schema), statement.where
    compiler = _Compiler(statement, shapes, functions)
    timestamp_ms = _or_refusal(compiler.timestamp_ms)
    return Projection(
        statement=statement,
        row=_or_refusal(compiler.row),
        pk=_or_refusal(compiler.pk),
        id=_or_refusal(lambda: compiler.id(pk_separator)),
        timestamp_ms=timestamp_ms,
        target=_or_refusal(lambda: compiler.target(timestamp_ms)),
        accepts=None if where is None else _or_refusal(lambda: compile_condition(where, shapes)),
    )


def _or_refusal(compile_part: Callable[[], Callable[P, R]]) -> Callable[P, R]:
    """The result of `compile_part`; when the schema lacks a field that it needs, a function that raises the error."""
    try:
        return compile_part()
    except ProjectionError as error:
        arguments = (error.path, error.reason, error.suggestion)

        def refuse(*_: P.args, **__: P.kwargs) -> NoReturn:
            raise ProjectionError(*arguments)

        return refuse


class _Compiler:
    def __init__(self, statement: Statement, schema: SchemaShapes, functions: Mapping[str, Function]) -> None:
        self._statement = statement
        self._schema = schema
        self._functions = functions
        self._tree = ignore_tree(statement.ignore)

    def row(self) -> Row:
        statement = self._statement
        fields = statement.fields
        for ignored in statement.ignore:
            shape_at(self._schema, Path(Part.VALUE, ignored), arrays=True)
        shapes = [self._shape(field) for field in fields]
        if statement.with_structure and any(len(f.path.segments) + f.wildcard > 1 for f in fields):
            return structured_row(fields, self._functions, self._tree)
        schema_says_all = self._schema.root.kind is Kind.RECORD
        if fields == (_ALL,) and not (self._tree and schema_says_all):
            return whole_value(self._tree)
        entries = [self._entry(field, shape) for field, shape in zip(fields, shapes, strict=True)]
        aliases = [field.alias for field in fields if field.alias is not None]
        if any(isinstance(entry, Wildcard) and entry.known is None for entry in entries):
            return dynamic_row([(f.alias, e) for f, e in zip(fields, entries, strict=True)], aliases, self._tree)
        leaves = self._leaves([(f.alias, e) for f, e in zip(fields, entries, strict=True)], Names(aliases))
        return static_row(leaves, needs_value=_ALL in fields)

    def _shape(self, field: Field) -> Shape:
        shape = shape_at(self._schema, field.path, arrays=self._statement.with_structure)
        if not field.wildcard:
            return shape
        text = write_path(field.path, wildcard=True)
        if shape.kind is Kind.ARRAY and not self._statement.with_structure:
            raise through_array(text)
        if shape.kind is Kind.SCALAR or field.path.part not in _PARTS_WITH_FIELDS:
            raise through_scalar(text, "a single value")
        return shape

    def _entry(self, field: Field, shape: Shape) -> Leaf | Wildcard:
        fetch = fetcher(field.path, self._functions)
        if field.wildcard:
            known = tuple(shape.fields) if shape.kind is Kind.RECORD else None
            return Wildcard(field.path, fetch, named_elsewhere(self._statement.fields, field.path), known)
        return self._leaf(field.alias or field.natural_name or "", field.path, fetch)

    def _leaf(self, name: str, path: Path, fetch: Fetch) -> Leaf:
        is_top = path.part is Part.VALUE and len(path.segments) == 1
        below = _ignored_below(self._tree, path) if path.part is Part.VALUE else _NO_IGNORES
        if below is None:
            return Leaf(name, lambda record: MISSING, None)
        if below:
            return Leaf(name, lambda record: pruned(fetch(record), below), None)
        return Leaf(name, fetch, path.segments[0] if is_top else None)

    def _leaves(self, entries: list[tuple[str | None, Leaf | Wildcard]], names: Names) -> list[Leaf]:
        leaves: list[Leaf] = []
        for alias, entry in entries:
            if isinstance(entry, Leaf):
                leaves.append(entry if alias is not None else entry._replace(name=names.claim(entry.name)))
                continue
            for field in entry.known or ():
                path = Path(entry.path.part, (*entry.path.segments, field))
                if field not in entry.named_elsewhere and _ignored_below(self._tree, path) is not None:
                    leaves.append(self._leaf(names.claim(field), path, fetcher(path, self._functions)))
        return leaves

    def pk(self) -> Callable[[Record], tuple[Any, ...] | None]:
        if not self._statement.primary_key:
            return lambda record: None
        places = [(write_path(path), self._single(path)) for path in self._statement.primary_key]
        return lambda record: tuple(single(fetch(record), text) for text, fetch in places)

    def id(self, separator: str) -> Callable[[Record], str | None]:
        if not self._statement.primary_key:
            return lambda record: None
        texts = [self._text(path) for path in self._statement.primary_key]
        if len(texts) == 1:
            return texts[0]
        join = joiner(separator)
        return lambda record: join([text(record) for text in texts])

    def _single(self, path: Path) -> Fetch:
        try:
            shape = shape_at(self._schema, path, arrays=False)
        except ProjectionError as error:
            raise self._pointing_from_alias(error) from None
        if shape.kind in _STRUCTURED:
            raise ProjectionError(write_path(path), f"is {_STRUCTURED[shape.kind]}, not a single value")
        return fetcher(path, self._functions)

    def _pointing_from_alias(self, error: ProjectionError) -> ProjectionError:
        """Suggest the path behind an alias: a PK reads the record and not the row."""
        for field in self._statement.fields:
            if field.alias == error.path:
                return ProjectionError(error.path, error.reason, write_path(field.path))
        return error

    def _text(self, path: Path) -> Callable[[Record], str]:
        fetch = self._single(path)
        written = write_path(path)
        microseconds = shape_at(self._schema, path, arrays=False).logical_type in _MICROSECONDS
        bytes_are_text = path.part is not Part.VALUE

        def text(record: Record) -> str:
            value = fetch(record)
            if isinstance(value, str):
                return value
            if type(value) is int or (type(value) is datetime and not microseconds):
                return str(epoch_ms(value))
            return text_of(single(value, written), written, microseconds=microseconds, bytes_are_text=bytes_are_text)

        return text

    def timestamp_ms(self) -> Callable[[Record], int | None]:
        path = self._statement.timestamp
        if path is None:
            return lambda record: None
        if path == SYS_TIME:
            return _kafka_time_ms
        fetch = self._single(path)
        written = write_path(path)
        unit = "MILLISECONDS" if path.part is Part.TIMESTAMP else self._statement.timestamp_unit
        return lambda record: event_time_ms_of(single(fetch(record), written), written, unit)

    def target(self, timestamp_ms: Callable[[Record], int | None]) -> Callable[[Record, int | datetime | None], str]:
        name = self._target_name()
        statement = self._statement
        suffix = statement.index_suffix
        if suffix is None:
            return lambda record, event_time: name(record)
        is_fixed = statement.dynamic_target is None and statement.target_from is None
        fill = suffix_formatter(suffix, statement.target or "" if is_fixed else "")
        needs_time = compile_pattern(suffix).granularity_ms is not None
        from_record = statement.timestamp is not None

        def target(record: Record, event_time: int | datetime | None) -> str:
            time = timestamp_ms(record) if from_record else event_time
            if time is None and needs_time:
                raise ProjectionError("", f'the date in the suffix "{suffix}" needs an event time; the record has none')
            try:
                filled = fill(time or 0)
                return filled if is_fixed else name(record) + filled
            except OverflowError:
                raise ProjectionError("", f"the event time {time} ms is outside the years 1 to 9999") from None

        return target

    def _target_name(self) -> Callable[[Record], str]:
        statement = self._statement
        origin = statement.target_from
        if statement.dynamic_target is not None:
            return self._named_by(Path(Part.VALUE, statement.dynamic_target))
        if origin is None:
            target = statement.target
            if target is None:
                raise ProjectionError("", "a SELECT without INSERT INTO or UPSERT INTO has no target")
            return lambda record: target
        return _mqtt_target if origin.part is Part.TOPIC else self._named_by(origin)

    def _named_by(self, path: Path) -> Callable[[Record], str]:
        text = self._text(path)
        written = write_path(path)

        def name(record: Record) -> str:
            found = text(record)
            if not found:
                raise ProjectionError(written, "names no target, it is empty")
            return found

        return name


def _ignored_below(tree: IgnoreTree, path: Path) -> IgnoreTree | None:
    """The ignored fields below a path; None when the path itself is ignored."""
    level = tree
    for name in path.segments:
        if name not in level:
            return _NO_IGNORES
        below = level[name]
        if below is None:
            return None
        level = below
    return level


def _kafka_time_ms(record: Record) -> int:
    if record.timestamp_ms is None:
        raise ProjectionError("sys_time()", "the record has no Kafka timestamp")
    return record.timestamp_ms


def _mqtt_target(record: Record) -> str:
    if record.topic is None:
        raise ProjectionError("$", "the record has no topic")
    target = record.topic.strip("/").replace("/", "_")
    if not target:
        raise ProjectionError("$", f"the topic {record.topic!r} names no target")
    return target
