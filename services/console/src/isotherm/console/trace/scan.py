"""Searches for records of one key in several topics, each with a share of the time that all may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from isotherm.console.errors import NotFoundError
from isotherm.console.records.paging import Search, SearchBudget, TopicReader, record_at
from isotherm.console.records.partitions import partition_of
from isotherm.console.records.record import Record
from isotherm.console.records.topics import Topics
from isotherm.console.settings import SearchSettings

Item = TypeVar("Item")
Keep = Callable[[Record], Item | None]

SHARE = 0.25
"""The part of `search.timeout_ms` that one search may take: a long one leaves time for the others."""
_SAMPLE_SHARE = 0.1
_FIRST_CHUNK = 500


class Scanner:
    """Searches topics by key, and notes where a search had to end early."""

    def __init__(self, topics: Topics, settings: SearchSettings) -> None:
        self._topics, self._settings = topics, settings
        self._ends_s = 0.0
        self.notes: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Give the searches from now on `search.timeout_ms` together."""
        self._ends_s = time.monotonic() + self._settings.timeout_ms / 1_000

    @property
    def is_over(self) -> bool:
        """Whether all searches together have had their time."""
        return time.monotonic() >= self._ends_s

    def after(
        self,
        topic: str,
        key: bytes | None,
        since_ms: int,
        keep: Keep[Item],
        *,
        until_ms: int | None = None,
        limit: int = 1,
        share: float = SHARE,
        is_noted: bool = True,
    ) -> list[Item]:
        """Return the first items of a topic that were appended at `since_ms` or later, and before `until_ms`.

        Args:
            topic: the topic; one that does not exist has no records.
            key: the key, whose partition alone is read; records without a key may be on any.
            since_ms, until_ms: append times, in epoch milliseconds.
            keep: turns a record into an item, or returns None.
            limit: how many items are wanted.
            share: the part of the time of all searches that it may take.
            is_noted: whether to note an early end.

        Raises UnavailableError.
        """
        with self.reading(topic) as reader:
            if reader is None:
                return []
            # Kafka has other meanings for times below 0.
            starts = reader.offsets_at(max(0, since_ms))
            if key is not None:
                partition = partition_of(key, len(reader.bounds))
                starts = {partition: starts[partition]}
            ceiling = None if until_ms is None else reader.offsets_at(max(0, until_ms))
            page = self._search(reader, key, keep, limit, share).newer(starts, ceiling)
            if page.is_cut and is_noted:
                self.notes.append(f"the search in {topic} ended after {page.records_read} records, before its end")
            return list(reversed(page.items))

    def between(
        self, topic: str, since_ms: int, until_ms: int, keep: Keep[Item], *, limit: int, share: float
    ) -> list[Item]:
        """Return the first items of any key that were appended at `since_ms` or later, and before `until_ms`.

        Otherwise as `after`. Raises UnavailableError.
        """
        with self.reading(topic) as reader:
            if reader is None:
                return []
            starts, ceiling = (reader.offsets_at(max(0, time_ms)) for time_ms in (since_ms, until_ms))
            page = Search(reader, keep, self.budget(share), limit=limit, first_chunk=_FIRST_CHUNK).newer(
                starts, ceiling
            )
            if page.is_cut:
                self.notes.append(f"the search in {topic} ended after {page.records_read} records, before its end")
            return list(reversed(page.items))

    def sample(self, topic: str, keep: Keep[Item], limit: int, since_ms: int | None = None) -> list[Item]:
        """Return items of any key: the first ones from a time on, or the last ones. Raises UnavailableError."""
        with self.reading(topic) as reader:
            if reader is None:
                return []
            search = Search(reader, keep, self.budget(_SAMPLE_SHARE), limit=limit, first_chunk=_FIRST_CHUNK)
            if since_ms is not None:
                return list(search.newer(reader.offsets_at(max(0, since_ms))).items)
            return list(search.older({partition: of.high for partition, of in reader.bounds.items()}).items)

    def record(self, topic: str, partition: int, offset: int) -> Record | None:
        """Return one record; None where there is none. Raises UnavailableError."""
        with self.reading(topic) as reader:
            return None if reader is None else record_at(reader, partition, offset)

    def with_notes(self, message: str) -> str:
        """Return a message with all notes after it."""
        return "; ".join([message, *self.notes])

    @contextmanager
    def reading(self, topic: str) -> Iterator[TopicReader | None]:
        """Open a reader; None for a topic that does not exist."""
        with ExitStack() as opened:
            reader: TopicReader | None = None
            with suppress(NotFoundError):
                reader = opened.enter_context(self._topics.reader(topic))
            yield reader

    def budget(self, share: float) -> SearchBudget:
        """Return what one search may take: its share, and no more than what is left of the time of all."""
        left_ms = (self._ends_s - time.monotonic()) * 1_000
        max_ms = max(0, int(min(self._settings.timeout_ms * share, left_ms)))
        return SearchBudget(time.monotonic, max_ms=max_ms, max_bytes=self._settings.max_bytes)

    def _search(
        self, reader: TopicReader, key: bytes | None, keep: Keep[Item], limit: int, share: float
    ) -> Search[Item]:
        def keep_exact(record: Record) -> Item | None:
            return keep(record) if record.key == key else None

        budget = self.budget(share)
        return Search(reader, keep_exact, budget, limit=limit, key_prefix=key or b"", first_chunk=_FIRST_CHUNK)
