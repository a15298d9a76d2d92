"""Names of dead-letter topics: the one that a configuration names, and the ones that it must not name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from isotherm.connector.java_patterns import JavaPattern, SlowPatternError

SUFFIX = ".dead-letters"
"""End of the name of a dead-letter topic for which the configuration says no name."""
NAME_KEYS = ("errors.deadletterqueue.topic.name", "dead.letters.topic")
ENABLE_KEYS = ("errors.deadletterqueue.enable", "dead.letters")
_RESERVED = ("isotherm.", "__")
"""Prefixes of the control topics, whose records workers act on, and of Kafka's internal topics."""


def may_hold_dead_letters(topic: str) -> bool:
    """Whether a topic of this name may hold dead-letter records."""
    return not topic.startswith(_RESERVED)


def dead_letter_topic(connector: str, config: Mapping[str, str]) -> str:
    """The dead-letter topic of a connector's configuration as written; empty when dead letters are not enabled."""
    named = next((config[key] for key in NAME_KEYS if config.get(key)), "")
    is_enabled = any(config.get(key, "").lower() == "true" for key in ENABLE_KEYS)
    return named or (f"{connector}{SUFFIX}" if is_enabled else "")


def forbidden_reason(topic: str, read: Sequence[str], pattern: str) -> str | None:
    """Why `topic` must not hold the connector's dead-letter records; None when it may.

    `read` are the topics that the connector reads, `pattern` is its `topics.regex` (empty when it has none).
    """
    if not may_hold_dead_letters(topic):
        return (
            f"{topic!r} is not allowed: topics {' and '.join(f'{one}*' for one in _RESERVED)} are not for dead letters"
        )
    if topic in read or (pattern and _matches(pattern, topic)):
        return f"{topic!r} is not allowed: the connector reads it itself, and would get each dead letter again"
    return None


def _matches(pattern: str, topic: str) -> bool:
    try:
        return JavaPattern(pattern).fullmatch(topic) is not None
    except SlowPatternError:
        # Nobody knows, and each dead letter might come back.
        return True
    except re.error:
        return False
