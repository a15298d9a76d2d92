"""Pre-shared keys of DTLS and their identities, as the configuration writes them. Pure functions.

Both are bytes. The configuration writes them as text, or as hexadecimal digits after `hex:`; keys also as base64 after
`base64:`. The prefix `text:` protects a key whose text begins with one of these prefixes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_IDENTITY_BYTES = 32
"""Limit of the DTLS library (`DTLS_PSK_MAX_CLIENT_IDENTITY_LEN`)."""
MAX_KEY_BYTES = 16
"""Limit of the DTLS library (`DTLS_PSK_MAX_KEY_LEN`), which copies a longer key beyond the end of its buffer."""


@dataclass(frozen=True, slots=True)
class PreSharedKey:
    """A key and the identity under which a peer presents it."""

    identity: bytes
    key: bytes = field(repr=False)


def identity_text(identity: bytes) -> str:
    """Return an identity as the configuration writes it: as text, or after `hex:` when it is no printable text."""
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("hex:") else f"hex:{identity.hex()}"


def identity_bytes(text: str) -> bytes:
    """Parse an identity of the configuration. Raises ValueError when `hex:` is not followed by hexadecimal digits."""
    return _bytes(text) if text.startswith("hex:") else text.encode()


def _bytes(text: str) -> bytes:
    form, colon, rest = text.partition(":")
    try:
        if colon and form == "hex":
            return bytes.fromhex(rest)
        if colon and form == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(f"what follows {form}: is not {form}") from None
    return (rest if colon and form == "text" else text).encode()


def pre_shared_key(identity: str, key: str) -> PreSharedKey:
    """Parse an identity and its key.

    Raises ValueError for another form, and for a length that the DTLS library cannot take. The message never contains
    the key.
    """
    try:
        made = PreSharedKey(identity_bytes(identity), _bytes(key))
    except ValueError as error:
        raise ValueError(f"{identity!r}: {error}") from None
    if not 1 <= len(made.identity) <= MAX_IDENTITY_BYTES:
        raise ValueError(f"the identity has {len(made.identity)} bytes; allowed: 1 to {MAX_IDENTITY_BYTES}")
    if 0 in made.identity:
        raise ValueError(f"the identity {identity!r} has a zero byte, which the DTLS library takes for its end")
    if not 1 <= len(made.key) <= MAX_KEY_BYTES:
        raise ValueError(f"the key of {identity!r} has {len(made.key)} bytes; allowed: 1 to {MAX_KEY_BYTES}")
    return made


def parse_keys(text: str) -> Mapping[bytes, bytes]:
    """Parse `identity:key` pairs, separated by commas or line ends, into keys by identity.

    A key may contain colons; an identity only the one after `hex`.

    Raises ValueError, which names the pair by its number or identity.
    """
    keys: dict[bytes, bytes] = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in re.split(r"[,\n]", text))), start=1):
        found = re.fullmatch(r"((?:hex:)?[^:]*):(.*)", pair)
        if found is None:
            raise ValueError(f"pair {number} is not identity:key")
        identity, key = found[1].strip(), found[2].strip()
        made = pre_shared_key(identity, key)
        if made.identity in keys:
            raise ValueError(f"the identity {identity!r} is named twice")
        keys[made.identity] = made.key
    if not keys:
        raise ValueError("names no device; expected identity:key, separated by commas")
    return keys
