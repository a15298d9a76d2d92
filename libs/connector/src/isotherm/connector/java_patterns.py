"""Regular expressions in Java's syntax (java.util.regex.Pattern), as far as Python's `re` shares it. Pure."""

from __future__ import annotations

import re

_TOKENS = re.compile(r"\\.|\[\^?|&&|.", re.DOTALL)
"""Parts of an expression: an escaped character, the start of a set, an intersection, any other character."""


def compiled(pattern: str) -> re.Pattern[str]:
    """The compiled pattern, with Java's character classes (`\\d` is 0 to 9).

    Raises re.error, also for nested sets and intersections of sets: Python accepts them with another meaning.
    """
    _refuse_nested_sets(pattern)
    try:
        return re.compile(pattern, re.ASCII)
    except (ValueError, OverflowError, RecursionError) as error:
        # Python raises these for flags that exclude each other and for numbers that are too large.
        raise re.error(str(error)) from error


def _refuse_nested_sets(pattern: str) -> None:
    """Refuse `[a-z&&[^b]]` and `[a[bc]]`: in Python they match other characters than in Java."""
    is_in_set = False
    for part in _TOKENS.findall(pattern):
        if is_in_set and (part == "&&" or part[0] == "["):
            raise re.error(f"{part!r} in a set of characters")
        is_in_set = part[0] == "[" or (is_in_set and part != "]")
