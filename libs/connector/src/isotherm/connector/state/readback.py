"""The topics by which the console asks what stores have, and connectors answer: records to values and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import isotherm.schemas
from isotherm.kcql.dates import epoch_ms

REQUESTS, ANSWERS = "isotherm.readback.requests", "isotherm.readback.answers"
REQUEST_SCHEMA = isotherm.schemas.schema("ReadbackRequest", 1)
ANSWER_SCHEMA = isotherm.schemas.schema("ReadbackAnswer", 1)


class ReadbackRequest(NamedTuple):
    """A record of Kafka, and the connector whose store is to be asked for it."""

    id: str
    connector: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    def record(self, asked_ms: int) -> dict[str, Any]:
        """Return it as a ReadbackRequest record."""
        return {
            "id": self.id,
            "connector": self.connector,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp_ms,
            "key": self.key,
            "value": self.value,
            "headers": [{"name": name, "value": value} for name, value in self.headers],
            "asked_at": asked_ms,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ReadbackRequest:
        """Read a decoded record."""
        return cls(
            record["id"],
            record["connector"],
            record["topic"],
            record["partition"],
            record["offset"],
            epoch_ms(record["timestamp"]),
            record["key"],
            record["value"],
            [(header["name"], header["value"]) for header in record["headers"]],
        )


class ReadbackRow(NamedTuple):
    """What a store has under one target and id."""

    target: str
    id: str
    finding: str
    text: str = ""
    row: str | None = None
    """JSON."""


class ReadbackAnswer(NamedTuple):
    """What a connector's store has of a record."""

    request: str
    connector: str
    task: int
    worker: str
    rows: Sequence[ReadbackRow]
    problem: str | None = None
    """Why no row was read back; None if rows were."""

    def record(self, answered_ms: int) -> dict[str, Any]:
        """Return it as a ReadbackAnswer record."""
        return {
            **self._asdict(),
            "rows": [row._asdict() for row in self.rows],
            "answered_at": answered_ms,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ReadbackAnswer:
        """Read a decoded record."""
        rows = [ReadbackRow(*(row[name] for name in ReadbackRow._fields)) for row in record["rows"]]
        return cls(record["request"], record["connector"], record["task"], record["worker"], rows, record["problem"])
