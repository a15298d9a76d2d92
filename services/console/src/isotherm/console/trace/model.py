"""What a trace tells. Pure.

Times are epoch milliseconds. A place in a topic is `topic/partition/offset`, as in the paths of the topic browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import isotherm.schemas
from isotherm.console.records.record import Record
from isotherm.kcql.dates import epoch_ms

SCHEMA = isotherm.schemas.schema("SensorReading", 1)
LATE_TOPIC = "thermostat.late"
_TOPICS = [topic for topic in isotherm.schemas.topics() if topic.record == "SensorReading" and topic.name != LATE_TOPIC]
AGGREGATED_TOPICS = tuple(one.name for one in _TOPICS if "aggregator" in {reader.service for reader in one.readers})
READING_TOPICS = (*AGGREGATED_TOPICS, *(one.name for one in _TOPICS if one.name not in AGGREGATED_TOPICS))
"""The declared topics that readings enter the suite by, those of the aggregator first."""


class State(StrEnum):
    """What a step of a trace has found."""

    RECEIVED = "received"
    STORED = "stored"
    COPIED = "copied"
    """The same reading is stored once more."""
    LATE = "late"
    DEAD_LETTER = "dead letter"
    WINDOWED = "windowed"
    REVISED = "revised"
    """A later revision of its window."""
    ALERTED = "alerted"
    READ = "read"
    """A connector has committed an offset after the record, its KCQL takes it, and nothing says that it was refused."""
    FILTERED = "filtered"
    """A connector has read the record, and no statement of its KCQL takes it."""
    WRITTEN = "written"
    """The connector's store has the row as the connector wrote it; it was read back."""
    REPLACED = "replaced"
    """The store has a newer row in its place."""
    ALTERED = "altered"
    """The store has another row in its place, and nothing says that it is newer."""
    MISSING = "missing"
    """The store has no row in its place."""
    UNREAD = "unread"
    """A connector has not committed an offset after the record."""
    UNPUBLISHED = "unpublished"
    """No window with it was published up to now, and it is neither late nor refused."""


class TopicPartitionOffset(NamedTuple):
    """A record's place in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def of(cls, record: Record) -> TopicPartitionOffset:
        """Return the place of a record."""
        return cls(record.topic, record.partition, record.offset)


@dataclass(frozen=True, slots=True)
class Reading:
    """A SensorReading record, decoded."""

    device_id: str
    metric: str
    value: float
    unit: str
    event_time_ms: int
    ingest_time_ms: int
    sequence: int

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """What makes two records the same reading (`isotherm.identity` of the schema)."""
        return (self.device_id, self.metric, self.event_time_ms, self.sequence)


def reading_of(record: Mapping[str, Any]) -> Reading:
    """Read a decoded SensorReading record."""
    return Reading(
        record["device_id"],
        record["metric"],
        record["value"],
        record["unit"],
        epoch_ms(record["event_time"]),
        epoch_ms(record["ingest_time"]),
        record["sequence"],
    )


class StoredReading(NamedTuple):
    """A reading with the record that holds it."""

    reading: Reading
    record: Record


@dataclass(frozen=True)
class Step:
    """One step of a reading's life."""

    hop: str
    """The service, topic or connector."""
    state: State
    at_ms: int | None
    """When it happened: the append time of the record that tells it; None where only the fact is known."""
    record: TopicPartitionOffset | None
    """The record that tells it, or that a connector was asked about."""
    text: str
    """A sentence for a person, without a full stop."""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """A reading, and its life."""

    reading: Reading
    is_exact: bool
    """Whether it is the reading that was asked for, and not only the nearest one in time."""
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    """Where a search ended before the end of its topic, and what could not be read."""


@dataclass(frozen=True)
class Question:
    """Which reading of a device to trace: the newest one, or one by its time, its sequence or its place."""

    device_id: str
    metric: str = ""
    """Empty for any."""
    at_ms: int | None = None
    sequence: int | None = None
    record: TopicPartitionOffset | None = None
