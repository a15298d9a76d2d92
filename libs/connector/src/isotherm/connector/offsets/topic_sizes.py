"""Kafka's topics and their sizes in records."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from isotherm.connector.offsets.replay import TIMEOUT_S, offset_bounds

INTERNAL_PREFIX = "__"
"""Prefix of Kafka's internal topics."""


@dataclass(frozen=True)
class TopicSize:
    """One topic's partitions and records."""

    name: str
    partitions: int
    most_records: int
    """Upper bound of the records: the range of offsets, which also counts transaction markers and compacted records."""


def topic_sizes(admin: AdminClient, timeout_s: float = TIMEOUT_S) -> list[TopicSize]:
    """All topics except Kafka's internal ones, by name; `timeout_s` bounds the listing. Raises KafkaException."""
    known = admin.list_topics(timeout=timeout_s).topics
    counts = {name: len(of.partitions) for name, of in known.items() if not name.startswith(INTERNAL_PREFIX)}
    partitions = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
    sizes = dict.fromkeys(counts, 0)
    for (name, _), (low, high) in offset_bounds(admin, partitions).items():
        sizes[name] += high - low
    return [TopicSize(name, counts[name], size) for name, size in sorted(sizes.items())]
