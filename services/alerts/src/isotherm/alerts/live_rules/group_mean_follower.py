"""Fills the table of means from the topic of grouped aggregates, in a thread, while a rule compares with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

import isotherm.schemas
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.group_means import GroupMean, GroupMeans
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.consuming import consume_available

READER = isotherm.schemas.schema("TemperatureGroup", 1)

HISTORY_MS = 6 * 3_600_000
"""How far back the topic is read at the start: windows appear some time after their end."""
_POLL_S = 0.5
_BATCH = 1_000
_REQUEST_S = 10.0
_JOIN_S = 2.0

_log = logs.logger(__name__)


class GroupMeanFollower:
    """Applies the windows of the last hours, and every further one, to `means`, from when `need` was called."""

    def __init__(
        self,
        topic: str,
        make_consumer: Callable[[], Consumer],
        registry: SchemaRegistry,
        means: GroupMeans,
        metrics: Metrics,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Take what the follower needs. `make_consumer` makes one that reports the ends of partitions."""
        self._topic, self._make_consumer = topic, make_consumer
        self._decode = Decoder(registry, READER)
        self._means, self._metrics, self._now_ms = means, metrics, now_ms
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group-means", daemon=True)

    def need(self) -> None:
        """Start to follow the topic, unless it is followed."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Stop to follow the topic."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        backoff = Backoff(base_ms=200, cap_ms=30_000)
        while not self._ended.is_set():
            try:
                self._follow(backoff)
            except Exception as error:
                _log.warning("the topic of grouped aggregates is read again", reason=str(error))
                self._ended.wait(backoff.next_ms() / 1000)

    def _follow(self, backoff: Backoff) -> None:
        """Read without end. Raises KafkaException and RegistryUnavailableError; then the topic is read again."""
        consumer = self._make_consumer()
        try:
            found = consumer.list_topics(self._topic, timeout=_REQUEST_S).topics[self._topic]
            if found.error is not None:
                raise KafkaException(found.error)
            since_ms = self._now_ms() - HISTORY_MS
            asked = [TopicPartition(self._topic, number, since_ms) for number in sorted(found.partitions)]
            # Where there is no such record, the offset is -1: the end.
            consumer.assign(consumer.offsets_for_times(asked, timeout=_REQUEST_S))
            while not self._ended.is_set():
                for message in consume_available(consumer, _BATCH, _POLL_S):
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if error is None:
                        self._apply(message.value())
                    backoff.reset()
        finally:
            consumer.close()

    def _apply(self, value: bytes | None) -> None:
        if value is None:
            return
        try:
            record = self._decode(value).record
        except WireFormatError as error:
            self._metrics.means_refused.labels("undecodable").inc()
            _log.error("a window of a group cannot be decoded", reason=str(error))
            return
        key = record["attribute"], record["group"], record["metric"]
        mean = GroupMean(epoch_ms(record["window_end"]), record["revision"], record["mean"], record["device_count"])
        if not self._means.put(key, mean):
            self._metrics.means_refused.labels("too-many-groups").inc()
