"""Dead-letter records: a record's original key, value and headers, and the reason for its failure.

The headers are Kafka Connect's (`DeadLetterQueueReporter`, KIP-298), so that tools for Connect's dead letters can read
them.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    NewTopic,
)

from isotherm.servicekit import logs
from isotherm.servicekit.kafka.errors import error_of

PREFIX = "__connect.errors."
STAGES = ("KEY_CONVERTER", "VALUE_CONVERTER", "HEADER_CONVERTER", "TRANSFORMATION", "KAFKA_CONSUME", "TASK_PUT")
"""Connect's names of the stages at which a record can fail; projection by KCQL is a TRANSFORMATION."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Limit of one dead-letter record: it holds its record and more headers, so its topic must allow larger records."""

_MAX_MESSAGE_CHARACTERS = 4_000
_MAX_TRACE_CHARACTERS = 16_000

_log = logs.logger(__name__)

Headers = list[tuple[str, str | bytes | None]]


class DeadLettersUnavailableError(Exception):
    """Kafka did not acknowledge a dead-letter record, so the task must not skip the failed record."""


@dataclass(frozen=True)
class DeadLetterRecord:
    """One record for the dead-letter topic, ready to be produced."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int = 0
    """Epoch milliseconds; 0 means the time of producing."""


def dead_letter_headers(
    error: BaseException,
    *,
    stage: str,
    connector: str,
    class_name: str,
    task: int = 0,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    original: Sequence[tuple[str, bytes | str | None]] = (),
) -> Headers:
    """The headers of a dead-letter record: the failed record's own headers, then `__connect.errors.*`.

    `stage` is one of STAGES, `class_name` names the code that refused the record. A message that never was in a topic
    (a device's) has no `topic`, `partition` and `offset`. Error headers that the record already carries, because it was
    replayed from a dead-letter topic, are replaced.
    """
    trace = "".join(traceback.format_exception(error))
    values = {
        "topic": topic,
        "partition": None if partition is None else str(partition),
        "offset": None if offset is None else str(offset),
        "connector.name": connector,
        "task.id": str(task),
        "stage": stage,
        "class.name": class_name,
        "exception.class.name": f"{type(error).__module__}.{type(error).__qualname__}",
        "exception.message": str(error)[:_MAX_MESSAGE_CHARACTERS],
        "exception.stacktrace": trace[-_MAX_TRACE_CHARACTERS:],
    }
    kept: Headers = [(name, value) for name, value in original if not name.startswith(PREFIX)]
    return kept + [(PREFIX + name, value.encode()) for name, value in values.items() if value is not None]


def ensure_topic(
    admin: AdminClient,
    topic: str,
    *,
    replication_factor: int = -1,
    retention_ms: int = -1,
    retention_bytes: int = -1,
) -> bool:
    """Create the dead-letter topic (one partition) unless it exists; True when it was created.

    -1 keeps everything for `retention_ms` and `retention_bytes`, and is the broker's default for `replication_factor`.
    Raises KafkaException when the broker refuses.
    """
    settings = {
        "retention.ms": str(retention_ms),
        "retention.bytes": str(retention_bytes),
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
    }
    new_topic = NewTopic(topic, num_partitions=1, replication_factor=replication_factor, config=settings)
    try:
        admin.create_topics([new_topic])[topic].result()
    except KafkaException as failure:
        error = error_of(failure)
        if error is not None and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    _log.info("dead-letter topic created", topic=topic)
    return True


def producer_overrides() -> dict[str, object]:
    """Overrides of `servicekit.kafka.clients.producer` for the dead-letter producer: a higher limit of record sizes."""
    return {"message_max_bytes": MAX_MESSAGE_BYTES}


class DeadLetterQueue:
    """Writes dead-letter records and waits for their acknowledgement; safe to use from several threads."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.topic = topic
        self._producer = producer

    def send(self, records: Sequence[DeadLetterRecord]) -> None:
        """Produce `records` and wait for every acknowledgement.

        Raises DeadLettersUnavailableError when Kafka did not acknowledge one of them.
        """
        if not records:
            return
        outcome = _Outcome(len(records))
        for record in records:
            self._produce(record, outcome)
        # The producer's delivery time-out bounds the wait: it reports every record, acknowledged or failed.
        while not outcome.done.is_set():
            self._producer.poll(0.05)
        if outcome.error is not None:
            raise DeadLettersUnavailableError(f"dead-letter topic {self.topic}: {outcome.error.str()}")

    def _produce(self, record: DeadLetterRecord, outcome: _Outcome) -> None:
        while True:
            try:
                self._producer.produce(
                    self.topic,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    on_delivery=outcome.report,
                    timestamp=record.timestamp_ms,
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as failure:
                raise DeadLettersUnavailableError(f"dead-letter topic {self.topic}: {failure}") from failure
            else:
                return


class _Outcome:
    def __init__(self, waiting: int) -> None:
        self.done = threading.Event()
        self.error: KafkaError | None = None
        self._waiting = waiting
        self._lock = threading.Lock()

    def report(self, error: KafkaError | None, _message: Message) -> None:
        with self._lock:
            self.error = self.error or error
            self._waiting -= 1
            if self._waiting == 0:
                self.done.set()
