"""The patterns of LIKE, matched in a time that grows with the product of the lengths of text and pattern.

Devices choose the texts, and a regular expression of several `.*` takes a time that grows with a power of the text's
length.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Piece = list[str | None]
"""A part of a pattern between two `%`; None stands for any one character."""


def like_matcher(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """The function that tells whether a whole text matches a pattern of SQL's LIKE; case counts.

    Args:
        pattern: `%` stands for any text, also the empty one, `_` for any one character.
        escape: the character before a `%`, `_` or itself that stands for that character; None for no escapes.
    """
    pieces = _pieces(pattern, escape)
    if len(pieces) == 1:
        return _exact(pieces[0])
    head, tail = _exact(pieces[0]), _exact(pieces[-1])
    first, last = len(pieces[0]), len(pieces[-1])
    finders = [(_finder(piece), len(piece)) for piece in pieces[1:-1] if piece]

    def matches(text: str) -> bool:
        end = len(text) - last
        if end < first or not head(text[:first]) or not tail(text[end:]):
            return False
        at = first
        for find, length in finders:
            # The leftmost place leaves the most room for what follows.
            found = find(text, at, end)
            if found < 0:
                return False
            at = found + length
        return True

    return matches


def _pieces(pattern: str, escape: str | None) -> list[Piece]:
    pieces: list[Piece] = [[]]
    chars = iter(pattern)
    for char in chars:
        if char == escape:
            pieces[-1].append(next(chars, char))
        elif char == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if char == "_" else char)
    return pieces


def _exact(piece: Piece) -> Callable[[str], bool]:
    if None not in piece:
        return "".join(filter(None, piece)).__eq__
    expression = _expression(piece)
    return lambda text: expression.fullmatch(text) is not None


def _finder(piece: Piece) -> Callable[[str, int, int], int]:
    if None not in piece:
        wanted = "".join(filter(None, piece))
        return lambda text, start, end: text.find(wanted, start, end)
    expression = _expression(piece)

    def find(text: str, start: int, end: int) -> int:
        found = expression.search(text, start, end)
        return -1 if found is None else found.start()

    return find


def _expression(piece: Piece) -> re.Pattern[str]:
    return re.compile("".join("." if char is None else re.escape(char) for char in piece), re.DOTALL)
