"""The newest records of one partition, as they were read: of each its digest and its key. Pure."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from isotherm.connector.attestation.runs import Run, digest_of, key_of, name_of

_LONGEST_GAP = 1_000_000
"""Offsets without a record that are remembered as such; a longer gap is forgotten with what was before."""
_MOST_RECORDS = 1_000_000


class Difference(NamedTuple):
    """What of a run is not in the partition as it was acknowledged."""

    missing: Sequence[int]
    """Offsets without a record."""
    different: Sequence[int]
    """Offsets with another record."""
    key: bytes | None
    """The key that was acknowledged, or its beginning, where only one record differs."""


class SeenRecords:
    """Records in the order of their offsets, until they are forgotten."""

    def __init__(self, first_offset: int) -> None:
        """Begin before the record at `first_offset`."""
        self.first_offset = self.read_until = first_offset
        """Every record between these offsets was read."""
        self.unattested = 0
        """How many were forgotten that no service had attested."""
        self._digests = array("H")
        self._keys: list[bytes | None] = []
        self._attested = bytearray()
        self._marks: deque[tuple[int, int]] = deque()

    def add(self, offset: int, key: bytes, value: bytes) -> None:
        """Take the record that was read next."""
        # Once for each reading of the suite.
        if offset != self.read_until:
            self.read_to(offset)
            if offset != self.read_until:
                return
        self._digests.append(digest_of(key, value))
        self._keys.append(key)
        self._attested.append(0)
        self.read_until += 1

    def read_to(self, offset: int) -> None:
        """Note that there is no further record before an offset."""
        gap = offset - self.read_until
        if gap > _LONGEST_GAP:
            self.restart(offset)
        elif gap > 0:
            self._digests.extend([0] * gap)
            self._keys.extend([None] * gap)
            self._attested.extend(bytes(gap))
            self.read_until += gap

    def restart(self, offset: int) -> None:
        """Forget everything, and go on before the record at an offset."""
        self._drop(len(self._keys))
        self._marks.clear()
        self.first_offset = self.read_until = offset

    def compare(self, run: Run) -> Difference | None:
        """Return what differs from a run that was read and is remembered; None if nothing does."""
        begin = run.first_offset - self.first_offset
        end = begin + run.records
        keys = self._keys[begin:end]
        is_right = None not in keys and self._digests[begin:end].tobytes() == _native(run.digests)
        self._attested[begin:end] = b"\1" * run.records
        return None if is_right else _difference(run, keys, self._digests[begin:end])

    def key_at(self, offset: int) -> bytes:
        """Return the key of a remembered record."""
        return self._keys[offset - self.first_offset] or b""

    def forget(self, now_ms: int, keep_ms: int) -> None:
        """Forget what was read `keep_ms` ago, and of too many the oldest; call this every second or so."""
        if not self._marks or self._marks[-1][1] < self.read_until:
            self._marks.append((now_ms, self.read_until))
        while self._marks and self._marks[0][0] <= now_ms - keep_ms:
            self._drop(self._marks.popleft()[1] - self.first_offset)
        self._drop(len(self._keys) - _MOST_RECORDS)

    def _drop(self, records: int) -> None:
        if records <= 0:
            return
        self.unattested += sum(
            not is_attested and key is not None
            for is_attested, key in zip(self._attested[:records], self._keys[:records], strict=True)
        )
        del self._digests[:records], self._keys[:records], self._attested[:records]
        self.first_offset += records


def lost_from(end: int, run: Run) -> Difference:
    """Return the difference of a run of which no record is there from the offset `end` on."""
    offsets = range(max(end, run.first_offset), run.first_offset + run.records)
    return Difference(offsets, (), key_of(run.name) if run.records == 1 else None)


def _difference(run: Run, keys: Sequence[bytes | None], digests: array[int]) -> Difference:
    expected = array("H", _native(run.digests))
    missing = [run.first_offset + at for at, key in enumerate(keys) if key is None]
    different = [
        run.first_offset + at for at, key in enumerate(keys) if key is not None and digests[at] != expected[at]
    ]
    wrong = {*missing, *different}
    if len(wrong) != 1:
        return Difference(missing, different, None)
    name = run.name
    for offset, key in enumerate(keys, run.first_offset):
        if offset not in wrong and key is not None:
            name ^= name_of(key)
    return Difference(missing, different, key_of(name))


def _native(digests: bytes) -> bytes:
    found = array("H", digests)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()
