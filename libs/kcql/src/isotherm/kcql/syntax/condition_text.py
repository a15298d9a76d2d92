"""Writes conditions as KCQL text that reads back as the same condition."""

from __future__ import annotations

import re
from datetime import datetime

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
    Path,
)
from isotherm.kcql.syntax.names import write_path

_NO_NAME = re.compile(
    r"(?:and|or|not|in|like|escape|is|null|true|false)|[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?", re.IGNORECASE
)
"""What reads as a word or a number in a condition, so that it needs quotes as a name."""


def write_condition(condition: Condition) -> str:
    """A condition as KCQL text; parentheses stand only where they must."""
    match condition:
        case Or(parts):
            return " OR ".join(map(write_condition, parts))
        case And(parts):
            return " AND ".join(_in_parentheses(part, Or) for part in parts)
        case Not(inner):
            return f"NOT {_in_parentheses(inner, Or, And)}"
        case Comparison(operator, left, right):
            return f"{write_operand(left)} {operator} {write_operand(right)}"
        case NullTest(path, negated):
            return f"{write_operand(path)} IS {'NOT ' if negated else ''}NULL"
        case Membership(path, values, negated):
            listed = ", ".join(map(write_operand, values))
            return f"{write_operand(path)} {'NOT ' if negated else ''}IN ({listed})"
        case Like(path, pattern, escape, negated):
            end = "" if escape is None else f" ESCAPE {_text(escape)}"
            return f"{write_operand(path)} {'NOT ' if negated else ''}LIKE {_text(pattern)}{end}"


def _in_parentheses(condition: Condition, *kinds: type[Condition]) -> str:
    text = write_condition(condition)
    return f"({text})" if isinstance(condition, kinds) else text


def write_operand(operand: Operand) -> str:
    """A path or a constant as it is written in a condition."""
    if isinstance(operand, Constant):
        return _constant(operand)
    return _path(operand)


def _path(path: Path) -> str:
    text = write_path(path)
    return ".".join(f"`{name}`" for name in path.segments) if _NO_NAME.fullmatch(text) else text


def _constant(constant: Constant) -> str:
    value = constant.value
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat().replace('+00:00', 'Z')}'"
    return _text(value) if isinstance(value, str) else str(value)


def _text(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
