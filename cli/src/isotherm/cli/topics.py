"""The topics of Kafka as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import isotherm.schemas
from isotherm.connector.offsets.topic_sizes import topic_sizes
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings


@dataclass(frozen=True)
class Topic:
    """One topic of Kafka."""

    name: str
    partitions: int
    max_records: int
    """Upper bound of the records: offsets without a record count too."""
    record: str
    """The declared record of its values; empty for an undeclared topic."""


def listed(settings: KafkaSettings) -> list[Topic]:
    """Return all topics except Kafka's internal ones, sorted by name. Raises KafkaException."""
    declared = {topic.name: topic.record for topic in isotherm.schemas.topics()}
    sizes = topic_sizes(clients.admin(settings, "isotherm-topics"))
    return [Topic(of.name, of.partitions, of.most_records, declared.get(of.name) or "") for of in sizes]


def text(topics: Iterable[Topic]) -> str:
    """Return one line for each topic: name, partitions, records at most and declared record, separated by tabs."""
    return "".join(f"{of.name}\t{of.partitions}\t{of.max_records}\t{of.record}\n" for of in topics)
