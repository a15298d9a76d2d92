"""Which topics a `topics.regex` means, as Kafka Connect has it: those whose whole name matches. Pure.

The client's own patterns are POSIX expressions, which know no `\\d` and match nothing then, without an error; so the
names are matched here. Of Java's syntax (java.util.regex.Pattern) everything is taken that Python's `re` has too; the
rest is an error at the start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

INTERNAL = ("__", "isotherm.")
"""Beginnings of topics that no pattern means: Kafka's own and the control topics. `topics` may name them."""


_TOKENS = re.compile(r"\\.|\[\^?|&&|.", re.DOTALL)
"""Of an expression: what is escaped, the beginning of a set, an intersection, any other character."""


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, with classes as Java has them (`\\d` is 0 to 9).

    Raises re.error, also for sets within sets and their intersections, which both take and only Java means.
    """
    _refuse_nested_sets(pattern)
    try:
        return re.compile(pattern, re.ASCII)
    except (ValueError, OverflowError, RecursionError) as error:
        # What Python says of flags that exclude each other, and of numbers that are too large.
        raise re.error(str(error)) from error


def _refuse_nested_sets(pattern: str) -> None:
    """`[a-z&&[^b]]` and `[a[bc]]` would be sets of other characters, and a bracket, in Python."""
    is_in_set = False
    for part in _TOKENS.findall(pattern):
        if is_in_set and (part == "&&" or part[0] == "["):
            raise re.error(f"{part!r} in a set of characters")
        is_in_set = part[0] == "[" or (is_in_set and part != "]")


def matching(pattern: str, names: Iterable[str], excluded: Collection[str] = ()) -> list[str]:
    """The topics among `names` that the pattern means, without internal ones and `excluded`, in order.

    Raises re.error.
    """
    matches = compiled(pattern).fullmatch
    return sorted(name for name in names if matches(name) and not name.startswith(INTERNAL) and name not in excluded)
