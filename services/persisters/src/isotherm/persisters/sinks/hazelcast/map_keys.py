"""Keys of maps as the client serializes texts, with their hash: the client's own ways take five times as long.

A key is serialized and hashed for every entry that is written, and the client does both in Python, byte by byte.
Source: Hazelcast's heap data (partition hash, type, payload) and MurmurHash3_x86_32 over the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hazelcast.serialization.data import Data
from hazelcast.serialization.serialization_const import CONSTANT_TYPE_STRING

_header = struct.Struct(">iii").pack
_HEAP_DATA_BYTES = 8
_NO_PARTITION_HASH = 0

_MASK = 0xFFFFFFFF
_SEED = 0x01000193
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_PREFIX_BYTES = 32
"""Keys of one device have their beginning in common: what it makes of the hash is remembered."""
_MOST_REMEMBERED = 16_384
_BLOCKS = [struct.Struct(f"<{count}I").unpack_from for count in range(64)]


class MapKey(Data):
    """A text, serialized, that knows its hash."""

    __slots__ = ("_hash",)

    def __init__(self, text: str) -> None:
        """Raises UnicodeEncodeError (a ValueError) for a text that is not Unicode."""
        encoded = text.encode()
        self.buffer = _header(_NO_PARTITION_HASH, CONSTANT_TYPE_STRING, len(encoded)) + encoded
        self._hash = murmur3(self.buffer[_HEAP_DATA_BYTES:])

    def get_partition_hash(self) -> int:
        """As the client computes it anew each time."""
        return self._hash

    hash_code = get_partition_hash

    def __hash__(self) -> int:
        return self._hash


class _Mixed(dict[int, int]):
    """What each block of four bytes adds to a hash; keys have few different ones."""

    def __missing__(self, block: int) -> int:
        if len(self) >= _MOST_REMEMBERED:
            self.clear()
        mixed = block * _C1 & _MASK
        mixed = (mixed << 15 | mixed >> 17) * _C2 & _MASK
        self[block] = mixed
        return mixed


class _Prefixes(dict[bytes, int]):
    """The hash as it is behind the first bytes of a payload."""

    def __missing__(self, prefix: bytes) -> int:
        if len(self) >= _MOST_REMEMBERED:
            self.clear()
        self[prefix] = state = _with_blocks(_SEED, struct.unpack(f"<{len(prefix) // 4}I", prefix))
        return state


_mixed = _Mixed()
_prefixes = _Prefixes()


def murmur3(payload: bytes) -> int:
    """MurmurHash3_x86_32 with Hazelcast's seed, as a signed number of 32 bits."""
    length, state, start = len(payload), _SEED, 0
    if length >= _PREFIX_BYTES:
        state, start = _prefixes[payload[:_PREFIX_BYTES]], _PREFIX_BYTES
    count = (length - start) // 4
    unpack = _BLOCKS[count] if count < len(_BLOCKS) else struct.Struct(f"<{count}I").unpack_from
    state = _with_blocks(state, unpack(payload, start))
    if length & 3:
        state ^= _mixed[int.from_bytes(payload[length & ~3 :], "little")]
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (state >> 31 << 32)


def _with_blocks(state: int, blocks: Iterable[int]) -> int:
    mixed = _mixed
    for block in blocks:
        state ^= mixed[block]
        state = ((state << 13 | state >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    return state
