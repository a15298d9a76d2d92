"""`isotherm topics`: what Kafka has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # re-exported there, but not in its __all__

import isotherm_schemas
from servicekit import kafka as clients
from servicekit.settings import KafkaSettings

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Topic:
    """One topic of Kafka."""

    name: str
    partitions: int
    most_records: int
    """Places that are kept: markers of transactions and compacted records count too."""
    record: str
    """The record that its values are declared to be; empty for a topic that is not declared."""


def listed(settings: KafkaSettings) -> list[Topic]:
    """All topics but Kafka's own, by name. Raises KafkaException."""
    admin = clients.admin(settings, "isotherm-topics")
    found = admin.list_topics(timeout=_TIMEOUT_S).topics
    sizes = {name: len(of.partitions) for name, of in found.items() if not name.startswith("__")}
    places = [TopicPartition(name, number) for name, count in sizes.items() for number in range(count)]
    earliest, latest = (
        {
            (of.topic, of.partition): future.result().offset
            for of, future in admin.list_offsets(dict.fromkeys(places, spec), request_timeout=_TIMEOUT_S).items()
        }
        for spec in (
            OffsetSpec.earliest(),  # type: ignore[no-untyped-call]  # it has no annotations
            OffsetSpec.latest(),  # type: ignore[no-untyped-call]
        )
    )
    declared = {topic.name: topic.record for topic in isotherm_schemas.topics()}
    return [
        Topic(
            name,
            count,
            sum(latest[name, number] - earliest[name, number] for number in range(count)),
            declared.get(name) or "",
        )
        for name, count in sorted(sizes.items())
    ]


def text(topics: Iterable[Topic]) -> str:
    """One line for each topic: name, partitions, records at most and what they are, with tabs between."""
    return "".join(f"{of.name}\t{of.partitions}\t{of.most_records}\t{of.record}\n" for of in topics)
