"""`isotherm topics`: what Kafka has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import TopicPartition

import isotherm_schemas
from connector.replay import TIMEOUT_S, bounds
from servicekit import kafka as clients
from servicekit.settings import KafkaSettings


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
    admin = clients.admin(settings, "isotherm-topics")
    found = admin.list_topics(timeout=TIMEOUT_S).topics
    sizes = {name: len(of.partitions) for name, of in found.items() if not name.startswith("__")}
    places = [TopicPartition(name, number) for name, count in sizes.items() for number in range(count)]
    most: dict[str, int] = {}
    for (name, _), (low, high) in bounds(admin, places).items():
        most[name] = most.get(name, 0) + high - low
    declared = {topic.name: topic.record for topic in isotherm_schemas.topics()}
    return [Topic(name, count, most[name], declared.get(name) or "") for name, count in sorted(sizes.items())]


def text(topics: Iterable[Topic]) -> str:
    """One line for each topic: name, partitions, records at most and what they are, with tabs between."""
    return "".join(f"{of.name}\t{of.partitions}\t{of.most_records}\t{of.record}\n" for of in topics)
