"""Parses KCQL text to statements."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from isotherm.kcql.errors import error_at
from isotherm.kcql.model import Statement
from isotherm.kcql.syntax.builder import build_statement
from isotherm.kcql.syntax.expectations import refuse_unexpected
from isotherm.kcql.syntax.nodes import Node

MAX_CHARS = 64 * 1024
"""Maximum length of the statements of one text; that many take about a second."""

_cache_file: Path | None = None


def cache_grammar(file: Path) -> None:
    """Load the compiled grammar from `file`, and write the file if it is missing or outdated.

    Compiling takes about 60 ms of processor time, which matters to a command that runs for a moment. Call this before
    the first `parse`. The file is a pickle, so nobody but the user may be able to write to its folder. lark compares
    the file with the grammar, its options and its own version.
    """
    global _cache_file
    _cache_file = file
    _grammar.cache_clear()


@cache
def _grammar() -> Lark:
    return Lark.open(
        "kcql.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="contextual",
        propagate_positions=True,
        cache=False if _cache_file is None else str(_cache_file),
    )


def parse(text: str) -> tuple[Statement, ...]:
    """Read one or more KCQL statements, separated by `;`.

    Args:
        text: the statements; keywords in any case, comments from `--` to the end of the line.

    Raises:
        KcqlError: the text is not KCQL; its `str()` marks the place with a caret.
    """
    if len(text) > MAX_CHARS:
        message = f"the text has {len(text)} characters"
        raise error_at(text, MAX_CHARS, MAX_CHARS + 1, message, expected=f"at most {MAX_CHARS} characters")
    session: Any = _grammar().parse_interactive(text)
    last: Token | None = None
    try:
        for token in session.iter_parse():
            last = token
    except UnexpectedInput as error:
        position: Any = error.pos_in_stream  # declared as None in lark, always a number here
        raise refuse_unexpected(text, position, last, session.accepts()) from None
    try:
        tree: Node = session.feed_eof(last)
    except UnexpectedInput:
        # The end has reduced the parser's stack as far as it goes: ask a session that has not seen it.
        before: Any = _grammar().parse_interactive(text)
        before.exhaust_lexer()
        raise refuse_unexpected(text, len(text), last, before.accepts()) from None
    return tuple(build_statement(text, child) for child in tree.children if isinstance(child, Tree))
