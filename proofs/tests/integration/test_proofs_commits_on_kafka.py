"""A commit that Kafka refuses for one of its partitions: the client of the model does what the real one does."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its __all__

from isotherm.stack.servers.kafka import Kafka

pytestmark = pytest.mark.integration

TOPIC, GROUP = "commits-known", "commits"
TIMEOUT_S = 30.0


def test_the_error_of_one_partition_is_that_of_the_commit_and_the_others_are_stored(kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for created in admin.create_topics([NewTopic(TOPIC, 1)]).values():
        created.result(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": GROUP})
    places = [TopicPartition(TOPIC, 0, 7), TopicPartition("commits-unknown", 0, 7)]
    try:
        with pytest.raises(KafkaException) as refusal:
            consumer.commit(offsets=places, asynchronous=False)
        error = refusal.value.args[0]
        assert isinstance(error, KafkaError)
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        (stored,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=TIMEOUT_S)
        assert stored.offset == 7
    finally:
        consumer.close()
