"""The topic browser: topics with who writes and reads them, and pages of their records as anybody may see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import isotherm.schemas
from isotherm.connector.offsets import replay
from isotherm.connector.offsets.replay import To
from isotherm.connector.offsets.topic_sizes import TopicSize
from isotherm.console.browser.record_masking import Showing, ShownRecord
from isotherm.console.cluster.state import Fleet
from isotherm.console.connectors import flows
from isotherm.console.connectors.control import Control
from isotherm.console.errors import BadRequestError, NotFoundError
from isotherm.console.records.paging import (
    Bounds,
    Budget,
    Page,
    Positions,
    Search,
    Span,
    TopicReader,
    positions_of,
)
from isotherm.console.records.record import Record
from isotherm.console.records.topics import Topics
from isotherm.console.settings import SearchSettings

_BOOK: Mapping[str, isotherm.schemas.Topic] = {topic.name: topic for topic in isotherm.schemas.topics()}


@dataclass(frozen=True)
class TopicRow:
    """A topic and what is known of it."""

    size: TopicSize
    record: str
    """The record that its values are declared to be; empty for a topic that is not declared."""
    description: str
    writers: tuple[str, ...]
    """Connectors and services that write it; the declared ones where none of them speaks."""
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Query:
    """Which records are asked for."""

    since: str = ""
    """As `isotherm.connector.offsets.replay.EXPECTED`; empty for the newest."""
    partition: int | None = None
    text: str = ""
    """What key or value contain."""
    before: str = ""
    """The `older` of another page."""
    after: str = ""
    """The `newer` of another page."""


class TopicBrowser:
    """What the pages and the REST additions say of topics. Everything raises UnavailableError."""

    def __init__(
        self,
        topics: Topics,
        showing: Showing,
        control: Control,
        fleet: Fleet,
        now_ms: Callable[[], int],
        search: SearchSettings,
    ) -> None:
        self._topics, self._showing, self._search = topics, showing, search
        self._control, self._fleet, self._now_ms = control, fleet, now_ms

    def topics(self) -> list[TopicRow]:
        """All topics but Kafka's own, by name."""
        writers: dict[str, list[str]] = {}
        readers: dict[str, list[str]] = {}
        for flow in flows.of(self._control, self._fleet, self._fleet.views(self._now_ms())):
            for topic in flow.writes:
                writers.setdefault(topic, []).append(flow.name)
            for topic in flow.reads:
                readers.setdefault(topic, []).append(flow.name)
        return [_row(size, writers.get(size.name, []), readers.get(size.name, [])) for size in self._topics.listed()]

    def page(self, topic: str, query: Query, limit: int) -> Page[ShownRecord]:
        """Some records of a topic, the newest first; of large values only the beginning.

        Raises BadRequestError for a query that makes no sense, NotFoundError for a topic or partition that is none.
        """
        with self._topics.reader(topic) as reader:
            chosen = _chosen(topic, reader.bounds, query.partition)
            budget = Budget(time.monotonic, most_ms=self._search.timeout_ms, most_bytes=self._search.most_bytes)
            search = Search(reader, self._keep(query.text), budget, limit=limit)
            if query.before:
                return search.older(_given(query.before, chosen, lambda of: of.high))
            if query.after:
                return search.newer(_given(query.after, chosen, lambda of: of.low))
            starts = _starts(reader, chosen, query.since)
            if starts is None:
                return search.older({partition: of.high for partition, of in chosen.items()})
            return search.newer(starts)

    def record(self, topic: str, partition: int, offset: int) -> ShownRecord:
        """One record. Raises NotFoundError."""
        with self._topics.reader(topic) as reader:
            bounds = reader.bounds.get(partition)
            if bounds is not None and bounds.low <= offset < bounds.high:
                found = reader.read({partition: Span(offset, offset + 1)}, b"", None).records.get(partition, ())
                for one in found:
                    return self._showing.show(one)
        raise NotFoundError(f"{topic} has no record {partition}/{offset}")

    def _keep(self, text: str) -> Callable[[Record], ShownRecord | None]:
        def keep(record: Record) -> ShownRecord | None:
            shown = self._showing.show(record)
            if not text:
                return shown.listed
            return shown.listed if shown.contains(text) else None

        return keep


def _row(size: TopicSize, writers: list[str], readers: list[str]) -> TopicRow:
    declared = _BOOK.get(size.name)
    if declared is None:
        return TopicRow(size, "", "", tuple(sorted(writers)), tuple(sorted(readers)))
    return TopicRow(
        size,
        declared.record or "",
        declared.description,
        tuple(sorted(writers or declared.writers)),
        tuple(sorted(readers or {one.service for one in declared.readers})),
    )


def _chosen(topic: str, bounds: Mapping[int, Bounds], partition: int | None) -> Mapping[int, Bounds]:
    if partition is None:
        return bounds
    if partition not in bounds:
        raise NotFoundError(f"{topic} has no partition {partition}")
    return {partition: bounds[partition]}


def _given(text: str, chosen: Mapping[int, Bounds], otherwise: Callable[[Bounds], int]) -> Positions:
    """The positions of a link, for the partitions that are there now."""
    try:
        given = positions_of(text)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    return {partition: given.get(partition, otherwise(of)) for partition, of in chosen.items()}


def _starts(reader: TopicReader, chosen: Mapping[int, Bounds], since: str) -> Positions | None:
    """Where a page begins; None for the newest."""
    try:
        position = replay.parse_position(since or To.LATEST.value)
    except replay.ReplayError as error:
        raise BadRequestError(str(error)) from None
    if position.to is To.LATEST:
        return None
    if position.to is To.EARLIEST:
        return {partition: of.low for partition, of in chosen.items()}
    if position.to is To.TIME:
        found = reader.at_time(position.value)
        return {partition: found[partition] for partition in chosen}
    if len(chosen) > 1:
        raise BadRequestError(f"an offset belongs to one partition, and these are {len(chosen)}: choose one")
    return dict.fromkeys(chosen, position.value)
