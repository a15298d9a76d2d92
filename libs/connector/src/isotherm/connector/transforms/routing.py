"""RegexRouter and TimestampRouter: the topic that the sink sees."""

from __future__ import annotations

import re
from collections.abc import Callable

import regex

from isotherm.connector.java_patterns import JavaPattern, SlowPatternError
from isotherm.connector.transforms.date_format import DateFormat
from isotherm.connector.transforms.message import Message, Transform, TransformError

_REPLACEMENT = re.compile(r"\\(.)|\$(\d+)|\$\{(\w+)\}|([\\$])", re.DOTALL)


def regex_router(pattern: JavaPattern, replacement: str) -> Transform:
    """RegexRouter: in the name of a topic that matches as a whole, the replacement takes the place of the first match.

    That match is found anew, as by Java's `replaceFirst`, so an expression that can match less leaves the rest.
    """
    name_of = _replacement(pattern, replacement)
    matches = topic_name_matches(pattern)

    def apply(message: Message) -> Message:
        topic = message.topic
        try:
            found = pattern.search(topic) if matches(message) else None
        except SlowPatternError as error:
            raise TransformError(str(error)) from error
        if found is None:
            return message
        return message._replace(topic=topic[: found.start()] + name_of(found) + topic[found.end() :])

    return apply


def topic_name_matches(pattern: JavaPattern) -> Callable[[Message], bool]:
    """TopicNameMatches: whether the whole name of the record's topic matches."""

    def matches(message: Message) -> bool:
        try:
            return pattern.fullmatch(message.topic) is not None
        except SlowPatternError as error:
            raise TransformError(str(error)) from error

    return matches


def _replacement(pattern: JavaPattern, text: str) -> Callable[[regex.Match[str]], str]:
    """The function that fills a replacement of Java's (`$1`, `${name}`, `\\` before a plain character).

    Raises ValueError for a group that the pattern does not have.
    """
    parts: list[str | int] = []
    end = 0
    for found in _REPLACEMENT.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        if found[4]:
            raise ValueError(f"the replacement {text!r} has a {found[4]!r} without a group or character")
        if found[1]:
            parts.append(found[1])
        elif found[3]:
            if found[3] not in pattern.groupindex:
                raise ValueError(f"the replacement {text!r} names the group {found[3]!r}, which the expression lacks")
            parts.append(pattern.groupindex[found[3]])
        else:
            group, rest = _longest_group(found[2], pattern.groups)
            if group > pattern.groups:
                raise ValueError(f"the replacement {text!r} names the group {group}; there are {pattern.groups}")
            parts += [group, rest]
    parts.append(text[end:])
    return lambda found: "".join(part if isinstance(part, str) else found[part] or "" for part in parts)


def _longest_group(digits: str, groups: int) -> tuple[int, str]:
    """Java takes further digits as long as there is such a group: `$12` with two groups is group 1 and a 2."""
    used = 1
    while used < len(digits) and int(digits[: used + 1]) <= groups:
        used += 1
    return int(digits[:used]), digits[used:]


def timestamp_router(topic_format: str, timestamp_format: DateFormat) -> Transform:
    """TimestampRouter: the topic's name made of the topic and the record's timestamp."""

    def apply(message: Message) -> Message:
        topic = topic_format.replace("${topic}", message.topic)
        return message._replace(topic=topic.replace("${timestamp}", timestamp_format.format(message.timestamp_ms)))

    return apply
