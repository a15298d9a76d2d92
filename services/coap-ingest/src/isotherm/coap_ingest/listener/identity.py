"""The identity policy: where a record's device comes from, and to which paths an identity may send. No IO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from isotherm.coap_ingest.coap.psk import identity_bytes, identity_text
from isotherm.coap_ingest.ingest.resource_pattern import ResourcePattern, is_pattern

IDENTITY_KEY = "connect.coap.listen.identity"
"""The configuration key of the policy, for messages to devices and operators."""

EVERYBODY = "*"
OWN_IDENTITY = "%u"


class IdentityPolicy(Enum):
    """The source of a record's device."""

    PAYLOAD = "payload"
    """The payload; a sender may write in the name of any device."""
    TOPIC = "topic"
    """The path of the request."""
    USER = "user"
    """The identity whose pre-shared key the sender proved."""


def device_of_path(source: str, path: Sequence[str]) -> str | None:
    """Return the device that a path names: the first segment where FROM, `source`, has a `*`, else the last segment.

    Returns None for the root, whose path has no segment.
    """
    segments = source.removeprefix("/").split("/")
    if is_pattern(source) and len(segments) == len(path):
        return next(segment for wanted, segment in zip(segments, path, strict=True) if "*" in wanted)
    return path[-1] if path else None


@dataclass(frozen=True, slots=True)
class PathAcl:
    """The paths to which each identity may send; an identity without a rule may send to none.

    `rules` are pairs of an identity, or EVERYBODY, and a pattern as in FROM. The segment `%u` of a pattern stands for
    the sender's identity.
    """

    rules: tuple[tuple[str, str], ...]

    def permits(self, identity: str, path: tuple[str, ...]) -> bool:
        """Return whether `identity` may send to `path`."""
        return any(who in (EVERYBODY, identity) and _matches(pattern, identity, path) for who, pattern in self.rules)


def _matches(pattern: str, identity: str, path: tuple[str, ...]) -> bool:
    segments = pattern.removeprefix("/").split("/")
    if OWN_IDENTITY not in segments:
        return ResourcePattern(pattern).matches(path)
    if len(segments) != len(path):
        return False
    # Compared segment by segment, so that an identity with a `*` or a `/` in it matches nothing else.
    pairs = zip(segments, path, strict=True)
    return all(
        found == identity if allowed == OWN_IDENTITY else ResourcePattern(allowed).matches((found,))
        for allowed, found in pairs
    )


def parse_acl(text: str) -> PathAcl:
    """Parse rules `identity: path, path`, separated by `;` or line ends.

    An identity contains no colon, or is hexadecimal digits after `hex:`, as in the list of keys.

    Raises ValueError, which names the rule by its number.
    """
    rules: list[tuple[str, str]] = []
    for number, rule in enumerate(filter(None, (part.strip() for part in re.split(r"[;\n]", text))), start=1):
        found = re.fullmatch(r"((?:hex:)?[^:]+):(.+)", rule)
        if found is None:
            raise ValueError(f"rule {number} is not identity: path, path")
        try:
            identity = identity_text(identity_bytes(found[1].strip()))
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from None
        for path in (part.strip() for part in found[2].split(",")):
            segments = path.removeprefix("/").split("/")
            if not all(segments):
                raise ValueError(f"rule {number}: {path!r} has an empty segment")
            if any(OWN_IDENTITY in segment and segment != OWN_IDENTITY for segment in segments):
                raise ValueError(f"rule {number}: {path!r}: {OWN_IDENTITY} must be a whole segment")
            rules.append((identity, path))
    if not rules:
        raise ValueError("names no path; expected identity: path, path, separated by semicolons")
    return PathAcl(tuple(rules))
