"""Identities and values in a form that takes little memory: 64-bit hashes, which differ between runs of Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Identity = int
Digest = int
Position = tuple[str, int, int]
"""Topic, partition, offset."""


def identity_of(parts: Sequence[Any]) -> Identity:
    """Return the hash of an identity, given as a list of strings and numbers."""
    return hash(tuple(parts))


def digest_of(value: Mapping[str, Any]) -> Digest:
    """Return the hash of a record's fields; a field that is null or empty counts as absent.

    Stores return such fields differently: Cassandra has no empty map.
    """
    return hash(frozenset((name, _hashable(part)) for name, part in value.items() if part or part in (0, False)))


def _hashable(part: Any) -> Any:
    if isinstance(part, dict):
        return frozenset((name, _hashable(inner)) for name, inner in part.items())
    if isinstance(part, list):
        return tuple(_hashable(inner) for inner in part)
    return part
