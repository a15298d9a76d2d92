"""Dead letters as a work list: what a letter says, which are done, and what a replayed one looks like. Pure.

Which letters are done is kept where Kafka keeps positions: in a consumer group's commits, the ones before its offset,
and the ranges that the commit's metadata names (as the persisters keep their counts, docs/adr/0042).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from isotherm.connector.errors.dead_letters import PREFIX, DeadLetterRecord, Headers
from isotherm.console.records.record import NUMBER, Record

GROUP = "isotherm-dead-letters"
SUFFIX = ".dead-letters"
MAX_METADATA = 4_000
"""Characters; the broker takes 4096 bytes unless told otherwise (`offset.metadata.max.bytes`)."""
MAX_BYTES = 8 * 1024 * 1024
"""Letters that are held at once; one is held whatever its size."""
_DONE = re.compile(r"done=((?:\d+(?:-\d+)?)(?:,\d+(?:-\d+)?)*)?")


class TooScatteredError(Exception):
    """So many separate letters are done that they cannot be remembered."""


@dataclass(frozen=True)
class Progress:
    """Which letters of one partition are done: all before `position`, and those in `ranges` (both ends in)."""

    position: int = 0
    ranges: tuple[tuple[int, int], ...] = ()

    def is_done(self, offset: int) -> bool:
        """Whether the letter at `offset` needs no more work."""
        return offset < self.position or any(first <= offset <= last for first, last in self.ranges)

    def beyond(self, low: int) -> Progress:
        """The same when the topic begins at `low` only."""
        return self if low <= self.position else _progress(low, self.ranges)

    def with_done(self, stretches: Iterable[tuple[int, int]]) -> Progress:
        """With these stretches (both ends in) done too."""
        return _progress(self.position, (*self.ranges, *stretches))

    def metadata(self) -> str:
        """The commit's metadata. Raises TooScatteredError."""
        text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)
        if len(text) > MAX_METADATA:
            raise TooScatteredError(
                f"{len(self.ranges)} separate stretches of letters are done, more than can be remembered: "
                "replay or discard the oldest open ones first"
            )
        return f"done={text}" if text else ""


def progress_of(position: int, metadata: str) -> Progress:
    """What a commit says. Metadata that is not ours says nothing."""
    found = _DONE.fullmatch(metadata)
    if not found or not found.group(1):
        return Progress(position)
    ends = [part.partition("-") for part in found.group(1).split(",")]
    return _progress(position, [(int(first), int(last or first)) for first, _, last in ends])


def _progress(position: int, ranges: Iterable[tuple[int, int]]) -> Progress:
    """Ranges joined where they touch, and swallowed by the position where they touch that."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if last < position:
            continue
        if first <= position:
            position = last + 1
        elif joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return Progress(position, tuple(joined))


@dataclass(frozen=True)
class DeadLetterRecord(Record):
    """One record of a dead-letter topic."""

    def why(self, name: str) -> str:
        """What the header `__connect.errors.<name>` says; empty without it."""
        return next((_text(value) for key, value in self.headers if key == PREFIX + name), "")

    @property
    def origin(self) -> tuple[str, int] | None:
        """Topic and partition that the record was read from; None for what was never in a topic."""
        topic, partition = self.why("topic"), self.why("partition")
        return (topic, int(partition)) if topic and NUMBER.fullmatch(partition) else None

    @property
    def refused_record(self) -> tuple[str, ...] | None:
        """Which record was refused by whom: letters that agree in it are copies. None when the headers do not say."""
        names = ("topic", "partition", "offset", "connector.name")
        found = tuple(self.why(name) for name in names)
        return found if all(found[:3]) else None

    @property
    def own_headers(self) -> Headers:
        """The headers of the record itself."""
        return [(name, value) for name, value in self.headers if not name.startswith(PREFIX)]

    def as_record(self) -> DeadLetterRecord:
        """The record as it was: bytes, headers and time."""
        return DeadLetterRecord(self.key, self.value, self.own_headers, self.timestamp_ms)


class OpenRecords(NamedTuple):
    """Some letters that are not done, by partition and offset."""

    letters: list[DeadLetterRecord]
    is_cut: bool
    """Whether there may be more: their number, or their bytes, ended it."""


class PendingRecord(NamedTuple):
    """A letter that is to be handled."""

    letter: DeadLetterRecord
    first: int
    """Nothing else that is open lies from here to the letter."""


def take_first(letters: Iterable[DeadLetterRecord], limit: int, most_bytes: int = MAX_BYTES) -> OpenRecords:
    """The first letters, `limit` or so many bytes of them at most, but one if there is one."""
    found: list[DeadLetterRecord] = []
    for letter in letters:
        found.append(letter)
        most_bytes -= letter.size_bytes
        if len(found) == limit or most_bytes <= 0:
            return OpenRecords(found, is_cut=True)
    return OpenRecords(found, is_cut=False)


def without_copies(letters: Iterable[DeadLetterRecord], replayed: Collection[tuple[str, ...]]) -> list[DeadLetterRecord]:
    """One letter of each refused record that is not among `replayed`; letters that do not name a record stay."""
    fresh: list[DeadLetterRecord] = []
    seen: set[tuple[str, ...]] = set()
    for letter in letters:
        record = letter.refused_record
        if record is None or not (record in seen or record in replayed):
            fresh.append(letter)
        if record is not None:
            seen.add(record)
    return fresh


def batches(entries: Iterable[PendingRecord], most: int, most_bytes: int = MAX_BYTES) -> Iterator[list[PendingRecord]]:
    """All entries, in lists of so many or so many bytes at most, but of one at least."""
    batch: list[PendingRecord] = []
    left_bytes = most_bytes
    for entry in entries:
        batch.append(entry)
        left_bytes -= entry.letter.size_bytes
        if len(batch) == most or left_bytes <= 0:
            yield batch
            batch, left_bytes = [], most_bytes
    if batch:
        yield batch


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def reasons(letters: Sequence[DeadLetterRecord]) -> dict[str, int]:
    """How many letters failed with which exception, the most frequent first."""
    found: dict[str, int] = {}
    for letter in letters:
        kind = letter.why("exception.class.name").rpartition(".")[2] or "unknown"
        found[kind] = found.get(kind, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))
