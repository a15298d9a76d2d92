"""The link format in which a CoAP server lists its resources (RFC 6690). Pure functions."""

from __future__ import annotations

import re
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


def parse_links(text: str) -> list[Link]:
    """Parse a link-format document (RFC 6690 section 2).

    Raises ValueError, which names the character where the document stops being valid.
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
    values: dict[str, str] = {}
    for name, quoted, token in _ATTRIBUTE.findall(attributes):
        # Of a repeated attribute the first one counts (RFC 6690 section 3).
        values.setdefault(name, re.sub(r"\\(.)", r"\1", quoted) if quoted else token)
    return Link(target, tuple(values.get("rt", "").split()), tuple(values.get("if", "").split()), "obs" in values)


def resource_of(server: Server, link: Link) -> Resource | None:
    """Return the resource of `server` that `link` names; None for another server's resource and for the list itself."""
    try:
        parts = urlsplit(link.target)
        path = tuple(unquote(segment, errors="strict") for segment in parts.path.removeprefix("/").split("/"))
        query = tuple(unquote(part, errors="strict") for part in parts.query.split("&")) if parts.query else ()
    except (UnicodeDecodeError, ValueError):
        return None
    if parts.scheme or parts.netloc or not parts.path.startswith("/") or path[0] == WELL_KNOWN or not all(path):
        return None
    return Resource(server, path, query)
