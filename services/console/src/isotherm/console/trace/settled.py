"""Which connectors have settled a record, by their committed offsets and their KCQL."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from isotherm import kcql
from isotherm.connector.config import topic_patterns
from isotherm.connector.config.files import group_of
from isotherm.console.cluster.state import ClusterState, ConnectorView
from isotherm.console.connectors import flows
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.records.record import Record
from isotherm.console.trace.model import State, Step, TopicPartitionOffset

_TRANSFORMS = "transforms"
_PATTERN = "topics.regex"


class Settlements:
    """Tells what each sink connector has done with records. Reads each group once. Raises UnavailableError."""

    def __init__(self, control: ConnectorControl, cluster: ClusterState, offsets: ConnectorOffsets) -> None:
        self._control, self._cluster, self._offsets = control, cluster, offsets
        self._committed: dict[str, dict[tuple[str, int], int]] = {}

    def of(
        self, record: Record, value: Mapping[str, Any] | None, refused_by: Collection[str], now_ms: int
    ) -> Iterator[Step]:
        """Yield a step for each sink that reads the record's topic, but for those that refused it.

        `value` is the decoded record; None where it could not be decoded.
        """
        for view in self._cluster.views(now_ms):
            name = view.connector.name
            is_reader = flows.connector_kind(self._control, view) == "sink" and self._reads(view, record.topic)
            if is_reader and name not in refused_by:
                yield self._step(view, record, value)

    def _reads(self, view: ConnectorView, topic: str) -> bool:
        if topic in flows.connector_topics(self._control, view):
            return True
        pattern = view.connector.config.get(_PATTERN, "")
        with suppress(re.error):
            return bool(pattern and topic_patterns.matching(pattern, [topic]))
        return False

    def _offsets_of(self, group: str) -> dict[tuple[str, int], int]:
        if group not in self._committed:
            found = self._offsets.read(group)
            self._committed[group] = {(one.topic, one.partition): one.offset for one in found}
        return self._committed[group]

    def _step(self, view: ConnectorView, record: Record, value: Mapping[str, Any] | None) -> Step:
        name = view.connector.name
        committed = self._offsets_of(group_of(name)).get((record.topic, record.partition))
        place = TopicPartitionOffset.of(record)
        if committed is None or committed <= record.offset:
            text = "it has committed nothing" if committed is None else f"it has committed offset {committed}"
            return Step(name, State.UNREAD, None, place, f"not settled yet: {text}")
        statements = [one for one in flows.kcql_statements(self._control, view) if one.matches(record.topic)]
        details = {"committed": str(committed), "targets": ", ".join(one.target for one in statements if one.target)}
        if view.connector.config.get(_TRANSFORMS):
            statements = []
        if statements and value is not None and not any(_accepts(one, record, value) for one in statements):
            conditions = " and ".join(one.text for one in statements)
            return Step(name, State.FILTERED, None, place, f"left out by {conditions}", details)
        where = f", for {details['targets']}" if details["targets"] else ""
        return Step(name, State.READ, None, place, f"settled: it has committed offset {committed}{where}", details)


def _accepts(statement: kcql.Statement, record: Record, value: Mapping[str, Any]) -> bool:
    """Whether a statement takes a record; one that fails on it takes it, and then refuses it."""
    accepts = kcql.compile_projection(statement).accepts
    if accepts is None:
        return True
    key = (record.key or b"").decode(errors="replace")
    given = kcql.Record(key, value, record.headers, record.topic, record.partition, record.offset, record.timestamp_ms)
    try:
        return accepts(given)
    except kcql.ProjectionError:
        return True


def refused_by(steps: Iterable[Step]) -> set[str]:
    """Return the connectors that have written dead letters."""
    return {step.hop for step in steps if step.state is State.DEAD_LETTER}
