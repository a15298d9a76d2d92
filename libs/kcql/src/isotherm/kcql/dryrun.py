"""Dry run: applies statements to JSON records without a connector, for `isotherm kcql project`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from isotherm.kcql.dates import compile_pattern
from isotherm.kcql.errors import ProjectionError
from isotherm.kcql.filters import matches_filter
from isotherm.kcql.model import Statement
from isotherm.kcql.projection.compiler import Projection, compile_projection
from isotherm.kcql.projection.record import Record
from isotherm.kcql.syntax.parser import parse

FUNCTIONS = {"now": lambda record: time.time_ns() // 1_000_000}
"""The functions of a dry run: `now()` is the time of the run, in epoch milliseconds."""

_ENVELOPE: Mapping[str, tuple[type, str]] = {
    "key": (object, "a value"),
    "value": (object, "a value"),
    "headers": (dict, "an object"),
    "topic": (str, "a text"),
    "partition": (int, "a whole number"),
    "offset": (int, "a whole number"),
    "timestamp": (int, "a whole number, epoch milliseconds"),
}


def apply(text: str, lines: Iterable[str | bytes], *, envelope: bool = False) -> Iterator[dict[str, Any]]:
    """Apply KCQL to JSON records, one on each line; blank lines are skipped.

    A single statement applies to every record. Of several statements, those that read the record's topic apply, or all
    of them when the record has no topic.

    Args:
        text: the statements; they are parsed before the first line is read.
        lines: JSON texts, each the value of a record.
        envelope: whether each line is an object with key, value, headers, topic, partition, offset, timestamp.

    Yields:
        For each record and statement `{"target", "id", "row"}`, `{"filtered": "where"}` or `{"error"}`.

    Raises:
        KcqlError: the text is not KCQL.
    """
    statements = parse(text)
    projections = [compile_projection(statement, functions=FUNCTIONS) for statement in statements]
    return _applied(projections, lines, envelope=envelope)


def _applied(
    projections: list[Projection], lines: Iterable[str | bytes], *, envelope: bool
) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            record = _record(line, envelope=envelope)
        except ProjectionError as error:
            yield {"error": str(error)}
            continue
        readers = [projection for projection in projections if _reads(projection.statement, record.topic)]
        if len(projections) == 1:
            readers = projections
        if not readers:
            yield {"error": f'no statement reads the topic "{record.topic}"'}
        for projection in readers:
            yield _outcome(projection, record, envelope=envelope)


def _reads(statement: Statement, topic: str | None) -> bool:
    return topic is None or statement.matches(topic) or matches_filter(statement.source, topic)


def _outcome(projection: Projection, record: Record, *, envelope: bool) -> dict[str, Any]:
    statement = projection.statement
    try:
        if not envelope and _needs_envelope(statement):
            raise ProjectionError(
                "", f'the date in the suffix "{statement.index_suffix}" needs WITHTIMESTAMP or the envelope'
            )
        if projection.accepts is not None and not projection.accepts(record):
            return {"filtered": "where"}
        has_target = statement.target is not None or statement.dynamic_target is not None
        target = projection.target(record, record.timestamp_ms) if has_target else None
        return {"target": target, "id": projection.id(record), "row": projection.row(record)}
    except ProjectionError as error:
        return {"error": str(error)}


def _needs_envelope(statement: Statement) -> bool:
    suffix = statement.index_suffix
    dated = suffix is not None and compile_pattern(suffix).granularity_ms is not None
    return dated and statement.timestamp is None


def _record(line: str | bytes, *, envelope: bool) -> Record:
    try:
        value = json.loads(line.strip(), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ProjectionError("", f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise ProjectionError("", f"not JSON: {error}") from None
    if not envelope:
        return Record(value=value)
    if not isinstance(value, dict):
        raise ProjectionError("", "not an envelope: an object with key, value, headers, topic, ... is expected")
    for name, part in value.items():
        if name not in _ENVELOPE:
            raise ProjectionError("", f'not an envelope: it has "{name}" beside {", ".join(_ENVELOPE)}')
        kind, expected = _ENVELOPE[name]
        if part is not None and (not isinstance(part, kind) or (kind is int and isinstance(part, bool))):
            raise ProjectionError("", f'"{name}" of the envelope is not {expected}')
    return Record(
        key=value.get("key"),
        value=value.get("value"),
        headers=value.get("headers") or {},
        topic=value.get("topic"),
        partition=value.get("partition"),
        offset=value.get("offset"),
        timestamp_ms=value.get("timestamp"),
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
