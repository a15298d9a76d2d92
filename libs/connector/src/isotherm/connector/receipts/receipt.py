"""A receipt: what the readings of an hour are, signed (Ed25519, RFC 8032). Times are epoch milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

import isotherm.schemas
from isotherm.connector.receipts.reading_set import PARTS, Part
from isotherm.kcql.dates import epoch_ms

TOPIC = "isotherm.receipts"
SCHEMA = isotherm.schemas.schema("Receipt", 1)
HOUR_MS = 3_600_000
_SIGNED = b"isotherm receipt 1\n"
"""Stands before what is signed, so that the signature is good for nothing else."""
_KEY_ID_DIGITS = 16


class KeyFileError(ValueError):
    """A file has no Ed25519 key."""


@dataclass(frozen=True)
class Receipt:
    """The distinct readings of a topic whose event time is in one hour."""

    topic: str
    start_ms: int
    revision: int
    """0 for the first one of an hour; the highest one counts."""
    records: int
    """The readings with their copies."""
    parts: tuple[Part, ...]
    unreconciled: int
    """How many findings about the topic were open then."""
    issued_ms: int
    key_id: str = ""
    """Names the key; see `key_id_of`."""
    signature: str = ""
    """Of everything else, in hexadecimal digits; empty before it is signed."""

    @property
    def end_ms(self) -> int:
        """The end of the hour."""
        return self.start_ms + HOUR_MS

    @property
    def key(self) -> str:
        """The key of its record."""
        return f"{self.topic}/{self.start_ms}"

    @property
    def readings(self) -> int:
        """How many distinct readings there are."""
        return sum(part.readings for part in self.parts)

    def has_same_readings(self, other: Receipt) -> bool:
        """Whether two receipts say the same of the readings."""
        return self.parts == other.parts

    def parts_digest(self) -> bytes:
        """Return what receipts of the same readings have in common."""
        return sha256(repr(self.parts).encode()).digest()

    def record(self) -> dict[str, Any]:
        """Return it as the schema Receipt has it."""
        return {
            "topic": self.topic,
            "start": self.start_ms,
            "end": self.end_ms,
            "revision": self.revision,
            "records": self.records,
            "parts": [part._asdict() for part in self.parts],
            "unreconciled": self.unreconciled,
            "issued_at": self.issued_ms,
            "key_id": self.key_id,
            "signature": self.signature,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Receipt:
        """Read a Receipt record. Raises ValueError for one that nobody issues."""
        try:
            parts = tuple(Part(int(part["readings"]), str(part["digest"])) for part in record["parts"])
            made = cls(
                str(record["topic"]),
                epoch_ms(record["start"]),
                int(record["revision"]),
                int(record["records"]),
                parts,
                int(record["unreconciled"]),
                epoch_ms(record["issued_at"]),
                str(record["key_id"]),
                str(record["signature"]),
            )
            end_ms = epoch_ms(record["end"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"it has no {error}" if isinstance(error, KeyError) else str(error)) from None
        if len(parts) != PARTS or end_ms != made.end_ms or made.start_ms % HOUR_MS:
            raise ValueError(f"it is not of one hour in {PARTS} parts")
        return made

    def signed_by(self, key: Ed25519PrivateKey) -> Receipt:
        """Return it with a signature."""
        named = replace(self, key_id=key_id_of(key.public_key()))
        return replace(named, signature=key.sign(named._signed_bytes()).hex())

    def is_signed_by(self, key: Ed25519PublicKey) -> bool:
        """Whether the owner of a key has signed exactly this."""
        try:
            key.verify(bytes.fromhex(self.signature), self._signed_bytes())
        except (InvalidSignature, ValueError):
            return False
        return True

    def _signed_bytes(self) -> bytes:
        fields = {name: value for name, value in self.record().items() if name != "signature"}
        return _SIGNED + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def newest(receipts: Sequence[Receipt]) -> dict[int, Receipt]:
    """Return of each hour the receipt that counts, by the start of the hour."""
    found: dict[int, Receipt] = {}
    for receipt in sorted(receipts, key=lambda one: one.revision):
        found[receipt.start_ms] = receipt
    return found


def key_id_of(key: Ed25519PublicKey) -> str:
    """Return the name of a key: the first digits of the SHA-256 of its DER form (SubjectPublicKeyInfo, RFC 8410)."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256(der).hexdigest()[:_KEY_ID_DIGITS]


def private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key in PEM (PKCS #8), without a password, as `openssl genpkey -algorithm ed25519` writes it.

    Raises KeyFileError, which never has anything of the key in it.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has no unencrypted private key in PEM"
        raise KeyFileError(f"cannot use {path}: {reason}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"cannot use {path}: the key in it is not of Ed25519")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key in PEM, as `openssl pkey -pubout` writes it. Raises KeyFileError."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has no public key in PEM"
        raise KeyFileError(f"cannot use {path}: {reason}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"cannot use {path}: the key in it is not of Ed25519")
    return key
