"""Ids of several parts as one text; different parts never give the same id.

The first part is not encoded. In every later part, `%` and each character of the separator are percent-encoded (RFC
3986, 2.1). An id can therefore be split from its end: the last part follows the last separator, and so on; the rest is
the first part. When no later part holds such a character, the id is the plain parts with the separator between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_OF_ENCODING = frozenset("%0123456789ABCDEF")
EMPTY = "%"
"""Stands for an empty text, because nothing stands for a null. An encoded part is never a single `%`."""


def separator_problem(separator: str) -> str | None:
    """Why a separator is not allowed; None when it is."""
    if separator and _OF_ENCODING.isdisjoint(separator):
        return None
    return f"{separator!r} is not allowed; expected one or more characters other than %, 0-9 and A-F, which encode it"


def part_encoder(separator: str) -> Callable[[str], str]:
    """The function that percent-encodes a later part.

    Raises:
        ValueError: the separator is not allowed; see `separator_problem`.
    """
    problem = separator_problem(separator)
    if problem is not None:
        raise ValueError(f"separator: {problem}")
    special = re.compile(f"[%{re.escape(separator)}]")
    return lambda part: special.sub(_percent_encoded, part)


def joiner(separator: str) -> Callable[[Sequence[str]], str]:
    """The function that joins the texts of one or more parts to an id.

    Raises:
        ValueError: the separator is not allowed; see `separator_problem`.
    """
    encode = part_encoder(separator)
    is_single = len(separator) == 1

    def join(parts: Sequence[str]) -> str:
        if len(parts) == 1:
            return parts[0]
        tail = separator.join(parts[1:])
        # Nearly always there is nothing to encode; counting finds this faster than a search in each part.
        if not is_single or "%" in tail or tail.count(separator) != len(parts) - 2:
            tail = separator.join(map(encode, parts[1:]))
        return parts[0] + separator + tail

    return join


def nullable_first(part: str | None) -> str:
    """The text of a first part that may be null: empty for null; a text of only `%` gets one more `%`."""
    if part is None:
        return ""
    return part if part.strip("%") else part + EMPTY


def _percent_encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="surrogatepass"))
