"""Finds the records of an MQTT client's publishes around a time, by the headers that mqtt-proxy gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.connector.config.dead_letter_topics import SUFFIX
from isotherm.connector.errors.dead_letters import PREFIX
from isotherm.console.records.record import Record, header_text
from isotherm.console.trace.model import READING_TOPICS, TopicPartitionOffset
from isotherm.console.trace.scan import Scanner

CLIENT, PACKET, TOPIC, QOS = "mqtt.client_id", "mqtt.packet_id", "mqtt.topic", "mqtt.qos"
_REASON = f"{PREFIX}exception.message"
_MAX_PUBLISHES = 500
"""Of one client and one topic of Kafka."""


@dataclass(frozen=True, slots=True)
class StoredPublish:
    """A record of a publish."""

    record: TopicPartitionOffset
    device_id: str
    """The record's key; of a dead letter the client."""
    stored_ms: int
    topic: str
    qos: str
    packet_id: str
    """Empty where mqtt-proxy does not write it (`headers.packet_id`), and at QoS 0."""
    refused: str
    """Why it is a dead letter; empty for a record that is none."""


class PublishFinder:
    """Finds publishes in the topics of readings and in dead-letter queues."""

    def __init__(self, scanner: Scanner, queues: Sequence[str]) -> None:
        self._scanner, self._queues = scanner, queues

    def find(self, client_id: str, at_ms: int, within_ms: int, packet_id: int | None = None) -> list[StoredPublish]:
        """Return the records of a client's publishes that were stored up to `within_ms` before or after a time.

        Those nearest to the time come first. With a `packet_id` only those of this packet identifier. Raises
        UnavailableError.
        """
        wanted = None if packet_id is None else str(packet_id)

        def keep(record: Record) -> StoredPublish | None:
            found = _publish_of(record, client_id)
            return found if found is not None and wanted in (None, found.packet_id) else None

        found: list[StoredPublish] = []
        topics = (*READING_TOPICS, *(name for name in self._queues if name not in READING_TOPICS))
        for topic in topics:
            found += self._scanner.between(
                topic, at_ms - within_ms, at_ms + within_ms, keep, limit=_MAX_PUBLISHES, share=1 / len(topics)
            )
        return sorted(found, key=lambda one: (abs(one.stored_ms - at_ms), one.record))


def _publish_of(record: Record, client_id: str) -> StoredPublish | None:
    headers = {name: value for name, value in record.headers if name in _NAMES}
    if header_text(headers.get(CLIENT)) != client_id or not headers:
        return None
    refused = header_text(headers.get(_REASON)) if record.topic.endswith(SUFFIX) else ""
    # A dead letter of another service has the headers of its record, too, and is told by the trace of that one.
    if record.topic.endswith(SUFFIX) and f"{PREFIX}partition" in headers:
        return None
    return StoredPublish(
        TopicPartitionOffset.of(record),
        (record.key or b"").decode(errors="replace"),
        record.timestamp_ms,
        header_text(headers.get(TOPIC)),
        header_text(headers.get(QOS)),
        header_text(headers.get(PACKET)),
        refused,
    )


_NAMES = frozenset((CLIENT, PACKET, TOPIC, QOS, _REASON, f"{PREFIX}partition"))
