"""The readings of one hour, each once, in PARTS parts by device. Memory is bounded; what is beyond goes into files."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from hashlib import blake2b
from types import TracebackType
from typing import NamedTuple, Self
from zlib import crc32

from isotherm.connector.receipts.set_hash import SetHash
from isotherm.connector.receipts.spooled_files import SpooledFiles

PARTS = 64
"""Which of them differs tells where to look for the readings that do."""
_IDENTITY_BYTES = 16
_CONTENT_BYTES = 32
_ENTRY = struct.Struct(f"{_IDENTITY_BYTES}s{_CONTENT_BYTES}s")
ENTRY_BYTES = 1 + _ENTRY.size
"""Length of what `entry_of` makes."""
_BUFFERED_BYTES = 1 << 20
"""Of a part; what is beyond goes into a file."""
_ENTRIES_OF_READ = 4_096


class Part(NamedTuple):
    """The readings of one part."""

    readings: int
    digest: str
    """Of the set of them; empty without readings."""


class HourReading(NamedTuple):
    """What a receipt tells of a reading."""

    device_id: str
    metric: str
    event_ms: int
    sequence: int
    value: float

    def identity(self) -> bytes:
        """Return a digest of what copies of the reading have in common."""
        return self._digest(b"", _IDENTITY_BYTES)

    def content(self) -> bytes:
        """Return a digest of all of it."""
        # A value that is no number has many forms in bits, of which stores keep one.
        # Adding makes one zero of both.
        value = math.nan if math.isnan(self.value) else self.value + 0.0
        return self._digest(struct.pack(">d", value), _CONTENT_BYTES)

    def _digest(self, end: bytes, size: int) -> bytes:
        device, metric = self.device_id.encode(), self.metric.encode()
        head = struct.pack(">IIqq", len(device), len(metric), self.event_ms, self.sequence)
        return blake2b(b"".join((head, device, metric, end)), digest_size=size).digest()


def part_of(device_id: str) -> int:
    """Return the number of the part of a device."""
    return crc32(device_id.encode()) % PARTS


def entry_of(reading: HourReading) -> bytes:
    """Return what a set keeps of a reading: its part, identity and content."""
    return b"%c%b" % (part_of(reading.device_id), _ENTRY.pack(reading.identity(), reading.content()))


class ReadingSet:
    """Takes readings in any order, copies among them; of copies that differ the last one counts, as in a store.

    A context manager, because it may have files.
    """

    def __init__(self) -> None:
        self._files = SpooledFiles(_BUFFERED_BYTES)
        self.taken = 0
        """Readings with their copies."""
        self.contradictions = 0
        """Copies with another value than the one before; known after `parts`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def add(self, entry: bytes) -> None:
        """Take a reading, as `entry_of` makes it. Raises OSError where there is no room for files."""
        self._files.append(entry[0], entry[1:])
        self.taken += 1

    def parts(self) -> list[Part]:
        """Return all parts, by their numbers. Raises OSError."""
        self.contradictions = 0
        return [self._part(number) for number in range(PARTS)]

    def _part(self, number: int) -> Part:
        newest: dict[bytes, bytes] = {}
        for identity, content in self._entries(number):
            self.contradictions += newest.get(identity, content) != content
            newest[identity] = content
        digest = SetHash()
        for content in newest.values():
            digest.add(content)
        return Part(digest.elements, digest.hex())

    def _entries(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        for data in self._files.read(number, _ENTRY.size * _ENTRIES_OF_READ):
            yield from _ENTRY.iter_unpack(data)
