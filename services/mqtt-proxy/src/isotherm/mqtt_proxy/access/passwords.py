"""A password file as `mosquitto_passwd` writes it: one `user:$7$iterations$salt$hash` or `user:$6$salt$hash` a line.

`$7$` is PBKDF2 with HMAC-SHA-512, `$6$` one SHA-512 over password and salt (mosquitto_passwd(1)). Salt and hash are
base64. Pure: no files are read here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MAX_ITERATIONS = 10_000_000
_HASH_BYTES = 64


class PasswordLineError(ValueError):
    """A line that cannot be read; the text never shows the line itself."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """What is known of one password; `iterations` is None for `$6$`."""

    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    iterations: int | None = None

    def matches(self, password: bytes) -> bool:
        """Whether it is this password; compared in constant time."""
        if self.iterations is None:
            found = hashlib.sha512(password + self.salt).digest()
        else:
            found = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations, _HASH_BYTES)
        return hmac.compare_digest(found, self.digest)


_NOBODY = PasswordHash(b"nobody has this.", b"\0" * _HASH_BYTES, 101)


class Passwords:
    """Users and their passwords."""

    def __init__(self, hashes: Mapping[str, PasswordHash]) -> None:
        self._hashes = hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def match(self, username: str, password: bytes) -> bool:
        """Whether `username` exists and has this password; takes its time for an unknown one as well."""
        known = self._hashes.get(username)
        return (known or _NOBODY).matches(password) and known is not None


def parse_passwords(lines: Iterable[str]) -> Passwords:
    """The users in a password file. Raises PasswordLineError naming the line's number."""
    hashes: dict[str, PasswordHash] = {}
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        username, separator, text = stripped.partition(":")
        if not separator or not username:
            raise PasswordLineError(f"line {number}: expected user:hash")
        if username in hashes:
            raise PasswordLineError(f"line {number}: user {username!r} is there twice")
        try:
            hashes[username] = _hash(text)
        except ValueError as error:
            raise PasswordLineError(f"line {number}: user {username!r}: {error}") from None
    return Passwords(hashes)


def _hash(text: str) -> PasswordHash:
    parts = text.split("$")
    iterations: int | None = None
    if len(parts) == 5 and parts[:2] == ["", "7"]:
        if not parts[2].isascii() or not parts[2].isdigit() or not 0 < int(parts[2]) <= _MAX_ITERATIONS:
            raise ValueError(f"the number of iterations must be from 1 to {_MAX_ITERATIONS}")
        iterations = int(parts[2])
    elif len(parts) != 4 or parts[:2] != ["", "6"]:
        raise ValueError("expected $7$iterations$salt$hash or $6$salt$hash, as mosquitto_passwd writes them")
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[-2:])
    except binascii.Error:
        raise ValueError("salt and hash must be base64") from None
    if len(digest) != _HASH_BYTES:
        raise ValueError(f"the hash has {len(digest)} bytes, expected {_HASH_BYTES}")
    return PasswordHash(salt, digest, iterations)
