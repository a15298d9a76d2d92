"""Writes aggregates by device: those of one device are on several partitions of their topic, its memory is on one.

At least once, in the order in which they were written: an offset is committed when Kafka has what stands before it. A
repeat is the identical record, which the device's memory takes in once (docs/adr/0073).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.alerts.input.dead_letters import dead_letter_record, origin_of
from isotherm.alerts.input.decoding import ReadingDecoder
from isotherm.alerts.input.reading_converter import dead_letter_reason
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.repartition.time_ordered_merge import ForwardedClock, TimeOrderedMerge, TopicPartition
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.outputs import OutputRefusedError
from isotherm.connector.errors.dead_letters import DeadLetterQueue, producer_overrides
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaRegistry, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health

PART = "repartition"

_POLL_S = 0.2
_BATCH = 1_000
_SETTLE_S = 0.5
_ASK_S = 5.0
_DRAIN_S = 5.0
_JOIN_S = 10.0
_CROWD = 5_000
_QUEUED_KIB = 8_192

_log = logs.logger(__name__)


class Forwarder:
    """Forwards from a thread until it is closed or `failure` says why it has ended."""

    def __init__(self, settings: AlertsSettings, registry: SchemaRegistry, metrics: Metrics, health: Health) -> None:
        self.failure: Exception | None = None
        self._settings, self._metrics, self._health = settings, metrics, health
        self._name = settings.repartition
        self._decode = ReadingDecoder(registry)
        self._merge: TimeOrderedMerge[Message] = TimeOrderedMerge()
        self._consumer = kafka.consumer(
            settings.kafka,
            self._name,
            self._name,
            enable_partition_eof=True,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.session_timeout_ms // 10,
            queued_max_messages_kbytes=_QUEUED_KIB,
        )
        # What stands in an open transaction is not forwarded yet: the ends of all records count. It reads none of them.
        self._watcher = kafka.consumer(
            settings.kafka, f"{self._name}-watch", self._name, isolation_level="read_uncommitted"
        )
        self._clock = ForwardedClock()
        # What is given up would have to end the process: it goes on trying as long as Kafka is away.
        self._producer = kafka.producer(settings.kafka, self._name, delivery_timeout_ms=0)
        dead = kafka.producer(settings.kafka, f"{self._name}-dead-letters", **producer_overrides())
        self._dead_letters = DeadLetterQueue(dead, settings.dead_letter_topic)
        self._refused: KafkaError | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()
        self._paused, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="repartition", daemon=True)

    def start(self) -> None:
        """Begin to forward."""
        self._health.not_ready(PART, "joining its group")
        self._thread.start()

    def pause(self, paused: bool) -> None:
        """Forward nothing, or go on."""
        (self._paused.set if paused else self._paused.clear)()

    def close(self) -> None:
        """Forward no more; what is not committed is forwarded again by the next one."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._watcher.close()
        self._health.ready(PART)

    def told_ms(self, now_ms: int) -> int:
        """Up to this time (epoch ms) everything that was in the topics is forwarded; 0 while that is not known.

        Asks Kafka for the ends, and for what the group, all replicas together, has committed. Raises KafkaException.
        """
        ends = {}
        for name in self._settings.input_topics:
            for number in self._watcher.list_topics(name, timeout=_ASK_S).topics[name].partitions:
                low, high = self._watcher.get_watermark_offsets(TopicPartition(name, number), timeout=_ASK_S)
                if low != high:
                    ends[TopicPartition(name, number)] = high
        asked = self._watcher.committed([TopicPartition(*place) for place in ends], timeout=_ASK_S)
        return self._clock.see(now_ms, ends, {TopicPartition(one.topic, one.partition): one.offset for one in asked})

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                self._settings.input_topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            settled = time.monotonic()
            while not self._ended.is_set():
                for message in self._consumer.consume(_BATCH, _POLL_S):
                    self._read(message)
                self._hold()
                while not self._paused.is_set() and (taken := self._merge.take()) is not None:
                    if not self._forward(taken):
                        return
                if time.monotonic() - settled >= _SETTLE_S:
                    self._settle()
                    settled = time.monotonic()
        except Exception as failure:
            self.failure = failure
            self._health.not_ready(PART, f"has ended: {failure}")
            _log.error("forwarding has ended", reason=str(failure))
        finally:
            self._leave()

    def _leave(self) -> None:
        self._ended.set()
        try:
            if self.failure is None:
                self._settle()
            self._consumer.close()
        except Exception as failure:
            self.failure = self.failure or failure
            _log.warning("what is not committed is forwarded again", reason=str(failure))

    def _read(self, message: Message) -> None:
        error = message.error()
        place = TopicPartition(message.topic() or "", message.partition() or 0)
        if error is None:
            self._merge.add(place, message.offset() or 0, message.timestamp()[1], message)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._merge.ended(place, message.offset() or 0)
        elif error.fatal():
            raise KafkaException(error)
        else:
            self._health.not_ready(PART, error.str())
            _log.warning("cannot read", topic=place.topic, reason=error.str())
            return
        self._health.ready(PART)

    def _hold(self) -> None:
        """Fetch no more of partitions that wait for others, and nothing at all while paused."""
        ours = {TopicPartition(one.topic, one.partition) for one in self._consumer.assignment()}
        if self._paused.is_set():
            wanted = ours
        else:
            wanted = self._merge.crowded(_CROWD) | (self._held & self._merge.crowded(_CROWD // 2))
        wanted &= ours
        self._consumer.pause([TopicPartition(*place) for place in wanted - self._held])
        self._consumer.resume([TopicPartition(*place) for place in (self._held & ours) - wanted])
        self._held = wanted

    def _forward(self, message: Message) -> bool:
        """Write a record by its device, or bury it; False when the end came first."""
        try:
            device_id = self._device_of(message)
        except WireFormatError as error:
            letter = dead_letter_record(
                origin_of(message),
                error,
                stage="VALUE_CONVERTER",
                name=self._settings.name,
                class_name=f"{__name__}.Forwarder",
            )
            self._dead_letters.send([letter])
            self._metrics.dead_lettered.labels(dead_letter_reason(error)).inc()
            _log.warning("dead letter", topic=message.topic(), offset=message.offset(), reason=str(error))
            return True
        while device_id is not None and not self._ended.is_set():
            try:
                self._producer.produce(
                    self._name,
                    key=device_id,
                    value=message.value(),
                    headers=message.headers(),
                    on_delivery=self._reported,
                )
            except BufferError:
                self._producer.poll(_POLL_S)
            else:
                self._producer.poll(0)
                return True
        return False

    def _device_of(self, message: Message) -> str | None:
        """The device, when the registry answers; None when the end came first. Raises WireFormatError."""
        backoff = Backoff()
        while not self._ended.is_set():
            try:
                found = self._decode(message.value(), message.timestamp()[1]).device_id
            except RegistryUnavailableError as error:
                self._health.not_ready(PART, str(error))
                _log.warning("waiting for the registry", reason=str(error))
                self._ended.wait(backoff.next_ms() / 1000)
            else:
                if backoff.failures:
                    self._health.ready(PART)
                return found
        return None

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._metrics.repartitioned.inc()
        else:
            self._refused = self._refused or error

    def _settle(self) -> None:
        """Commit what was taken, when Kafka has it. Raises OutputRefusedError."""
        positions = self._merge.positions()
        if not self._is_stored():
            return
        new = {place: position for place, position in positions.items() if self._committed.get(place) != position}
        if not new:
            return
        try:
            self._consumer.commit(
                offsets=[TopicPartition(*place, position) for place, position in new.items()], asynchronous=False
            )
        except KafkaException as error:
            # Nothing is lost: the records are forwarded again.
            _log.warning("offsets are not committed", reason=str(error))
        else:
            self._committed.update(new)

    def _is_stored(self) -> bool:
        """Wait until Kafka has what was forwarded; False when it still has not a while after the end has come."""
        give_up: float | None = None
        while self._producer.flush(_POLL_S):
            if self._ended.is_set():
                give_up = give_up or time.monotonic() + _DRAIN_S
                if time.monotonic() > give_up:
                    return False
        if self._refused is not None:
            raise OutputRefusedError(self._refused.str())
        return True

    def _assigned(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._merge.assign(_places(partitions))
        self._health.ready(PART)
        _log.info("forwards", partitions=[f"{one.topic}[{one.partition}]" for one in partitions])

    def _revoked(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._settle()
        self._lost(consumer, partitions)

    def _lost(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._merge.revoke(_places(partitions))
        for place in _places(partitions):
            self._committed.pop(place, None)
            self._held.discard(place)


def _places(partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, one.partition) for one in partitions]
