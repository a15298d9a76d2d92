"""Conditions as JSON objects, for `explain_json`."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from isotherm.kcql.model import (
    And,
    Comparison,
    Condition,
    Constant,
    Like,
    Membership,
    Not,
    NullTest,
    Operand,
    Or,
)
from isotherm.kcql.syntax.condition_builder import kind_of


def condition_json(condition: Condition) -> dict[str, Any]:
    """A condition as nested objects: `and`, `or` and `not` hold others, everything else has an `operator`."""
    match condition:
        case And(parts):
            return {"and": [condition_json(part) for part in parts]}
        case Or(parts):
            return {"or": [condition_json(part) for part in parts]}
        case Not(inner):
            return {"not": condition_json(inner)}
        case Comparison(operator, left, right):
            return {"operator": operator, "left": _operand(left), "right": _operand(right)}
        case NullTest(path, negated):
            return {"operator": "IS NOT NULL" if negated else "IS NULL", "left": _operand(path)}
        case Membership(path, values, negated):
            listed = [_operand(value) for value in values]
            return {"operator": _negated("IN", negated), "left": _operand(path), "right": listed}
        case Like(path, pattern, escape, negated):
            like, text = _negated("LIKE", negated), {"value": pattern, "type": "text"}
            return {"operator": like, "left": _operand(path), "right": text, "escape": escape}


def _negated(word: str, negated: bool) -> str:
    return f"NOT {word}" if negated else word


def _operand(operand: Operand) -> dict[str, Any]:
    if not isinstance(operand, Constant):
        return {"path": list(operand.segments), "part": operand.part.value}
    value: Any = operand.value
    if isinstance(value, datetime):
        value = value.isoformat().replace("+00:00", "Z")
    return {"value": float(value) if isinstance(value, Decimal) else value, "type": kind_of(operand)}
