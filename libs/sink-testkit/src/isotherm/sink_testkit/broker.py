"""Kafka for the kit: librdkafka's mock broker, which lives in the test's process and answers over TCP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from isotherm.connector.config.files import group_of
from isotherm.persisters.buffers.accounting import Counts

PARTITIONS = 4
"""Of every topic: what the mock broker gives a topic that it does not know yet."""
_TIMEOUT_S = 30.0


class KafkaDidNotAnswer(RuntimeError):
    """The mock broker does not do what the kit needs."""


class DeadLetter(NamedTuple):
    """A record of a dead-letter topic."""

    value: bytes | None
    headers: Mapping[str, bytes]


class MockBroker:
    """One broker; topics exist as soon as somebody names them."""

    def __init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "linger.ms": 0})
        brokers = self._producer.list_topics(timeout=_TIMEOUT_S).brokers.values()
        self.bootstrap_servers = ",".join(f"{one.host}:{one.port}" for one in brokers)

    def produce(self, topic: str, records: Iterable[tuple[int, str, bytes | None]]) -> None:
        """Write values by partition and key; all are acknowledged on return."""
        failures: list[Any] = []
        for partition, key, value in records:
            self._producer.produce(
                topic,
                value,
                key.encode(),
                partition,
                on_delivery=lambda error, _message: failures.append(error) if error else None,
                headers=[("kit", b"kept")],
            )
        if self._producer.flush(_TIMEOUT_S) or failures:
            raise KafkaDidNotAnswer(f"records were not acknowledged: {failures[:1]}")

    def counts(self, connector: str, topic: str) -> Counts:
        """Return what a connector has committed about all partitions of a topic."""
        total = Counts()
        for one in self._committed(connector, topic):
            total.add(Counts.from_metadata(one.metadata))
        return total

    def positions(self, connector: str, topic: str) -> list[int]:
        """Return the committed offset of each partition, 0 for one that has none."""
        return [max(0, one.offset) for one in self._committed(connector, topic)]

    def rewind(self, connector: str, topic: str) -> None:
        """Set a connector without tasks back to the beginning of a topic."""
        consumer = self._consumer(group_of(connector))
        partitions = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        consumer.commit(offsets=partitions, asynchronous=False)
        consumer.close()

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        """Return what a dead-letter topic holds."""
        consumer = self._consumer("kit-dead-letters")
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        found: list[DeadLetter] = []
        ended = 0
        while ended < PARTITIONS:
            message = consumer.poll(_TIMEOUT_S)
            if message is None:
                raise KafkaDidNotAnswer(f"{topic}: its end was not reached within {_TIMEOUT_S:g} s")
            if message.error() is None:
                found.append(_dead_letter(message))
            else:
                ended += 1
        consumer.close()
        return found

    def _committed(self, connector: str, topic: str) -> list[TopicPartition]:
        consumer = self._consumer(group_of(connector))
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        found: list[TopicPartition] = consumer.committed(partitions, timeout=_TIMEOUT_S)
        consumer.close()
        return found

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )


def _dead_letter(message: Message) -> DeadLetter:
    headers: Any = message.headers() or ()
    return DeadLetter(message.value(), dict(headers))
