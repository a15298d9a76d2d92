"""The changes that make a mutant: one changed expression or statement of a module, in the order of the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Div,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOG_METHODS = frozenset(("debug", "info", "warning", "error", "exception", "critical", "log"))
_TEXT_METHODS = frozenset(("__repr__", "__str__"))
_MAX_TEXT = 110
_LARGEST_DECIDING = 1
"""Constants outside of functions up to this number decide (0, 1, -1, True); larger ones are tuned."""


@dataclass(frozen=True, eq=False)
class Mutant:
    """A module with one change."""

    file: str
    """Path of the module, as it was given."""
    line: int
    function: str
    """Qualified name of the outermost function with the change; empty if it is outside of functions."""
    first_line: int
    """Of that function's code object: its first decorator's, if it has one."""
    operator: str
    change: str
    """The changed part before and after, as source text."""
    lines: frozenset[int]
    """Lines of the changed statement, without those of its body: a test that runs none of them cannot notice."""
    _tree: ast.Module
    _place: tuple[ast.AST, str, int | None]
    _replacement: ast.AST

    @property
    def name(self) -> str:
        """Return what lists show of the mutant."""
        return f"{self.file}:{self.line} {self.operator}: {self.change}"

    def compile(self, filename: str) -> CodeType:
        """Return the code of the changed module, which pretends to be that of the file `filename`."""
        before = _put(self._place, self._replacement)
        try:
            return compile(self._tree, filename, "exec", dont_inherit=True)
        finally:
            _put(self._place, before)


def mutants(source: str, file: str) -> list[Mutant]:
    """Return every mutant of a module."""
    tree = ast.parse(source)
    return list(_Walk(tree, file).walk())


def _put(place: tuple[ast.AST, str, int | None], node: ast.AST) -> ast.AST:
    parent, field, index = place
    value = getattr(parent, field)
    if index is None:
        setattr(parent, field, node)
        return value  # type: ignore[no-any-return]  # the fields of a syntax tree have no type
    before: ast.AST = value[index]
    value[index] = node
    return before


class _Walk:
    """Visits what decides: no annotation, docstring, assertion, log line or text of an error."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self._tree = tree
        self._file = file
        self._scopes: list[str] = []
        self._function: tuple[str, int] | None = None
        self._lines: frozenset[int] = frozenset()
        self._is_text = False

    def walk(self) -> Iterator[Mutant]:
        yield from self._children(self._tree)

    def _children(self, node: ast.AST, *but: str) -> Iterator[Mutant]:
        for field, value in ast.iter_fields(node):
            if field in but:
                continue
            if isinstance(value, list):
                for index, one in enumerate(value):
                    if isinstance(one, ast.AST):
                        yield from self._visit(one, (node, field, index))
            elif isinstance(value, ast.AST):
                yield from self._visit(value, (node, field, None))

    def _visit(self, node: ast.AST, place: tuple[ast.AST, str, int | None]) -> Iterator[Mutant]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from self._definition(node)
            return
        if _is_ignored(node):
            return
        lines = self._lines
        if isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            self._lines = _header_lines(node)
        for operator, replacement in _replacements(node, place, outside=self._function is None, is_text=self._is_text):
            yield self._mutant(node, place, operator, replacement)
        is_text, self._is_text = self._is_text, self._is_text or isinstance(node, (ast.Raise, ast.JoinedStr))
        yield from self._children(node, "annotation")
        self._lines, self._is_text = lines, is_text

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[Mutant]:
        if node.name in _TEXT_METHODS:
            return
        self._scopes.append(node.name)
        if isinstance(node, ast.ClassDef):
            yield from self._children(node, "decorator_list")
        else:
            function, lines = self._function, self._lines
            self._lines = _header_lines(node)
            yield from self._children(node.args, "args", "posonlyargs", "kwonlyargs", "vararg", "kwarg")
            first_line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            self._function = function or (".".join(self._scopes), first_line)
            yield from self._children(node, "args", "decorator_list", "returns")
            self._function, self._lines = function, lines
        self._scopes.pop()

    def _mutant(
        self, node: ast.AST, place: tuple[ast.AST, str, int | None], operator: str, replacement: ast.AST
    ) -> Mutant:
        ast.fix_missing_locations(ast.copy_location(replacement, node))
        function, first_line = self._function or ("", 0)
        line: int = getattr(node, "lineno", 0)
        change = f"{_text(node)} -> {_text(replacement)}"
        return Mutant(
            self._file, line, function, first_line, operator, change, self._lines, self._tree, place, replacement
        )


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."


def _header_lines(node: ast.stmt | ast.ExceptHandler | ast.match_case) -> frozenset[int]:
    body: list[ast.stmt] = getattr(node, "body", [])
    first: int = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
    if body:
        return frozenset(range(first, max(first, body[0].lineno - 1) + 1))
    return frozenset(range(first, (getattr(node, "end_lineno", None) or first) + 1))


def _is_ignored(node: ast.AST) -> bool:
    if isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return True
        return isinstance(node.value, ast.Call) and _is_log(node.value.func)
    return False


def _is_log(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute):
        return False
    is_logger = function.attr in _LOG_METHODS and "log" in ast.unparse(function.value).lower()
    return is_logger or function.attr.startswith("_log")


def _replacements(
    node: ast.AST, place: tuple[ast.AST, str, int | None], *, outside: bool, is_text: bool
) -> Iterator[tuple[str, ast.AST]]:
    """Return the names of the operators that apply to a part, each with what it puts there."""
    if isinstance(node, ast.stmt):
        yield from () if outside else _of_statement(node)
    elif isinstance(node, ast.Constant):
        if not (is_text or _is_prose(node.value) or (outside and _is_tuned(node.value))):
            yield from _of_constant(node)
    elif isinstance(node, ast.expr):
        if not (outside and isinstance(node, ast.BinOp)):  # there it joins types, or computes a size
            yield from _of_expression(node)
        parent, field, _ = place
        is_condition = field == "test" or (isinstance(parent, ast.comprehension) and field == "ifs")
        if is_condition and not isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            yield "condition", ast.UnaryOp(ast.Not(), node)


def _is_prose(value: object) -> bool:
    """Whether a constant is a text for people, as the detail of a log line: a name has no space."""
    return isinstance(value, str) and " " in value


def _is_tuned(value: object) -> bool:
    """Whether a constant outside of functions is a name, a size or a time: a little more of it changes no decision."""
    return not isinstance(value, (int, float)) or abs(value) > _LARGEST_DECIDING


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Return):
        if node.value is not None and not isinstance(node.value, ast.Constant):
            yield "return", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Break):
        yield "loop", ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "loop", ast.Break()
    elif isinstance(node, ast.AugAssign):
        yield "arithmetic", ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)
        yield "delete", ast.Pass()
    elif _is_effect(node):
        yield "delete", ast.Pass()


def _is_effect(node: ast.stmt) -> bool:
    """Whether a statement can be left out, and the names of its function are still there."""
    if isinstance(node, ast.Expr):
        # Without `super()` the function would have no cell `__class__`: its code could not be exchanged.
        return not isinstance(node.value, (ast.Yield, ast.YieldFrom)) and "super()" not in ast.unparse(node)
    if isinstance(node, ast.Assign):
        parts = (part for target in node.targets for part in ast.walk(target))
        return not any(isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) for part in parts)
    if isinstance(node, ast.AnnAssign):
        return node.value is not None and not isinstance(node.target, ast.Name)
    return isinstance(node, (ast.Delete, ast.Raise))


def _of_constant(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "boolean", ast.Constant(not value)
    elif isinstance(value, (int, float)):
        yield "number", ast.Constant(value + 1)
    elif isinstance(value, str):
        yield "text", ast.Constant(f"XX{value}")
    elif isinstance(value, bytes):
        yield "text", ast.Constant(b"XX" + value)


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            operators = [*node.ops[:index], _COMPARISONS[type(operator)](), *node.ops[index + 1 :]]
            yield "comparison", ast.Compare(node.left, operators, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "logic", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, (ast.Not, ast.USub)):
            yield "sign" if isinstance(node.op, ast.USub) else "condition", node.operand
    elif isinstance(node, ast.BinOp):
        if type(node.op) in _ARITHMETIC and not isinstance(node.left, (ast.JoinedStr, ast.List)):
            yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED_CALLS:
        swapped = ast.Name(_SWAPPED_CALLS[node.func.id], ast.Load())
        yield "call", ast.Call(swapped, node.args, node.keywords)
