"""Reads the sessions topic to its end and decides the transactions of processes that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    OffsetSpec,
)

from isotherm.servicekit import logs
from isotherm.servicekit.kafka.consuming import assign_from_start, consume_available
from isotherm.servicekit.kafka.offsets import list_offsets
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_REQUEST_TIMEOUT_S = 10.0
_BATCH = 1_000
_WAIT_S = 0.5


def end_offsets(admin: AdminClient, topic: str) -> dict[int, int]:
    """Return the end offset of each partition of `topic`, open transactions included. Raises KafkaException."""
    metadata = admin.list_topics(topic, timeout=_REQUEST_TIMEOUT_S).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library leaves it untyped
    partitions = [(topic, number) for number in metadata.partitions]
    found = list_offsets(admin, partitions, latest, committed=False, timeout_s=_REQUEST_TIMEOUT_S)
    return {number: one.offset for (_, number), one in found.items()}


def fence(producer: Producer, transactional_id: str) -> None:
    """Fence the earlier producer with the id of `producer`, and decide the transaction that it left open.

    Raises KafkaException.
    """
    producer.init_transactions(_REQUEST_TIMEOUT_S)
    _log.info("fenced a process that does not exist any more", transactional_id=transactional_id)


def read_to_end(consumer: Consumer, topic: str, ends: dict[int, int], stop: Stop) -> Iterator[Message]:
    """Yield every committed record before `ends`; the consumer must report partition ends.

    A read_committed consumer stops before an open transaction. It reaches the end when that transaction is decided, at
    the latest when Kafka's transaction timeout aborts it. The iteration ends early at `stop`. Raises KafkaException.
    """
    assign_from_start(consumer, topic, ends, _REQUEST_TIMEOUT_S)
    behind = {partition for partition, end in ends.items() if end > 0}
    while behind and not stop.is_set():
        messages = consume_available(consumer, _BATCH, _WAIT_S)
        if not messages:
            _log.info(
                "waiting for the end of the topic; a transaction may be open", topic=topic, partitions=sorted(behind)
            )
        for message in messages:
            error = message.error()
            partition, offset = message.partition(), message.offset()
            if error is None:
                yield message
                if partition is not None and offset is not None and offset + 1 >= ends[partition]:
                    # Other processes write on, so the reported end may always be a later one.
                    behind.discard(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                if partition is not None and offset is not None and offset >= ends[partition]:
                    behind.discard(partition)
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)


def is_committed(
    make_consumer: Callable[[], Consumer], position: tuple[str, int, int], is_over: Callable[[], bool]
) -> bool:
    """Return whether a read_committed reader finds a record at `position` (topic, partition, offset).

    The record's transaction must be decided: the `init_transactions` of the producer's successor does that. Asks until
    Kafka answers or `is_over`. `make_consumer` returns a consumer that reports partition ends and fails for an offset
    that Kafka does not have. Raises KafkaException when Kafka has deleted the record, and when `is_over`.
    """
    topic, partition, offset = position
    consumer = make_consumer()
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        while not is_over():
            for message in consumer.consume(1, _WAIT_S):
                error, found = message.error(), message.offset()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    if found is not None and (error is None or found > offset):
                        return error is None and found == offset
                elif error.fatal() or not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.close()
    raise KafkaException(KafkaError(KafkaError._DESTROY, "the process was told to end before Kafka answered"))
