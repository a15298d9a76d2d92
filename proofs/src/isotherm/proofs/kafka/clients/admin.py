"""confluent_kafka's AdminClient for simulated threads, over the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.thread_clients import Caller, kafka_error, listed_topics
from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kernel.simulation import Simulation


class AdminClient:
    """confluent_kafka.AdminClient, as far as the services use it."""

    def __init__(self, connection: Connection, run: Simulation) -> None:
        self._cluster = connection.cluster
        self._caller = Caller(connection, run)

    def list_topics(self, topic: str | None = None, timeout: float = 60.0) -> Any:
        """Return the topics. Raises KafkaException."""
        return listed_topics(self._caller, topic, timeout)

    def list_offsets(
        self, partitions: Iterable[TopicPartition], *, request_timeout: float = 60.0, **_isolation: object
    ) -> dict[TopicPartition, Future[Any]]:
        """Return the end of each partition, open transactions included. Raises KafkaException."""
        return {one: self._end(one, request_timeout) for one in partitions}

    def _end(self, partition: TopicPartition, timeout_s: float) -> Future[Any]:
        where = partition.topic, partition.partition

        def ask(answer: Callable[[object], None]) -> None:
            answer(self._cluster.log_of(where).end)

        try:
            leader = self._cluster.leader_of(where)
        except RefusedError as refused:
            raise KafkaException(kafka_error(refused.code)) from None
        found: Future[Any] = Future()
        found.set_result(SimpleNamespace(offset=self._caller.call(leader, ask, 1000 * timeout_s)))
        return found
