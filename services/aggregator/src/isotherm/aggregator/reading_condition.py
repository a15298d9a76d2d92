"""The condition by which readings are aggregated or left out: KCQL's WHERE over the fields of a reading. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

from isotherm.kcql import Condition, KcqlError, Path, parse, paths_of
from isotherm.kcql.model import And, Comparison, Constant, Like, Membership, Not, NullTest, Or, Part

KINDS: Mapping[str, str] = {
    "device_id": "text",
    "metric": "text",
    "value": "number",
    "unit": "text",
    "event_time": "time",
    "ingest_time": "time",
    "sequence": "number",
}
"""The kind of each field of SensorReading that a condition may name."""
ATTRIBUTES = "attributes"
"""The field whose entries are texts; one that a reading lacks is null."""
MAX_LIKE_WILDCARDS = 2
"""Most `%` of one pattern. Devices choose the texts, and Spark's LIKE takes a time that grows with a power of them."""

_BEFORE = "SELECT * FROM readings WHERE "


def parse_condition(text: str) -> Condition:
    """Parse the text after WHERE, and verify its fields and kinds.

    Raises ValueError naming the place, the field or the kinds, and what is allowed.
    """
    try:
        statements = parse(_BEFORE + text)
    except KcqlError as error:
        raise ValueError(f"is no condition of KCQL: {error}") from None
    if len(statements) != 1 or statements[0].clauses - {"WHERE"} or statements[0].where is None:
        raise ValueError(f"{text!r} is not allowed: must be one condition of KCQL's WHERE and nothing after it")
    condition = statements[0].where
    _verify(condition)
    return condition


def fields_of(condition: Condition | None) -> tuple[str, ...]:
    """Return the fields of a reading that a condition names, each once, in alphabetical order."""
    return tuple(sorted({path.segments[0] for path in paths_of(condition)}))


def kind_of(path: Path) -> str:
    """Return the kind of a field: text, number or time. Raises ValueError when a reading has no such field."""
    allowed = f"{', '.join(KINDS)}, {ATTRIBUTES}.<name>"
    names = path.segments
    if path.part is not Part.VALUE or not names:
        raise ValueError(f"{path.part.value} is not allowed: a condition names fields of a reading: {allowed}")
    if names[0] == ATTRIBUTES and len(names) == 2:
        return "text"
    if len(names) > 1 or names[0] not in KINDS:
        raise ValueError(f"field {'.'.join(names)} is not allowed: must be {allowed}")
    return KINDS[names[0]]


def _verify(condition: Condition) -> None:
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                _verify(part)
        case Not(inner):
            _verify(inner)
        case NullTest(path):
            kind_of(path)
        case Comparison(_, left, right):
            _verify_kinds(left, right)
        case Membership(path, values):
            for value in values:
                _verify_kinds(path, value)
        case Like(path, pattern):
            if kind_of(path) != "text":
                raise ValueError(f"{'.'.join(path.segments)} is a {kind_of(path)}, and LIKE compares a text")
            if pattern.count("%") > MAX_LIKE_WILDCARDS:
                raise ValueError(f"LIKE {pattern!r} is not allowed: a pattern has at most {MAX_LIKE_WILDCARDS} %")


def _verify_kinds(left: Path | Constant, right: Path | Constant) -> None:
    kinds = [kind_of(one) if isinstance(one, Path) else _kind_of_constant(one) for one in (left, right)]
    if kinds[0] != kinds[1]:
        names = ["/".join(one.segments) if isinstance(one, Path) else repr(one.value) for one in (left, right)]
        advice = "; a time is written TIMESTAMP '2026-11-20T00:00:00Z'" if "time" in kinds else ""
        raise ValueError(f"{names[0]} is a {kinds[0]} and {names[1]} a {kinds[1]}: both must be of one kind{advice}")


def _kind_of_constant(constant: Constant) -> str:
    value = constant.value
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | Decimal):
        return "number"
    return "time" if isinstance(value, datetime) else "text"
