"""Partitions of keys: Java's default partitioner, which every producer must use, and librdkafka's own default."""

from __future__ import annotations

import zlib

from isotherm.contracts.harness import PARTITIONER, Message

_MULTIPLIER, _SHIFT, _SEED = 0x5BD1E995, 24, 0x9747B28C
_UINT32 = 0xFFFFFFFF


def partition_of(message: Message, partitions: int) -> int:
    """The partition into which the message's producer puts it."""
    if message.partitioner == PARTITIONER:
        return murmur2_partition(message.key, partitions)
    return zlib.crc32(message.key.encode()) % partitions


def murmur2_partition(key: str, partitions: int) -> int:
    """The partition that Java's default partitioner chooses."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Murmur2 of Kafka's Java client (`org.apache.kafka.common.utils.Utils.murmur2`), unsigned."""
    whole = len(data) & ~3
    found = _SEED ^ len(data)
    for begin in range(0, whole, 4):
        word = int.from_bytes(data[begin : begin + 4], "little") * _MULTIPLIER & _UINT32
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _UINT32
        found = found * _MULTIPLIER & _UINT32 ^ word
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _UINT32
    found = (found ^ found >> 13) * _MULTIPLIER & _UINT32
    return found ^ found >> 15
