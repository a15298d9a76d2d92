"""Pre-shared keys of DTLS and their identities: what may be configured, without IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_IDENTITY_BYTES = 32
"""Of the DTLS library (`DTLS_PSK_MAX_CLIENT_IDENTITY_LEN`)."""
MAX_KEY_BYTES = 16
"""Of the DTLS library (`DTLS_PSK_MAX_KEY_LEN`), which copies a longer key behind the end of its buffer."""


@dataclass(frozen=True, slots=True)
class PreSharedKey:
    """A key, and the identity that a peer names it by."""

    identity: bytes
    key: bytes = field(repr=False)


def pre_shared_key(identity: str, key: str) -> PreSharedKey:
    """The key that this text means.

    Raises ValueError for a length that the library cannot take; the text never has the key in it.
    """
    made = PreSharedKey(identity.encode(), key.encode())
    if not 1 <= len(made.identity) <= MAX_IDENTITY_BYTES:
        raise ValueError(f"the identity has {len(made.identity)} bytes; allowed: 1 to {MAX_IDENTITY_BYTES}")
    if not 1 <= len(made.key) <= MAX_KEY_BYTES:
        raise ValueError(f"the key of {identity!r} has {len(made.key)} bytes; allowed: 1 to {MAX_KEY_BYTES}")
    return made


def parse_keys(text: str) -> Mapping[bytes, bytes]:
    """Keys by identity, of `identity:key` pairs separated by commas or line ends; a key may have colons in it.

    Raises ValueError naming the pair by its number or identity.
    """
    keys: dict[bytes, bytes] = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in re.split(r"[,\n]", text))), start=1):
        identity, colon, key = pair.partition(":")
        if not colon:
            raise ValueError(f"pair {number} is not identity:key")
        made = pre_shared_key(identity.strip(), key.strip())
        if made.identity in keys:
            raise ValueError(f"the identity {identity!r} is named twice")
        keys[made.identity] = made.key
    if not keys:
        raise ValueError("names no device; expected identity:key, separated by commas")
    return keys
