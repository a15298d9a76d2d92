"""The partitions of one member of the group, each with the number that it has in both topics."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from isotherm.connector.commands.records import COMMANDS, OPEN, OUTCOMES, STEPS

INPUTS = (COMMANDS, STEPS)
_TOPICS = (*INPUTS, OUTCOMES, OPEN)


class AssignmentError(Exception):
    """Commands cannot be settled with these partitions. Going on would decide without the steps of a command."""


class TopicsMissingError(Exception):
    """A topic does not exist yet."""


def count_partitions(admin: AdminClient, timeout_s: float) -> int:
    """Return how many partitions each topic has whose partitions go together.

    Raises AssignmentError when they differ, TopicsMissingError, and KafkaException.
    """
    known = admin.list_topics(timeout=timeout_s).topics
    missing = [topic for topic in _TOPICS if topic not in known or not known[topic].partitions]
    if missing:
        raise TopicsMissingError(f"no topic {', '.join(missing)}; run `isotherm apply`")
    counts = {topic: len(known[topic].partitions) for topic in (*INPUTS, OUTCOMES)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise AssignmentError(f"the topics must have as many partitions as each other: {told}")
    if len(known[OPEN].partitions) != 1:
        raise AssignmentError(f"{OPEN} must have one partition, and has {len(known[OPEN].partitions)}")
    return counts[COMMANDS]


def numbers_of(assigned: Sequence[TopicPartition]) -> list[int]:
    """Return the numbers of the assigned partitions. Raises AssignmentError when the two topics' are not the same."""
    by_topic = {topic: sorted(one.partition for one in assigned if one.topic == topic) for topic in INPUTS}
    if by_topic[COMMANDS] != by_topic[STEPS]:
        raise AssignmentError(
            f"this process got the partitions {by_topic[COMMANDS]} of {COMMANDS}, and {by_topic[STEPS]} of {STEPS}"
        )
    return by_topic[COMMANDS]
