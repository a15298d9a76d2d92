"""Builds the condition of WHERE from lark's tree, and checks the rules that the grammar cannot express."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from lark import Token, Tree

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
    Part,
    Path,
)
from isotherm.kcql.syntax.names import Lexeme, read_field
from isotherm.kcql.syntax.nodes import Child, lexeme_of

MAX_DEPTH = 50
"""How deeply conditions may be nested by parentheses and NOT."""
_MAX_DIGITS = 40
_ORDERED = ("<", "<=", ">", ">=")
_TIME_EXAMPLE = "ISO 8601 such as TIMESTAMP '2026-01-31T12:00:00Z'"


def build_condition(text: str, tree: Child) -> Condition:
    """The condition of a `disjunction` node.

    Args:
        text: the whole text, to which the positions of the tree's tokens refer.
        tree: the node.

    Raises:
        KcqlError: an operand does not fit its operator, a constant is not valid, or the nesting is too deep.
    """
    return _Builder(text).condition(tree, 0)


class _Builder:
    def __init__(self, text: str) -> None:
        self._source = text

    def _lexeme(self, child: Child) -> Lexeme:
        return lexeme_of(self._source, child)

    def condition(self, tree: Child, depth: int) -> Condition:
        assert isinstance(tree, Tree)
        if depth > MAX_DEPTH:
            start = tree.meta.start_pos
            begin = Lexeme(self._source, start, start + 1)
            raise begin.refuse("the condition is nested too deeply", expected=f"at most {MAX_DEPTH} levels")
        if tree.data in ("disjunction", "conjunction"):
            below = depth + (tree.data == "disjunction")
            parts = tuple(self.condition(child, below) for child in tree.children if isinstance(child, Tree))
            if len(parts) == 1:
                return parts[0]
            return Or(_flat(parts, Or)) if tree.data == "disjunction" else And(_flat(parts, And))
        if tree.data == "negated":
            return Not(self.condition(tree.children[-1], depth + 1))
        build: Callable[[list[Child]], Condition] = getattr(self, f"_{tree.data}")
        return build(list(tree.children))

    def _comparison(self, children: list[Child]) -> Condition:
        left, right = self._operand(children[0]), self._operand(children[2])
        operator = self._lexeme(children[1])
        if isinstance(left, Constant) and isinstance(right, Constant):
            raise self._lexeme(children[0]).refuse("WHERE compares two constants", expected="a field on one side")
        for operand in (left, right):
            if isinstance(operand, Constant) and isinstance(operand.value, bool) and operator.text in _ORDERED:
                raise operator.refuse(f'"{operator.text}" has no meaning for TRUE and FALSE', expected="= or <>")
        return Comparison("<>" if operator.text == "!=" else operator.text, left, right)

    def _null_test(self, children: list[Child]) -> Condition:
        return NullTest(self._path(children[0], "IS NULL"), negated=children[2] is not None)

    def _membership(self, children: list[Child]) -> Condition:
        name, negation, _, *tokens = children
        values = [self._constant(token) for token in tokens]
        kinds = [kind_of(value) for value in values]
        for token, kind in zip(tokens, kinds, strict=True):
            if kind != kinds[0]:
                raise self._lexeme(token).refuse(f"a {kind} in a list of IN that begins with a {kinds[0]}")
        return Membership(self._path(name, "IN"), tuple(values), negated=negation is not None)

    def _like(self, children: list[Child]) -> Condition:
        name, negation, _, text, _, escape = children
        mark = None if escape is None else self._text(escape)
        if mark is not None and len(mark) != 1:
            raise self._lexeme(escape).refuse(f'ESCAPE is "{mark}"', expected="one character")
        pattern = self._text(text)
        if mark is not None and _has_dangling_escape(pattern, mark):
            raise self._lexeme(text).refuse(
                f'"{mark}" escapes nothing here', expected=f"%, _ or {mark} after the escape character {mark}"
            )
        return Like(self._path(name, "LIKE"), pattern, mark, negated=negation is not None)

    def _operand(self, child: Child) -> Operand:
        assert isinstance(child, Token)
        return self._path(child, "WHERE") if child.type == "NAME" else self._constant(child)

    def _path(self, child: Child, word: str) -> Path:
        lexeme = self._lexeme(child)
        if not isinstance(child, Token) or child.type != "NAME":
            raise lexeme.refuse(f"{word} after a constant", expected="a field before it")
        path, _ = read_field(lexeme)
        if path.part is Part.FUNCTION:
            raise lexeme.refuse("WHERE takes fields and constants, no function")
        return path

    def _constant(self, child: Child) -> Constant:
        assert isinstance(child, Token)
        if child.type in ("TRUE", "FALSE"):
            return Constant(child.type == "TRUE")
        if child.type == "NUMBER":
            return Constant(self._number(child))
        return Constant(self._time(child) if child.type == "TIME" else self._text(child))

    def _number(self, child: Token) -> int | Decimal:
        lexeme = self._lexeme(child)
        if len(child) > _MAX_DIGITS:
            raise lexeme.refuse(f"a number of {len(child)} characters", expected=f"at most {_MAX_DIGITS}")
        if child.lstrip("+-").isdigit():
            return int(child)
        number = Decimal(str(child))
        if abs(float(number)) == float("inf"):
            raise lexeme.refuse(f'"{child}" is too large', expected="a number that a double can hold")
        return number

    def _time(self, child: Token) -> datetime:
        lexeme = self._lexeme(child)
        text = child[child.index("'") + 1 : -1]
        try:
            time = datetime.fromisoformat(text)
            return (time.replace(tzinfo=UTC) if time.tzinfo is None else time).astimezone(UTC)
        except (ValueError, OverflowError):
            raise lexeme.refuse(f'"{text}" is no time', expected=_TIME_EXAMPLE) from None

    def _text(self, child: Child) -> str:
        return self._lexeme(child).text[1:-1].replace("''", "'")


def kind_of(constant: Constant) -> str:
    """The kind of a constant: `text`, `boolean`, `number` or `time`."""
    value: Any = constant.value
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "boolean"
    return "time" if isinstance(value, datetime) else "number"


def _flat(parts: tuple[Condition, ...], kind: type[And | Or]) -> tuple[Condition, ...]:
    """The parts without parentheses that change nothing: `a OR (b OR c)` has three."""
    return tuple(inner for part in parts for inner in (part.conditions if isinstance(part, kind) else (part,)))


def _has_dangling_escape(pattern: str, mark: str) -> bool:
    at = pattern.find(mark)
    while at >= 0:
        if pattern[at + 1 : at + 2] not in ("%", "_", mark):
            return True
        at = pattern.find(mark, at + 2)
    return False
