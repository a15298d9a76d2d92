"""Patterns of resource paths, as KCQL's FROM and access rules write them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """A pattern of paths: `*` alone matches every path, any other `*` matches a part of one segment."""

    text: str

    def matches(self, path: tuple[str, ...]) -> bool:
        """Return whether the pattern matches a path of decoded segments."""
        if self.text == "*":
            return True
        segments = self.text.removeprefix("/").split("/")
        return len(segments) == len(path) and all(map(_segment_matches, segments, path))


def _segment_matches(pattern: str, segment: str) -> bool:
    # A regular expression takes time that is a power of the number of `*`.
    first, *others = (unquote(part) for part in pattern.split("*"))
    if not others:
        return segment == first
    *inner, last = others
    at, end = len(first), len(segment) - len(last)
    if at > end or not segment.startswith(first) or not segment.endswith(last):
        return False
    for part in inner:
        found = segment.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def is_pattern(source: str) -> bool:
    """Return whether FROM names many resources."""
    return "*" in source.partition("?")[0]
