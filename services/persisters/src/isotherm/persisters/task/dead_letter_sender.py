"""Sends failed records to the connector's dead-letter topic, with the reasons in Kafka Connect's headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from isotherm.connector.config.validation import Validated
from isotherm.connector.errors.dead_letters import (
    DeadLetterQueue,
    DeadLetterRecord,
    DeadLettersUnavailableError,
    dead_letter_headers,
    ensure_topic,
)
from isotherm.persisters.api.record import FailedRecord
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.lifecycle import Stop


class DeadLetterSender:
    """Sends the failed records of one task; safe to call from several threads."""

    def __init__(
        self, queue: DeadLetterQueue | None, config: Validated, task: int, on_failure: Callable[[int], None]
    ) -> None:
        """Without a queue nothing is sent. `on_failure` is told how many records were not acknowledged."""
        self._queue, self._config, self._task, self._on_failure = queue, config, task, on_failure

    def send(self, failed: Sequence[FailedRecord]) -> None:
        """Send the records and wait until Kafka has acknowledged them. Raises DeadLettersUnavailableError."""
        if self._queue is None:
            return
        try:
            self._queue.send([self._dead_letter(one) for one in failed])
        except DeadLettersUnavailableError:
            self._on_failure(len(failed))
            raise

    def _dead_letter(self, failed: FailedRecord) -> DeadLetterRecord:
        record = failed.record
        headers = dead_letter_headers(
            failed.error,
            stage=failed.stage,
            connector=self._config.name,
            class_name=self._config.definition.klass,
            task=self._task,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            original=record.headers,
        )
        return DeadLetterRecord(record.key, record.value, headers, record.timestamp_ms)


def ensure_dead_letter_topic(
    admin: AdminClient, topic: str, replication_factor: int, health: Health, stop: Stop
) -> None:
    """Create the dead-letter topic unless it exists, again and again with back-off until Kafka answers or `stop`.

    Raises KafkaException if Kafka refuses for good.
    """
    backoff = Backoff()
    while not stop.is_set():
        health.beat()
        try:
            ensure_topic(admin, topic, replication_factor=replication_factor)
            return
        except KafkaException as failure:
            error = error_of(failure)
            if error is None or not error.retriable():
                raise
            health.not_ready("kafka", error.str())
            stop.wait(backoff.next_ms() / 1000)
