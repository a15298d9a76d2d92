"""Pre-shared keys of DTLS and their identities: what may be configured, without IO.

Both are bytes. They are written as text, as hexadecimal digits after `hex:`, and keys also after `base64:`; `text:`
stands before a text that begins with one of these.
"""

from __future__ import annotations

import base64
import binascii
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


def identity_text(identity: bytes) -> str:
    """An identity as text: as it is written in the configuration, `hex:` and digits where it is no printable text."""
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("hex:") else f"hex:{identity.hex()}"


def identity_bytes(text: str) -> bytes:
    """The identity that is written so. Raises ValueError when what follows `hex:` is no hexadecimal number."""
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
    """The key that this text means.

    Raises ValueError for what is not of its form, and what the library cannot take; the error's text never has the key
    in it.
    """
    try:
        made = PreSharedKey(identity_bytes(identity), _bytes(key))
    except ValueError as error:
        raise ValueError(f"{identity!r}: {error}") from None
    if not 1 <= len(made.identity) <= MAX_IDENTITY_BYTES:
        raise ValueError(f"the identity has {len(made.identity)} bytes; allowed: 1 to {MAX_IDENTITY_BYTES}")
    if 0 in made.identity:
        raise ValueError(f"the identity {identity!r} has a zero byte, at which the DTLS library ends it")
    if not 1 <= len(made.key) <= MAX_KEY_BYTES:
        raise ValueError(f"the key of {identity!r} has {len(made.key)} bytes; allowed: 1 to {MAX_KEY_BYTES}")
    return made


def parse_keys(text: str) -> Mapping[bytes, bytes]:
    """Keys by identity, of `identity:key` pairs separated by commas or line ends; a key may have colons in it, an
    identity only the one after `hex`.

    Raises ValueError naming the pair by its number or identity.
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
