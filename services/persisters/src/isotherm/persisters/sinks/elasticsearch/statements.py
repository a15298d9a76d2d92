"""What a statement asks of Elasticsearch beyond its target: a data stream, routing; and what goes with what. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import isotherm.schemas
from isotherm.kcql import ProjectionError
from isotherm.kcql.model import Part, Statement
from isotherm.persisters.api.plan import Plan, compile_plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.api.statements import has_target_per_record, null_behaviour, pk_names
from isotherm.persisters.sinks.repeated_ids import may_repeat_ids
from isotherm.servicekit.avro import WriterSchema

DATA_STREAM = "DATA_STREAM"
ROUTING = "routing"
"""Statement property: the field of the row, or the name of the only PK, whose value chooses the shard."""

RoutingOf = Callable[[Row], str]


def is_data_stream(statement: Statement) -> bool:
    """Whether the target is a data stream: STOREAS DATA_STREAM."""
    return statement.store_as is not None and statement.store_as.type == DATA_STREAM


def problems(statement: Statement) -> list[str]:
    """Return what is wrong with a statement, whatever the schema of its topic."""
    wrong = []
    if statement.mode == "UPSERT" and not statement.primary_key:
        wrong.append("UPSERT needs PK, the id of the document to merge into")
    if statement.mode == "UPSERT" and statement.pipeline is not None:
        wrong.append("WITHPIPELINE has no effect on UPSERT: Elasticsearch runs no pipeline for updates")
    if null_behaviour(statement) == "DELETE" and statement.index_suffix is not None:
        wrong.append("behavior.on.null.values=DELETE does not go with WITHINDEXSUFFIX: a tombstone has no event time")
    return wrong + _of_store(statement) + _of_routing(statement)


def schema_problems(statement: Statement) -> list[str]:
    """Return what is wrong with a statement for its topic's schema, as far as the suite's own schemas tell."""
    try:
        topic = isotherm.schemas.topic(statement.source)
        if topic.record is not None and topic.version is not None:
            schema = isotherm.schemas.schema(topic.record, topic.version)
            check_plan(compile_plan(statement, WriterSchema(0, schema, None), "-"))
    except SinkConfigError as wrong:
        return [str(wrong)]
    except (LookupError, ProjectionError):
        # The suite does not declare this topic: its schema is checked with its first record.
        return []
    return []


def check_plan(plan: Plan) -> None:
    """Refuse a statement that would lose or mix records of this schema. Raises SinkConfigError."""
    statement = plan.statement
    if plan.revision is not None and statement.mode == "UPSERT" and not plan.selects_whole_record:
        raise SinkConfigError(
            f"{statement.text!r}: the topic's schema declares revisions; a partial UPSERT would mix fields of "
            "several revisions. Use INSERT, or SELECT *"
        )
    if not is_data_stream(statement):
        return
    if plan.revision is not None:
        raise SinkConfigError(
            f"{statement.text!r}: the topic's schema declares revisions; a data stream keeps the first document of an "
            "id, so a newer revision would never be seen. Use an index"
        )
    if may_repeat_ids(plan) and not _has_event_time(plan):
        raise SinkConfigError(
            f"{statement.text!r}: several records may have one id, and a data stream keeps the first one only. Leave "
            "out PK, add the event time to it, or use an index"
        )


def routing_of(statement: Statement) -> RoutingOf | None:
    """Return what makes a row's routing value; None if the statement asks for none.

    The function raises RowError for a row without a value.
    """
    name = _routing(statement)
    if name is None:
        return None
    names, path = pk_names(statement), name.split(".")
    if names == [name]:
        return lambda row: row.id

    def routing(row: Row) -> str:
        found = row.pk[names.index(name)] if row.values is None else _value_at(row.values, path)
        if found is None or found == "":
            raise RowError("routing", f"the row has no {name!r}, which {ROUTING} asks for")
        return str(found).lower() if isinstance(found, bool) else str(found)

    return routing


def _of_store(statement: Statement) -> list[str]:
    stored = statement.store_as
    if stored is None:
        return []
    if stored.type != DATA_STREAM:
        return [f"STOREAS {stored.type} is not allowed; expected {DATA_STREAM}"]
    forbidden = (
        (bool(stored.parameters), f"STOREAS {DATA_STREAM} has no parameters"),
        (statement.mode == "UPSERT", "UPSERT changes documents, and those of a data stream cannot be changed"),
        (null_behaviour(statement) == "DELETE", "documents of a data stream cannot be deleted by a tombstone"),
        (statement.index_suffix is not None, "WITHINDEXSUFFIX makes dated indices; a data stream rolls over itself"),
        (has_target_per_record(statement), "a data stream needs a target that the statement names"),
        (_routing(statement) is not None, "a data stream takes no routing"),
    )
    return [why for is_so, why in forbidden if is_so]


def _of_routing(statement: Statement) -> list[str]:
    name = _routing(statement)
    if name is None:
        return []
    if not name or not all(name.split(".")):
        return [f"{ROUTING}={name!r} is not allowed; expected the name of a field of the row"]
    if null_behaviour(statement) == "DELETE" and name not in pk_names(statement):
        return [f"{ROUTING}={name} is not in PK: a tombstone has no value that could say where its document is"]
    return []


def _routing(statement: Statement) -> str | None:
    return next((value for key, value in statement.properties.items() if key.lower() == ROUTING), None)


def _value_at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = values
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _has_event_time(plan: Plan) -> bool:
    """Whether the id holds the time at which something happened once."""
    return any(path.part is Part.VALUE and path.segments == (plan.event_time,) for path in plan.statement.primary_key)
