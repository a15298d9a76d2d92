"""Which schemas have columns that the compiled reader fills, and which plans make rows of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from isotherm import kcql
from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.hotpath import NO_NULL, Buffers, Kind
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.identity import has_batch_ids

_KINDS: Mapping[str, Kind] = {
    "boolean": Kind.BOOLEAN,
    "int": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "string": Kind.STRING,
    "bytes": Kind.BYTES,
}
_TEXT_MAP = {"type": "map", "values": "string"}
_UNREAD = kcql.Record()
ProjectColumns = Callable[[Sequence[Record], list[Buffers]], ColumnarRows]
"""From the records of a batch and their columns to the rows."""


class ColumnKinds(NamedTuple):
    """The kinds of a schema's fields, in order."""

    names: Sequence[str]
    kinds: Sequence[tuple[int, int]]
    """As the compiled reader takes them."""


def column_kinds(schema: Any) -> ColumnKinds | None:
    """Return the kinds of a record's fields; None if one of them has none. Logical types are no part of `schema`."""
    fields = schema.get("fields") if isinstance(schema, Mapping) and schema.get("type") == "record" else None
    kinds = [_kind(field["type"]) for field in fields or ()]
    known = [kind for kind in kinds if kind is not None]
    if not fields or len(known) < len(fields):
        return None
    return ColumnKinds([field["name"] for field in fields], known)


def _kind(type_: Any) -> tuple[int, int] | None:
    if isinstance(type_, list):
        if len(type_) != 2 or type_.count("null") != 1:
            return None
        null = type_.index("null")
        inner = _kind(type_[1 - null])
        # A map that may be null needs another array.
        return None if inner is None or inner == (Kind.TEXT_MAP, NO_NULL) else (inner[0], null)
    if type_ == _TEXT_MAP:
        return Kind.TEXT_MAP, NO_NULL
    if isinstance(type_, Mapping):
        return _kind(type_["type"]) if type_.keys() == {"type"} and not isinstance(type_["type"], list) else None
    kind = _KINDS.get(type_)
    return None if kind is None else (kind, NO_NULL)


def project_columns(
    plan: Plan,
    known: ColumnKinds,
    conventions: Conventions,
    project: Callable[[Record], Row],
    project_all: Callable[[Sequence[Record]], Sequence[Row]],
) -> ProjectColumns | None:
    """Return the projection of columns; None for a plan whose rows need more than the columns of their records.

    It has the conditions of `fast_path.project_whole_batches`, and no expiry, condition or date in the target.
    """
    statement, event_time = plan.statement, plan.event_time
    kinds = dict(zip(known.names, known.kinds, strict=True))
    is_named = statement.target_from is None and statement.dynamic_target is None and statement.index_suffix is None
    is_declared = plan.identity and not statement.primary_key and statement.timestamp is None
    numbers = [name for name in (event_time, plan.revision) if name is not None]
    if (
        event_time is None
        or not (plan.selects_whole_record and is_named and is_declared)
        or not has_batch_ids(plan.identity, plan.fields)
        or plan.projection.accepts is not None
        or conventions.lifetime_ms(statement) is not None
        or any(kinds.get(name) != (Kind.LONG, NO_NULL) for name in numbers)
    ):
        return None
    target = plan.projection.target(_UNREAD, 0)
    of_names = {name: Kind(kind) for name, (kind, _) in kinds.items()}

    def rows(records: Sequence[Record], columns: list[Buffers]) -> ColumnarRows:
        by_name = dict(zip(known.names, columns, strict=True))
        return ColumnarRows(records, plan, target, by_name, of_names, event_time, project, project_all)

    return rows
