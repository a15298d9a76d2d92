"""Records topics: every record with its state (committed or aborted), and dead letters with their origin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.proofs.history.format import COAP, MQTT
from isotherm.proofs.history.recording.avro_values import AvroValues
from isotherm.proofs.history.recording.history_file import HistoryFile, owner

_REQUEST_TIMEOUT_S = 30.0
_POLL_S = 0.5
_BATCH = 1_000
_SERVICES = {"mqtt.topic": MQTT, "coap.uri": COAP}
_ERROR = "__connect.errors."
_LATE_READINGS = "aggregator.late_readings"
"""Header of a corrected window."""


class TopicReader:
    """Reads the topics of one cluster from their beginning to their end, outside of any group."""

    def __init__(self, kafka: Mapping[str, Any], avro: AvroValues) -> None:
        """`kafka` holds the client's properties, `bootstrap.servers` among them."""
        self._kafka = dict(kafka)
        self._avro = avro

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of every topic."""
        consumer = self._consumer("read_committed")
        try:
            topics = consumer.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
            return {name: len(topic.partitions) for name, topic in topics.items()}
        finally:
            consumer.close()

    def record(self, history: HistoryFile, topic: str) -> dict[tuple[Any, ...], str]:
        """Write a topic's records and ends; return the keys by identity."""
        committed: dict[int, set[int]] = defaultdict(set)
        for message in self._read(topic, "read_committed", None):
            committed[_number(message.partition())].add(_number(message.offset()))
        keys: dict[tuple[Any, ...], str] = {}
        for message in self._read(topic, "read_uncommitted", history):
            partition, offset = _number(message.partition()), _number(message.offset())
            decoded = self._avro.decode(message.value() or b"")
            key = _text(message.key())
            headers = dict(_headers(message))
            if decoded is not None:
                keys[tuple(map(str, decoded.identity))] = key
            history.write(
                "record",
                topic=topic,
                partition=partition,
                offset=offset,
                time=message.timestamp()[1],
                key=key,
                device=owner(decoded.identity, decoded.value) if decoded else key,
                id=decoded.identity if decoded else None,
                state="committed" if offset in committed[partition] else "aborted",
                value=decoded.value if decoded else {},
                via=next((service for header, service in _SERVICES.items() if header in headers), None),
                **({"late_readings": int(headers[_LATE_READINGS])} if _LATE_READINGS in headers else {}),
            )
        return keys

    def record_dead_letters(self, history: HistoryFile, topic: str, groups: frozenset[str]) -> None:
        """Write the dead letters of a topic; `groups` are the groups of sinks, `connect-<connector>`."""
        for message in self._read(topic, "read_committed", None):
            errors = {
                name.removeprefix(_ERROR): _text(value) for name, value in _headers(message) if name.startswith(_ERROR)
            }
            origin = None
            if errors.get("topic") and errors.get("offset", "").isdecimal():
                origin = [errors["topic"], int(errors["partition"]), int(errors["offset"])]
            group = f"connect-{errors.get('connector.name', '')}"
            reason = errors.get("exception.message", "")
            named = group if group in groups else None
            history.write("dead-letter", topic=topic, origin=origin, group=named, reason=reason)

    def values(self, topic: str) -> Iterator[dict[str, Any]]:
        """Yield the decoded committed records of a topic."""
        for message in self._read(topic, "read_committed", None):
            decoded = self._avro.decode(message.value() or b"")
            if decoded is not None:
                yield decoded.value

    def _read(self, topic: str, isolation: str, history: HistoryFile | None) -> Iterator[Message]:
        """Yield the records up to the ends at the start; write these ends into `history`."""
        consumer = self._consumer(isolation)
        try:
            numbers = sorted(consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
            unread = set(numbers)
            while unread:
                for message in consumer.consume(_BATCH, _POLL_S):
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unread.discard(_number(message.partition()))
                    else:
                        raise KafkaException(error)
            for number in numbers if history is not None else ():
                first, last = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_REQUEST_TIMEOUT_S)
                assert history is not None
                history.write("topic-end", topic=topic, partition=number, first=first, last=last)
        finally:
            consumer.close()

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer(
            {
                **self._kafka,
                "group.id": "isotherm-history",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )


def _headers(message: Message) -> list[tuple[str, Any]]:
    return cast("list[tuple[str, Any]]", message.headers() or [])


def _number(value: int | None) -> int:
    assert value is not None
    return value


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
