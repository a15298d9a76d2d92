"""Regular expressions in Java's syntax (java.util.regex.Pattern), as far as Python's `re` shares it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

import regex

MATCH_TIMEOUT_S = 0.02
"""Processor time of the process that one match may take. A name of 249 letters takes some microseconds."""
MOST_REPEATED = 1_000
"""How many items repetitions with braces may stand for together, those inside others multiplied. Names have 249
letters; `regex` writes all items out, with the interpreter held."""
MOST_LETTERS = 8_192
_TRIES = 2
"""A match is tried again, because the time counts all threads."""

_TOKENS = re.compile(r"\\.|\[\^?|&&|\{\d+(?:,\d*)?\}|.", re.DOTALL)
"""Parts of an expression: an escaped character, the start of a set, an intersection, a repetition, any other
character."""


class SlowPatternError(re.error):
    """A match takes longer than MATCH_TIMEOUT_S, as `(a|a)+` may: both Java and Python try every way through it."""


class JavaPattern:
    """A compiled expression, with Java's character classes (`\\d` is 0 to 9), whose matches end in bounded time."""

    def __init__(self, pattern: str) -> None:
        """Compile the expression.

        Raises re.error, also for what Python accepts with another meaning (nested sets, intersections of sets and
        braces that are no repetition) and for more than MOST_REPEATED or MOST_LETTERS.
        """
        if len(pattern) > MOST_LETTERS:
            raise re.error(f"{len(pattern)} letters; allowed: {MOST_LETTERS}")
        _refuse_other_meanings(pattern)
        _refuse_long_repetitions(pattern)
        try:
            # `re` decides what is accepted; `regex` has more syntax than Java shares.
            re.compile(pattern, re.ASCII)
            self._pattern = regex.compile(pattern, regex.ASCII | regex.VERSION0)
        except (ValueError, OverflowError, RecursionError, MemoryError, regex.error) as error:
            # Python raises these for flags that exclude each other and for numbers that are too large.
            raise re.error(str(error)) from error
        self.groups = self._pattern.groups
        self.groupindex = self._pattern.groupindex

    def fullmatch(self, text: str) -> regex.Match[str] | None:
        """Return the match of the whole text. Raises SlowPatternError."""
        return self._in_time(self._pattern.fullmatch, text)

    def search(self, text: str) -> regex.Match[str] | None:
        """Return the first match in the text. Raises SlowPatternError."""
        return self._in_time(self._pattern.search, text)

    def _in_time(self, match: Callable[..., regex.Match[str] | None], text: str) -> regex.Match[str] | None:
        for _ in range(_TRIES):
            try:
                return match(text, timeout=MATCH_TIMEOUT_S)
            except TimeoutError:
                continue
        raise SlowPatternError(
            f"{self._pattern.pattern!r} takes more than {MATCH_TIMEOUT_S * 1000:.0f} ms on {text[:249]!r}"
        )


def _refuse_other_meanings(pattern: str) -> None:
    """Refuse `[a-z&&[^b]]`, `[a[bc]]` and `a{e}`: in Python they match other characters than in Java."""
    is_in_set = False
    for part in _TOKENS.findall(pattern):
        if is_in_set and (part == "&&" or part[0] == "["):
            raise re.error(f"{part!r} in a set of characters")
        if not is_in_set and part == "{":
            raise re.error("a brace that begins no repetition; expected \\{ for the character")
        is_in_set = part[0] == "[" or (is_in_set and part != "]")


def _refuse_long_repetitions(pattern: str) -> None:
    repeated, is_in_set = 0, False
    last = 1
    """How many items the one before a repetition stands for."""
    groups: list[int] = []
    """Of each open group the items so far."""
    for part in _TOKENS.findall(pattern):
        if is_in_set:
            is_in_set = part != "]"
            continue
        if part[0] == "{":
            bound = max(int(digits[:9]) for digits in re.findall(r"\d+", part))
            repeated += last * bound
            last *= bound
            if repeated > MOST_REPEATED:
                raise re.error(f"repetitions stand for more than {MOST_REPEATED} items")
        elif part == "(":
            groups.append(0)
            continue
        elif part == ")":
            last = 1 + (groups.pop() if groups else 0)
        elif part not in "*+?":
            is_in_set, last = part[0] == "[", 1
        if groups:
            groups[-1] += last
