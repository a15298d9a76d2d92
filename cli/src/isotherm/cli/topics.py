"""`isotherm topics`: what Kafka has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import isotherm.schemas
from isotherm.connector.offsets.topic_sizes import topic_sizes
from isotherm.servicekit import kafka as clients
from isotherm.servicekit.settings import KafkaSettings


@dataclass(frozen=True)
class Topic:
    """One topic of Kafka."""

    name: str
    partitions: int
    most_records: int
    """Places of ended transactions that are kept: their markers and compacted records count too."""
    record: str
    """The record that its values are declared to be; empty for a topic that is not declared."""


def listed(settings: KafkaSettings) -> list[Topic]:
    """All topics but Kafka's own, by name. Raises KafkaException."""
    declared = {topic.name: topic.record for topic in isotherm.schemas.topics()}
    sizes = topic_sizes(clients.admin(settings, "isotherm-topics"))
    return [Topic(of.name, of.partitions, of.most_records, declared.get(of.name) or "") for of in sizes]


def text(topics: Iterable[Topic]) -> str:
    """One line for each topic: name, partitions, records at most and what they are, with tabs between."""
    return "".join(f"{of.name}\t{of.partitions}\t{of.most_records}\t{of.record}\n" for of in topics)
