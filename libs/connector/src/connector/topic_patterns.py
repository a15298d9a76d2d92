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


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, with classes as Java has them (`\\d` is 0 to 9). Raises re.error."""
    return re.compile(pattern, re.ASCII)


def matching(pattern: str, names: Iterable[str], excluded: Collection[str] = ()) -> list[str]:
    """The topics among `names` that the pattern means, without internal ones and `excluded`, in order.

    Raises re.error.
    """
    matches = compiled(pattern).fullmatch
    return sorted(name for name in names if matches(name) and not name.startswith(INTERNAL) and name not in excluded)
