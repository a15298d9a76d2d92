"""The topic browser: topics with their writers and readers, and pages of masked records."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import isotherm.schemas
from isotherm.connector.offsets import replay
from isotherm.connector.offsets.replay import To
from isotherm.connector.offsets.topic_sizes import TopicSize
from isotherm.console.browser.record_masking import MaskedRecord, RecordMasker
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors import flows
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.errors import BadRequestError, NotFoundError
from isotherm.console.records.paging import (
    Bounds,
    Page,
    Positions,
    Search,
    SearchBudget,
    TopicReader,
    positions_of,
    record_at,
)
from isotherm.console.records.record import Record
from isotherm.console.records.topics import Topics
from isotherm.console.settings import SearchSettings

_DECLARED: Mapping[str, isotherm.schemas.Topic] = {topic.name: topic for topic in isotherm.schemas.topics()}


@dataclass(frozen=True)
class TopicRow:
    """A topic for the list of topics."""

    size: TopicSize
    record: str
    """The declared record of its values; empty for an undeclared topic."""
    description: str
    writers: tuple[str, ...]
    """Running connectors and services that write it; the declared ones if none is running."""
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Query:
    """Which records of a topic to return."""

    since: str = ""
    """A position as `isotherm.connector.offsets.replay.EXPECTED` describes it; empty for the newest records."""
    partition: int | None = None
    text: str = ""
    """Text that key or value must contain."""
    before: str = ""
    """The `older` positions of another page."""
    after: str = ""
    """The `newer` positions of another page."""


class TopicBrowser:
    """Lists topics and searches their records. Every method raises UnavailableError."""

    def __init__(
        self,
        topics: Topics,
        masker: RecordMasker,
        control: ConnectorControl,
        cluster: ClusterState,
        now_ms: Callable[[], int],
        search: SearchSettings,
    ) -> None:
        self._topics, self._masker, self._search = topics, masker, search
        self._control, self._cluster, self._now_ms = control, cluster, now_ms

    def topics(self) -> list[TopicRow]:
        """Return all topics except Kafka's internal ones, sorted by name."""
        writers: dict[str, list[str]] = {}
        readers: dict[str, list[str]] = {}
        for flow in flows.flows_of(self._control, self._cluster, self._cluster.views(self._now_ms())):
            for topic in flow.writes:
                writers.setdefault(topic, []).append(flow.name)
            for topic in flow.reads:
                readers.setdefault(topic, []).append(flow.name)
        return [_row(size, writers.get(size.name, []), readers.get(size.name, [])) for size in self._topics.listed()]

    def page(self, topic: str, query: Query, limit: int) -> Page[MaskedRecord]:
        """Return a page of a topic's records, the newest first, with large values cut.

        Raises BadRequestError for an invalid query, NotFoundError for an unknown topic or partition.
        """
        with self._topics.reader(topic) as reader:
            chosen = _chosen(topic, reader.bounds, query.partition)
            budget = SearchBudget(time.monotonic, max_ms=self._search.timeout_ms, max_bytes=self._search.max_bytes)
            search = Search(reader, self._keep(query.text), budget, limit=limit)
            if query.before:
                return search.older(_link_positions(query.before, chosen, lambda of: of.high))
            if query.after:
                return search.newer(_link_positions(query.after, chosen, lambda of: of.low))
            starts = _starts(reader, chosen, query.since)
            if starts is None:
                return search.older({partition: of.high for partition, of in chosen.items()})
            return search.newer(starts)

    def record(self, topic: str, partition: int, offset: int) -> MaskedRecord:
        """Return one record. Raises NotFoundError."""
        with self._topics.reader(topic) as reader:
            found = record_at(reader, partition, offset)
        if found is not None:
            return self._masker.mask(found)
        raise NotFoundError(f"{topic} has no record {partition}/{offset}")

    def _keep(self, text: str) -> Callable[[Record], MaskedRecord | None]:
        def keep(record: Record) -> MaskedRecord | None:
            shown = self._masker.mask(record)
            if not text:
                return shown.listed
            return shown.listed if shown.contains(text) else None

        return keep


def _row(size: TopicSize, writers: list[str], readers: list[str]) -> TopicRow:
    declared = _DECLARED.get(size.name)
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


def _link_positions(text: str, chosen: Mapping[int, Bounds], otherwise: Callable[[Bounds], int]) -> Positions:
    """Return the positions of a link for the partitions that exist now."""
    try:
        given = positions_of(text)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    return {partition: given.get(partition, otherwise(of)) for partition, of in chosen.items()}


def _starts(reader: TopicReader, chosen: Mapping[int, Bounds], since: str) -> Positions | None:
    """Return the offsets where a page begins; None for the newest records."""
    try:
        position = replay.parse_position(since or To.LATEST.value)
    except replay.ReplayError as error:
        raise BadRequestError(str(error)) from None
    if position.to is To.LATEST:
        return None
    if position.to is To.EARLIEST:
        return {partition: of.low for partition, of in chosen.items()}
    if position.to is To.TIME:
        found = reader.offsets_at(position.value)
        return {partition: found[partition] for partition in chosen}
    if len(chosen) > 1:
        raise BadRequestError(f"an offset belongs to one partition, and the topic has {len(chosen)}: choose one")
    return dict.fromkeys(chosen, position.value)
