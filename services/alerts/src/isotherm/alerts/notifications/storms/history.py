"""Finds out which alerts are open in the storms that an earlier run of a route has begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, Message, TopicPartition

from isotherm.alerts.input.unread_partitions import UnreadPartitions
from isotherm.alerts.notifications.grouping import PendingAlert
from isotherm.alerts.notifications.storms.placement import Storms
from isotherm.servicekit.kafka.consuming import consume_available

_BATCH = 1_000
_POLL_S = 0.2
_REQUEST_S = 10.0
_EARLIER = 1_000
"""So many records before a storm are read too: alerts that were told by themselves just before it may be repeated."""


def read_open_alerts(
    storms: Storms,
    consumer: Consumer,
    topic: str,
    committed: Mapping[int, int],
    pending_of: Callable[[Message], PendingAlert | None],
    is_ended: Callable[[], bool],
) -> None:
    """Read the topic from the begin of the storms to the committed offsets, behind which the route itself reads.

    Raises KafkaException and RegistryUnavailableError.

    Args:
        storms: takes what is read.
        consumer: reports the ends of partitions; it is closed.
        topic: the topic of alerts.
        committed: the offsets by partition.
        pending_of: decodes a record; None for one that is none of the route's.
        is_ended: returns whether the route is to stop.
    """
    try:
        starts = {}
        for number, first in storms.starts().items():
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_REQUEST_S)
            starts[number] = max(low, first - _EARLIER)
        unread = UnreadPartitions(consumer, topic, starts)
        consumer.assign([TopicPartition(topic, number, starts[number]) for number in sorted(unread.numbers)])
        while unread.numbers and not is_ended():
            for message in consume_available(consumer, _BATCH, _POLL_S):
                is_past = (message.offset() or 0) < committed.get(message.partition() or 0, 0)
                if unread.note(message) and is_past and (pending := pending_of(message)) is not None:
                    storms.note_past(pending)
    finally:
        consumer.close()
