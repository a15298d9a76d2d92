"""Signatures of HTTP requests, as Standard Webhooks 1.0 defines them ("Signature scheme")."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import datetime

_BASE64_PREFIX = "whsec_"
_MAX_HEADER = 200


def signing_key(secret: str) -> bytes:
    """Return the key of HMAC for a secret as it is written; empty when the secret is no key.

    What follows `whsec_` is base64; any other secret is the key itself.
    """
    if not secret.startswith(_BASE64_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_BASE64_PREFIX), validate=True)
    except binascii.Error:
        return b""


def signature(key: bytes, message_id: str, now: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that sign a body: HMAC-SHA256 over id, time in s and body.

    The id is the one that the header carries. A receiver refuses old times, so that a post cannot be replayed.
    """
    shown, seconds = header_value(message_id), str(int(now.timestamp()))
    digest = hmac.new(key, f"{shown}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": shown,
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def header_value(text: str) -> str:
    """Return a text as a header can carry it: an id may hold any letter, and a line break ends a header."""
    is_fit = text.isascii() and text.isprintable() and text == text.strip() and len(text) <= _MAX_HEADER
    return text if is_fit else hashlib.sha256(text.encode()).hexdigest()[:32]
