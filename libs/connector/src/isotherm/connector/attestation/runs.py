"""Runs of acknowledged records: where they are in Kafka, and enough of their content to tell whether they still are.

A run is a range of offsets of one partition without a gap. It has a digest of each record, and one name: an XOR, so
that whoever has all records but one knows the key of that one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

MOST_RECORDS = 64
"""Of a run: of few records more often just one is missing, and that one has a name."""
DIGEST_BYTES = 2
NAME_BYTES = 32
"""So much of a record's key a run knows."""


class Run(NamedTuple):
    """Records at successive offsets."""

    first_offset: int
    digests: bytes
    """Of each record DIGEST_BYTES, little-endian."""
    name: int
    """The XOR of the records' names."""

    @property
    def records(self) -> int:
        """How many records these are."""
        return len(self.digests) // DIGEST_BYTES

    def record(self) -> dict[str, Any]:
        """Return it as the schema Attestation has it."""
        digests = struct.unpack(f"<{self.records}H", self.digests)
        return {"first_offset": self.first_offset, "digests": digests, "name": key_of(self.name).hex()}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Run:
        """Return what `record` has made. Raises ValueError, struct.error."""
        digests = record["digests"]
        packed = struct.pack(f"<{len(digests)}H", *digests)
        return cls(record["first_offset"], packed, name_of(bytes.fromhex(record["name"])))


def digest_of(key: bytes, value: bytes) -> int:
    """Return 16 bits that another record hardly has."""
    return crc32(value, crc32(key)) & 0xFFFF


def name_of(key: bytes) -> int:
    """Return the first NAME_BYTES of a key as a number."""
    return int.from_bytes(key[:NAME_BYTES], "little")


def key_of(name: int) -> bytes:
    """Return the key of a name, or its beginning."""
    return name.to_bytes(NAME_BYTES, "little").rstrip(b"\0")


class _OpenRun:
    """A run that may grow."""

    __slots__ = ("digests", "first_offset", "name", "next_offset")

    def __init__(self, offset: int) -> None:
        self.first_offset = self.next_offset = offset
        self.digests, self.name = bytearray(), 0


class Runs:
    """The runs of one topic that were not taken yet."""

    __slots__ = ("_closed", "_most", "_open", "dropped")

    def __init__(self, most: int) -> None:
        """Keep `most` runs of each partition at once; what comes beyond is dropped."""
        self._most = most
        self._open: dict[int, _OpenRun] = {}
        self._closed: dict[int, list[Run]] = {}
        self.dropped = 0
        """How many records were dropped."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, partition: int, offset: int, key: bytes, value: bytes) -> None:
        """Add a record that Kafka has."""
        run = self._open.get(partition)
        if run is None or run.next_offset != offset or run.next_offset - run.first_offset == MOST_RECORDS:
            if run is not None:
                self._close(partition, run)
            run = self._open[partition] = _OpenRun(offset)
        run.next_offset += 1
        run.digests += digest_of(key, value).to_bytes(DIGEST_BYTES, "little")
        run.name ^= name_of(key)

    def take(self) -> dict[int, list[Run]]:
        """Return the runs by partition, and forget them."""
        for partition, run in self._open.items():
            self._close(partition, run)
        taken, self._open, self._closed = self._closed, {}, {}
        return taken

    def _close(self, partition: int, run: _OpenRun) -> None:
        closed = self._closed.setdefault(partition, [])
        if len(closed) < self._most:
            closed.append(Run(run.first_offset, bytes(run.digests), run.name))
        else:
            self.dropped += run.next_offset - run.first_offset
