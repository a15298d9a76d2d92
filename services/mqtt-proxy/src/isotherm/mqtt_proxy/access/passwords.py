"""Parses a password file of `mosquitto_passwd`: lines `user:$7$iterations$salt$hash` or `user:$6$salt$hash`.

`$7$` is PBKDF2 with HMAC-SHA-512, `$6$` is one SHA-512 over password and salt (mosquitto_passwd(1)). Salt and hash are
base64. Nothing here reads files.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MAX_ITERATIONS = 10_000_000
_NUMBER = re.compile(r"[0-9]{1,20}")
_HASH_BYTES = 64


class PasswordLineError(ValueError):
    """A line of a password file is invalid. The text never shows the line."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """The salted hash of a password; `iterations` is None for `$6$`."""

    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    iterations: int | None = None

    def matches(self, password: bytes) -> bool:
        """Return whether `password` has this hash; the comparison takes constant time."""
        if self.iterations is None:
            found = hashlib.sha512(password + self.salt).digest()
        else:
            found = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations, _HASH_BYTES)
        return hmac.compare_digest(found, self.digest)


_NOBODY = PasswordHash(b"nobody has this.", b"\0" * _HASH_BYTES, 101)


class Passwords:
    """Users and the hashes of their passwords."""

    def __init__(self, hashes: Mapping[str, PasswordHash]) -> None:
        self._hashes = hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def match(self, username: str, password: bytes) -> bool:
        """Return whether `username` exists and has this password. An unknown user takes as long as a known one."""
        known = self._hashes.get(username)
        return (known or _NOBODY).matches(password) and known is not None


def parse_passwords(lines: Iterable[str]) -> Passwords:
    """Parse the lines of a password file. Raises PasswordLineError that names the line's number."""
    hashes: dict[str, PasswordHash] = {}
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        username, separator, text = stripped.partition(":")
        if not separator or not username:
            raise PasswordLineError(f"line {number}: expected user:hash")
        if username in hashes:
            raise PasswordLineError(f"line {number}: user {username!r} occurs twice")
        try:
            hashes[username] = _hash(text)
        except ValueError as error:
            raise PasswordLineError(f"line {number}: user {username!r}: {error}") from None
    return Passwords(hashes)


def _hash(text: str) -> PasswordHash:
    parts = text.split("$")
    iterations: int | None = None
    if len(parts) == 5 and parts[:2] == ["", "7"]:
        if not _NUMBER.fullmatch(parts[2]) or not 0 < int(parts[2]) <= _MAX_ITERATIONS:
            raise ValueError(f"the number of iterations must be from 1 to {_MAX_ITERATIONS}")
        iterations = int(parts[2])
    elif len(parts) != 4 or parts[:2] != ["", "6"]:
        raise ValueError("expected $7$iterations$salt$hash or $6$salt$hash, as mosquitto_passwd writes them")
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[-2:])
    except ValueError:
        raise ValueError("salt and hash must be base64") from None
    if len(digest) != _HASH_BYTES:
        raise ValueError(f"the hash has {len(digest)} bytes, expected {_HASH_BYTES}")
    return PasswordHash(salt, digest, iterations)
