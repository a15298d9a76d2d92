"""MQTT topic filters as sources of statements (MQTT 5.0 and 3.1.1, section 4.7)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def without_share(topic_filter: str) -> str:
    """A filter without the `$share/<group>/` of a shared subscription (MQTT 5.0, 4.8.2)."""
    if not topic_filter.startswith("$share/"):
        return topic_filter
    parts = topic_filter.split("/", 2)
    return parts[2] if len(parts) == 3 else topic_filter


@lru_cache(maxsize=1024)
def _levels(topic_filter: str) -> tuple[str, ...]:
    return tuple(without_share(topic_filter).split("/"))


def matches_filter(topic_filter: str, topic: str) -> bool:
    """Whether an MQTT topic name matches a topic filter; `$share/<group>/` is ignored. See `matches_levels`.

    Args:
        topic_filter: a filter.
        topic: the topic name of a message, without wildcards.
    """
    return matches_levels(_levels(topic_filter), topic.split("/"))


def matches_levels(pattern: Sequence[str], levels: Sequence[str]) -> bool:
    """Whether the levels of a topic name match those of a topic filter.

    `+` matches one level, a last `#` any number of levels and its parent level. Neither matches the first level of a
    topic that begins with `$` (MQTT 5.0, 4.7.2).

    Args:
        pattern: the filter's levels; a wildcard that does not fill its level, or a `#` before the end, is plain text.
        levels: the levels of a message's topic name, without wildcards.
    """
    if levels[0].startswith("$") and pattern[0] in ("+", "#"):
        return False
    last = len(pattern) - 1
    for i, level in enumerate(pattern):
        if level == "#" and i == last:
            return True
        if i >= len(levels) or level not in ("+", levels[i]):
            return False
    return len(levels) == len(pattern)
