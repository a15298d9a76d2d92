"""Fills the table of devices from the topic `devices`, in a thread, from the beginning of the topic."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

import isotherm.schemas
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.rule_book import RejectedOverride
from isotherm.servicekit import logs
from isotherm.servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.kafka.consuming import consume_available

READER = isotherm.schemas.schema("Device", 1)

_POLL_S = 0.5
_BATCH = 1_000
_REQUEST_S = 10.0
_RETRY_S = 2.0
_JOIN_S = 2.0
_PARTITIONS_INTERVAL_S = 30.0

_log = logs.logger(__name__)


class DeviceTableFollower:
    """Applies every record of the topic to `table`. The table stays as it is while Kafka or the registry is away."""

    def __init__(
        self,
        topic: str,
        make_consumer: Callable[[], Consumer],
        registry: SchemaRegistry,
        table: DeviceTable,
        metrics: Metrics,
        partitions_interval_s: float = _PARTITIONS_INTERVAL_S,
    ) -> None:
        """Take what the follower needs.

        Args:
            topic: the topic of devices.
            make_consumer: called once, in the thread; the consumer has `enable.partition.eof` set.
            registry: has the schemas of the topic.
            table: the table to fill.
            metrics: count the records.
            partitions_interval_s: how often the follower looks for partitions that were added to the topic, in seconds.
        """
        self._partitions_interval_s = partitions_interval_s
        self._topic, self._make_consumer = topic, make_consumer
        self._decode = Decoder(registry, READER)
        self._table, self._metrics = table, metrics
        self._changed: deque[str] = deque(maxlen=1_000_000)
        self._current, self._ended = threading.Event(), threading.Event()
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="devices", daemon=True)

    def start(self) -> None:
        """Start to follow the topic."""
        self._thread.start()

    def close(self) -> None:
        """Stop to follow the topic."""
        self._ended.set()
        self._thread.join(_JOIN_S)

    def is_current(self) -> bool:
        """Return whether the table has every record that the topic held at the start."""
        return self._current.is_set()

    def changed(self) -> list[str]:
        """Return the devices whose record has changed since the last call."""
        device_ids = []
        while self._changed:
            device_ids.append(self._changed.popleft())
        return device_ids

    def _run(self) -> None:
        consumer = self._make_consumer()
        try:
            ends = self._ends(consumer)
            if ends:
                consumer.assign([TopicPartition(self._topic, number, 0) for number in ends])
                self._follow(consumer, ends)
        finally:
            consumer.close()

    def _ends(self, consumer: Consumer) -> dict[int, int]:
        """Wait for the topic and return the end offset of each partition, 0 of one without records.

        Returns nothing when the follower was closed first.
        """
        while not self._ended.is_set():
            try:
                found = consumer.list_topics(self._topic, timeout=_REQUEST_S).topics[self._topic]
                if found.error is None:
                    return {number: self._end(consumer, number) for number in sorted(found.partitions)}
                _log.warning("waiting for the topic of devices", reason=found.error.str())
            except KafkaException as error:
                _log.warning("waiting for the topic of devices", reason=str(error))
            self._ended.wait(_RETRY_S)
        return {}

    def _end(self, consumer: Consumer, number: int) -> int:
        first, end = consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=_REQUEST_S)
        return end if first < end else 0

    def _follow(self, consumer: Consumer, ends: dict[int, int]) -> None:
        followed, unread = set(ends), {number for number, end in ends.items() if end}
        next_check_s = time.monotonic() + self._partitions_interval_s
        while not self._ended.is_set():
            if not unread:
                self._current.set()
            if time.monotonic() >= next_check_s:
                next_check_s = time.monotonic() + self._partitions_interval_s
                self._add_partitions(consumer, followed)
            for message in consume_available(consumer, _BATCH, _POLL_S):
                number, error = message.partition() or 0, message.error()
                if error is None:
                    self._apply(message)
                    if (message.offset() or 0) + 1 >= ends.get(number, 0):
                        unread.discard(number)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # Reported only after a fetch that brought nothing. It counts where compaction has removed the last
                    # record.
                    unread.discard(number)

    def _add_partitions(self, consumer: Consumer, followed: set[int]) -> None:
        """Follow the partitions that were added to the topic, from their beginning."""
        try:
            found = consumer.list_topics(self._topic, timeout=_REQUEST_S).topics[self._topic]
        except KafkaException as error:
            _log.warning("cannot look for new partitions of the topic of devices", reason=str(error))
            return
        added = sorted(set(found.partitions) - followed) if found.error is None else []
        if added:
            _log.info("the topic of devices has new partitions", partitions=added)
            consumer.incremental_assign([TopicPartition(self._topic, number, 0) for number in added])
            followed.update(added)

    def _apply(self, message: Message) -> None:
        self._metrics.devices_read.inc()
        device_id, value = (message.key() or b"").decode(errors="replace"), message.value()
        while not self._ended.is_set():
            try:
                record = None if value is None else self._decode(value).record
            except RegistryUnavailableError as error:
                _log.warning("a device's record cannot be decoded yet", reason=str(error))
                self._ended.wait(_RETRY_S)
            except WireFormatError as error:
                self._metrics.devices_refused.inc()
                _log.error(
                    "a device's record cannot be decoded, the previous one stays", device=device_id, reason=str(error)
                )
                return
            else:
                self._warn(device_id, self._table.put(device_id, record, message.timestamp()[1]))
                self._changed.append(device_id)
                self._metrics.known_devices.set(len(self._table))
                return

    def _warn(self, device_id: str, rejected: list[RejectedOverride]) -> None:
        for key, reason, message in rejected:
            self._metrics.thresholds_refused.labels(reason).inc()
            # One log line for each key is enough: many devices have the same thresholds.
            if key not in self._warned and len(self._warned) < _BATCH:
                self._warned.add(key)
                _log.warning("a threshold has no effect", device=device_id, threshold=key, reason=message)
