"""Which topics Kafka has, and how much is kept in them."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from isotherm.connector.offsets.replay import TIMEOUT_S, offset_bounds

OWN = "__"
"""How the names of Kafka's own topics begin."""


@dataclass(frozen=True)
class TopicSize:
    """One topic of Kafka."""

    name: str
    partitions: int
    most_records: int
    """Places of ended transactions that are kept: their markers and compacted records count too."""


def topic_sizes(admin: AdminClient, timeout_s: float = TIMEOUT_S) -> list[TopicSize]:
    """All topics but Kafka's own, by name. `timeout_s` is for the list of topics. Raises KafkaException."""
    known = admin.list_topics(timeout=timeout_s).topics
    partitions = {name: len(of.partitions) for name, of in known.items() if not name.startswith(OWN)}
    places = [TopicPartition(name, number) for name, count in partitions.items() for number in range(count)]
    sizes = dict.fromkeys(partitions, 0)
    for (name, _), (low, high) in offset_bounds(admin, places).items():
        sizes[name] += high - low
    return [TopicSize(name, partitions[name], size) for name, size in sorted(sizes.items())]
