"""Topics that a `topics.regex` matches: as in Kafka Connect, the whole name must match. Pure.

librdkafka's own patterns are POSIX expressions. They do not know `\\d` and match nothing, without an error. Names are
therefore matched here. Everything of Java's syntax (java.util.regex.Pattern) that Python's `re` shares is accepted; the
rest is an error when the task starts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

INTERNAL = ("__", "isotherm.")
"""Prefixes of topics that no pattern matches: Kafka's internal topics, the control topics. `topics` may name them."""


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


def matching(pattern: str, names: Iterable[str], excluded: Collection[str] = ()) -> list[str]:
    """The names that the pattern matches, without internal topics and without `excluded`, in order.

    Raises re.error.
    """
    matches = compiled(pattern).fullmatch
    return sorted(name for name in names if matches(name) and not name.startswith(INTERNAL) and name not in excluded)
