"""The nodes of lark's tree, and the pieces of text that its tokens stand for."""

from __future__ import annotations

from lark import Token, Tree

from isotherm.kcql.syntax.names import Lexeme

Node = Tree[Token]
Child = Token | Node | None


def lexeme_of(text: str, child: Child) -> Lexeme:
    """The piece of the whole text that a token stands for."""
    assert isinstance(child, Token)
    start = child.start_pos or 0
    return Lexeme(text, start, start + len(child))
