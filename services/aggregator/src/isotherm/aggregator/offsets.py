"""Kafka offsets by partition, and the JSON form in which Spark's Kafka source takes and writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

Partition = tuple[str, int]
"""The name of a topic and the number of a partition."""


def by_topic(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Return offsets in Spark's JSON form: topic, then partition number as text, then offset."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return topics


def by_partition(topics: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """Return offsets in Spark's JSON form as offsets by partition; the inverse of `by_topic`."""
    return {(topic, int(number)): offset for topic, numbers in topics.items() for number, offset in numbers.items()}
