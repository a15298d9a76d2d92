"""Fills the table of silences from their topic, in a thread, from the beginning of the topic."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

import isotherm.schemas
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.routes.silences import SilenceTable, silence_of
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.consuming import assign_from_start

READER = isotherm.schemas.schema("Silence", 1)

_POLL_S = 0.5
_REQUEST_S = 10.0
_JOIN_S = 2.0

_log = logs.logger(__name__)


class SilenceFollower:
    """Applies every record of the topic to `table`, which stays as it is while Kafka or the registry is away."""

    def __init__(
        self,
        topic: str,
        make_consumer: Callable[[], Consumer],
        registry: SchemaRegistry,
        table: SilenceTable,
        metrics: Metrics,
    ) -> None:
        """Take what the follower needs. `make_consumer` makes one that reports the ends of partitions."""
        self._topic, self._make_consumer = topic, make_consumer
        self._decode = Decoder(registry, READER)
        self._table, self._metrics = table, metrics
        self._current, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="silences", daemon=True)

    def start(self) -> None:
        """Start to follow the topic."""
        self._thread.start()

    def close(self) -> None:
        """Stop to follow the topic."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def is_current(self) -> bool:
        """Return whether the table has every record that the topic held at the start."""
        return self._current.is_set()

    def _run(self) -> None:
        backoff = Backoff(base_ms=200, cap_ms=10_000)
        while not self._ended.is_set():
            try:
                self._follow(backoff)
            except Exception as error:
                _log.warning("the topic of silences is read again", reason=str(error))
                self._ended.wait(backoff.next_ms() / 1000)

    def _follow(self, backoff: Backoff) -> None:
        """Read without end. Raises KafkaException and RegistryUnavailableError; then the topic is read again."""
        consumer = self._make_consumer()
        try:
            # It has one partition, which keeps the records of a silence in order.
            _first, end = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=_REQUEST_S)
            assign_from_start(consumer, self._topic, [0], _REQUEST_S)
            while not self._ended.is_set():
                message = consumer.poll(_POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error is None:
                    self._apply(message)
                # The end is reported only after a fetch that brought nothing; compaction may have removed the last one.
                if error is not None or (message.offset() or 0) + 1 >= end:
                    self._current.set()
                    backoff.reset()
        finally:
            consumer.close()

    def _apply(self, message: Message) -> None:
        silence_id, value = (message.key() or b"").decode(errors="replace"), message.value()
        try:
            silence = None if value is None else silence_of(self._decode(value).record)
            self._table.put(silence_id, silence, message.timestamp()[1])
        except (WireFormatError, ValueError) as error:
            self._metrics.silences_refused.inc()
            _log.error("a silence cannot be read, the previous one stays", silence=silence_id, reason=str(error))
