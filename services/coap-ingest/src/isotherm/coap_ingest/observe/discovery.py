"""Which of a server's resources are observed: its list of links (RFC 6690), the filters and the patterns of FROM."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from isotherm.coap_ingest.coap.resource import Resource, Server

WELL_KNOWN = ".well-known"

_LINK = re.compile(r"\s*<([^<>]*)>((?:\s*;\s*[^\s=;,]+(?:=(?:\"(?:\\.|[^\"\\])*\"|[^\s;,\"]*))?)*)\s*(?:,|$)")
_ATTRIBUTE = re.compile(r";\s*([^\s=;,]+)(?:=(?:\"((?:\\.|[^\"\\])*)\"|([^\s;,\"]*)))?")


@dataclass(frozen=True, slots=True)
class Link:
    """One resource as its server describes it; `types` is `rt`, `interfaces` is `if`, both split at blanks."""

    target: str
    types: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    is_observable: bool = False


@dataclass(frozen=True, slots=True)
class Filters:
    """What a discovered resource must be; empty means any. A value may end with `*` (RFC 6690 section 4.1)."""

    types: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    observable_only: bool = True

    def pass_(self, link: Link) -> bool:
        """Whether a link has one of the types, one of the interfaces, and can be observed where it must be."""
        if self.observable_only and not link.is_observable:
            return False
        return _has_one(link.types, self.types) and _has_one(link.interfaces, self.interfaces)


def _has_one(said: Iterable[str], wanted: tuple[str, ...]) -> bool:
    if not wanted:
        return True
    said = tuple(said)
    exact = {value for value in wanted if not value.endswith("*")}
    prefixes = tuple(value[:-1] for value in wanted if value.endswith("*"))
    return any(value in exact or (prefixes and value.startswith(prefixes)) for value in said)


def parse_links(text: str) -> list[Link]:
    """The links of a link-format document (RFC 6690 section 2).

    Raises ValueError naming where it stops being one.
    """
    links, position = [], 0
    while position < len(text):
        match = _LINK.match(text, position)
        if match is None:
            raise ValueError(f"no link at character {position}: {text[position : position + 40]!r}")
        position = match.end()
        links.append(_link(match[1], match[2]))
    return links


def _link(target: str, attributes: str) -> Link:
    said: dict[str, str] = {}
    for name, quoted, token in _ATTRIBUTE.findall(attributes):
        # The first one counts (RFC 6690 section 3).
        said.setdefault(name, re.sub(r"\\(.)", r"\1", quoted) if quoted else token)
    return Link(target, tuple(said.get("rt", "").split()), tuple(said.get("if", "").split()), "obs" in said)


def resource_of(server: Server, link: Link) -> Resource | None:
    """The resource of `server` that a link names; None for another server's, and for the list itself."""
    try:
        parts = urlsplit(link.target)
        path = tuple(unquote(segment, errors="strict") for segment in parts.path.removeprefix("/").split("/"))
        query = tuple(unquote(part, errors="strict") for part in parts.query.split("&")) if parts.query else ()
    except (UnicodeDecodeError, ValueError):
        return None
    if parts.scheme or parts.netloc or not parts.path.startswith("/") or path[0] == WELL_KNOWN or not all(path):
        return None
    return Resource(server, path, query)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A FROM that names many resources: `*` alone is every one, else each `*` stands for a part of one segment."""

    text: str

    def matches(self, path: tuple[str, ...]) -> bool:
        """Whether a resource with this path is meant."""
        if self.text == "*":
            return True
        wanted = self.text.removeprefix("/").split("/")
        return len(wanted) == len(path) and all(map(_segment_matches, wanted, path))


def _segment_matches(wanted: str, segment: str) -> bool:
    expression = ".*".join(re.escape(unquote(part)) for part in wanted.split("*"))
    return re.fullmatch(expression, segment, re.DOTALL) is not None


def is_pattern(source: str) -> bool:
    """Whether FROM names many resources."""
    return "*" in source.partition("?")[0]
