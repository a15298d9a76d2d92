"""Who may write what: where a record's device comes from, and to which paths an identity may send. No IO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from isotherm.coap_ingest.coap.psk import identity_bytes, identity_text
from isotherm.coap_ingest.observe.discovery import Pattern, is_pattern

EVERYBODY = "*"
OWN = "%u"


class IdentityPolicy(Enum):
    """Where the device of a record comes from."""

    PAYLOAD = "payload"
    """From the payload; a sender may write in the name of any device."""
    TOPIC = "topic"
    """From the path that was sent to."""
    USER = "user"
    """From the identity whose pre-shared key the sender has."""


def device_of_path(source: str, path: Sequence[str]) -> str | None:
    """The device that a path names: the first segment for which FROM, `source`, has a `*`; else the last one.

    None for the root, whose path has no segment.
    """
    segments = source.removeprefix("/").split("/")
    if is_pattern(source) and len(segments) == len(path):
        return next(segment for wanted, segment in zip(segments, path, strict=True) if "*" in wanted)
    return path[-1] if path else None


@dataclass(frozen=True, slots=True)
class PathAcl:
    """The paths that each identity may send to; an identity without a rule may send to none.

    `rules` are pairs of an identity, or EVERYBODY, and a pattern as in FROM, in which the segment `%u` is the identity.
    """

    rules: tuple[tuple[str, str], ...]

    def permits(self, identity: str, path: tuple[str, ...]) -> bool:
        """Whether `identity` may send to `path`."""
        return any(who in (EVERYBODY, identity) and _matches(pattern, identity, path) for who, pattern in self.rules)


def _matches(pattern: str, identity: str, path: tuple[str, ...]) -> bool:
    wanted = pattern.removeprefix("/").split("/")
    if OWN not in wanted:
        return Pattern(pattern).matches(path)
    if len(wanted) != len(path):
        return False
    # Compared segment by segment, so that no identity can bring a `*` or a segment of its own.
    pairs = zip(wanted, path, strict=True)
    return all(said == identity if want == OWN else Pattern(want).matches((said,)) for want, said in pairs)


def parse_acl(text: str) -> PathAcl:
    """The rules `identity: path, path`, separated by `;` or line ends.

    An identity has no colon, or is written in hexadecimal digits after `hex:`, as in the list of keys.

    Raises ValueError naming the rule by its number.
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
            if any(OWN in segment and segment != OWN for segment in segments):
                raise ValueError(f"rule {number}: {path!r}: {OWN} must be a whole segment")
            rules.append((identity, path))
    if not rules:
        raise ValueError("names no path; expected identity: path, path, separated by semicolons")
    return PathAcl(tuple(rules))
