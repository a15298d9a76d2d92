"""Which topic a connector's dead letters go into, and which never may: letters hold whatever records held. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NAME_KEYS = ("errors.deadletterqueue.topic.name", "dead.letters.topic")
ENABLE_KEYS = ("errors.deadletterqueue.enable", "dead.letters")
_RESERVED = ("isotherm.", "__")
"""Control topics, which workers obey and which may hold secrets, and Kafka's own."""


def may_hold_letters(topic: str) -> bool:
    """Whether a topic of that name may be a dead-letter topic at all."""
    return not topic.startswith(_RESERVED)


def letter_topic(connector: str, config: Mapping[str, str]) -> str:
    """The topic that a configuration, as written, puts dead letters into; empty when it does not say."""
    named = next((config[key] for key in NAME_KEYS if config.get(key)), "")
    is_enabled = any(config.get(key, "").lower() == "true" for key in ENABLE_KEYS)
    return named or (f"{connector}.dead-letters" if is_enabled else "")


def refusal(topic: str, read: Sequence[str], pattern: str) -> str | None:
    """Why dead letters may not go into `topic`; `read` and `pattern` are the topics that the connector reads itself."""
    if not may_hold_letters(topic):
        return (
            f"{topic!r} is not allowed: topics {' and '.join(f'{one}*' for one in _RESERVED)} are not for dead letters"
        )
    if topic in read or (pattern and _matches(pattern, topic)):
        return f"{topic!r} is not allowed: the connector reads it itself, and would get each dead letter again"
    return None


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:
        return False
