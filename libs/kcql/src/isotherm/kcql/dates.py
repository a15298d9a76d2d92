"""Date patterns in braces, such as `-{YYYY.MM.DD}`, filled from an event time in UTC."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXPECTED = "YYYY, MM, DD, HH, mm or ss with separators between them in the braces"

_WORD = re.compile(r"YYYY|yyyy|MM|DD|dd|HH|mm|ss")
_FORMATS: dict[str, str] = {
    "YYYY": "{0.year:04d}",
    "yyyy": "{0.year:04d}",
    "MM": "{0.month:02d}",
    "DD": "{0.day:02d}",
    "dd": "{0.day:02d}",
    "HH": "{0.hour:02d}",
    "mm": "{0.minute:02d}",
    "ss": "{0.second:02d}",
}
_SECONDS = {"HH": 3600, "mm": 60, "ss": 1}
_DAY_MS = 86_400_000
_MILLISECOND = timedelta(milliseconds=1)


class BadPattern(ValueError):
    """KCQL refuses the date pattern; `start` and `end` bound the wrong part of it."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


class DatePattern(NamedTuple):
    """A checked suffix: the template that a datetime fills, and the time span in which the result stays the same."""

    template: str
    granularity_ms: int | None
    """None when the suffix holds no date."""


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> DatePattern:
    """Check a suffix with its date groups.

    Raises:
        BadPattern: a single brace, an empty group, or anything in the braces that is not a date word.
    """
    template: list[str] = []
    granularity_ms: int | None = None
    at = 0
    while at < len(text):
        if text[at] == "}":
            raise BadPattern('a "}" without its "{"', at, at + 1)
        if text[at] != "{":
            template.append(text[at])
            at += 1
            continue
        end = text.find("}", at)
        if end < 0 or "{" in text[at + 1 : end]:
            raise BadPattern('a "{" without its "}"', at, at + 1)
        for piece, step_ms in _group(text, at + 1, end):
            template.append(piece)
            granularity_ms = min(step_ms, granularity_ms or _DAY_MS)
        at = end + 1
    return DatePattern("".join(template), granularity_ms)


def _group(text: str, start: int, end: int) -> list[tuple[str, int]]:
    if start == end:
        raise BadPattern("an empty date pattern", start - 1, end + 1)
    pieces: list[tuple[str, int]] = []
    at = start
    while True:
        word = _WORD.match(text, at, end)
        if at == end:
            raise BadPattern(f'"{text[start:end]}" ends with a separator', start, end)
        if word is None:
            wrong_end = next((i for i in range(at, end) if not text[i].isalnum()), end)
            wrong_end = max(wrong_end, min(at + 1, end))
            raise BadPattern(f'"{text[at:wrong_end] or text[start:end]}" in a date pattern', at, wrong_end)
        pieces.append((_FORMATS[word[0]], _SECONDS.get(word[0], 86_400) * 1000))
        at = word.end()
        if at == end:
            return pieces
        separator_end = at
        while separator_end < end and not text[separator_end].isalnum():
            separator_end += 1
        pieces.append((text[at:separator_end], _DAY_MS))
        at = separator_end


def utc(event_time: int | datetime) -> datetime:
    """An event time, epoch milliseconds or a datetime (UTC when it names no zone), as a datetime in UTC.

    Raises:
        OverflowError: the time is outside the years 1 to 9999.
    """
    if isinstance(event_time, datetime):
        return event_time.replace(tzinfo=UTC) if event_time.tzinfo is None else event_time.astimezone(UTC)
    return EPOCH + timedelta(milliseconds=event_time)


def epoch_ms(event_time: int | datetime) -> int:
    """An event time as whole milliseconds since 1970-01-01 UTC, rounded down."""
    if not isinstance(event_time, datetime):
        return event_time
    aware = event_time if event_time.tzinfo is not None else event_time.replace(tzinfo=UTC)
    return (aware - EPOCH) // _MILLISECOND


def format_suffix(pattern: str, event_time_ms: int | datetime) -> str:
    """Fill the date groups of a suffix such as `-{YYYY.MM.DD}` from an event time, in UTC.

    Args:
        pattern: a suffix as WITHINDEXSUFFIX takes it.
        event_time_ms: epoch milliseconds or a datetime.

    Raises:
        BadPattern: KCQL refuses the pattern.
        OverflowError: the time is outside the years 1 to 9999.
    """
    return compile_pattern(pattern).template.format(utc(event_time_ms))


def suffix_formatter(pattern: str, name: str = "") -> Callable[[int | datetime], str]:
    """`format_suffix` for many records, with `name` before it; it formats once for each day (hour, ...)."""
    compiled = compile_pattern(pattern)
    granularity_ms = compiled.granularity_ms or _DAY_MS

    @lru_cache(maxsize=64)
    def fill(step: int) -> str:
        return name + compiled.template.format(utc(step * granularity_ms))

    def formatted(event_time: int | datetime) -> str:
        return fill((event_time if type(event_time) is int else epoch_ms(event_time)) // granularity_ms)

    return formatted
