"""What a broker refuses a client, tried by doing it."""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__

from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.settings import KafkaSettings

_CLIENT = "acl-test"
_WITHIN_S = 120.0


def refused_writes(kafka: KafkaSettings, names: Collection[str]) -> set[str]:
    """Write one record to each of these topics; return those that Kafka has refused for lack of an ACL."""
    refused: set[str] = set()
    # Not idempotent: who may write no topic at all is refused as an idempotent producer, before it writes.
    producer = clients.producer(kafka, _CLIENT, enable_idempotence=False)
    for name in names:

        def note(error: KafkaError | None, _message: object, name: str = name) -> None:
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                refused.add(name)

        producer.produce(name, key=_CLIENT, value=b"refused", on_delivery=note)
    assert producer.flush(_WITHIN_S) == 0
    return refused


def refused_reads(kafka: KafkaSettings, names: Collection[str]) -> set[str]:
    """Read each of these topics until Kafka has refused all of them, or two minutes; return those that it has."""
    consumer = clients.consumer(kafka, _CLIENT, _CLIENT)
    refused = {name for name in names if _is_hidden(consumer, name)}
    consumer.assign([TopicPartition(name, 0, 0) for name in sorted(set(names) - refused)])
    limit = time.monotonic() + _WITHIN_S
    try:
        while refused != set(names) and time.monotonic() < limit:
            message = consumer.poll(1.0)
            error = None if message is None else message.error()
            topic = None if message is None else message.topic()
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and topic is not None:
                refused.add(topic)
    finally:
        consumer.close()
    return refused


def _is_hidden(consumer: Consumer, name: str) -> bool:
    """Return whether Kafka refuses even to say what partitions a topic has."""
    error = consumer.list_topics(name, timeout=_WITHIN_S).topics[name].error
    return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def is_topic_refused(kafka: KafkaSettings, name: str) -> bool:
    """Create a topic; return whether Kafka has refused it for lack of an ACL."""
    admin = clients.admin(kafka, _CLIENT)
    try:
        admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(_WITHIN_S)
    except KafkaException as failure:
        return _is(failure, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return False


def is_group_refused(kafka: KafkaSettings, group: str, topic: str) -> bool:
    """Join a group, until Kafka refuses it or two minutes; return whether it has."""
    consumer = clients.consumer(kafka, _CLIENT, group)
    consumer.subscribe([topic])
    limit = time.monotonic() + _WITHIN_S
    try:
        while time.monotonic() < limit:
            message = consumer.poll(1.0)
            error = None if message is None else message.error()
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                return True
    finally:
        consumer.close()
    return False


def is_transactional_id_refused(kafka: KafkaSettings, transactional_id: str) -> bool:
    """Begin to use a transactional id; return whether Kafka has refused it for lack of an ACL."""
    producer = clients.producer(kafka, _CLIENT, transactional_id=transactional_id)
    try:
        producer.init_transactions(_WITHIN_S)
    except KafkaException as failure:
        return _is(failure, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return False


def _is(failure: KafkaException, code: int) -> bool:
    error = error_of(failure)
    assert error is not None
    assert error.code() == code, failure
    return True
