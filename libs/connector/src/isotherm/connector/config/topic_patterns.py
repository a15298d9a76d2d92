"""Topics that a `topics.regex` matches: as in Kafka Connect, the whole name must match. Pure.

librdkafka's own patterns are POSIX expressions. They do not know `\\d` and match nothing, without an error. Names are
therefore matched here. Everything of Java's syntax (java.util.regex.Pattern) that Python's `re` shares is accepted; the
rest is an error when the task starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from isotherm.connector.java_patterns import JavaPattern

INTERNAL = ("__", "isotherm.")
"""Prefixes of topics that no pattern matches: Kafka's internal topics, the control topics. `topics` may name them."""


def matching(pattern: str, names: Iterable[str], excluded: Collection[str] = ()) -> list[str]:
    """The names that the pattern matches, without internal topics and without `excluded`, in order.

    Raises re.error, and its SlowPatternError for an expression that takes too long.
    """
    matches = JavaPattern(pattern).fullmatch
    return sorted(name for name in names if matches(name) and not name.startswith(INTERNAL) and name not in excluded)
