"""Repartitions aggregates by device: a topic of aggregates has one device on several partitions, its state is on one.

It delivers at least once, in the order of writing: it commits an offset when Kafka has all records before it. A
repeated record is identical, and the state of the device applies it once (ADR 0073).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from isotherm.alerts.input.dead_letters import dead_letter_record, source_record
from isotherm.alerts.input.decoding import ReadingDecoder
from isotherm.alerts.input.reading_converter import dead_letter_reason
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.repartition.forwarded_clock import ForwardedClock
from isotherm.alerts.repartition.time_ordered_merge import TimeOrderedMerge, TopicPartition
from isotherm.alerts.settings import AlertsSettings
from isotherm.connector.errors.dead_letters import DeadLetterQueue
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaRegistry, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka.consuming import consume_available

PART = "repartition"

_POLL_S = 0.2
_BATCH = 1_000
_COMMIT_INTERVAL_S = 0.5
_COMMIT_AGAIN_S = 60.0
"""A commit whose connection broke may reach the coordinator after a later one and set the group back. The time of the
alerts would wait for the partition's next record.
"""
_REQUEST_S = 5.0
_DRAIN_S = 5.0
_JOIN_S = 10.0
_MAX_WAITING = 5_000
"""A partition with more waiting records than this is paused, until half of them have been forwarded."""

_log = logs.logger(__name__)


class ForwardingRefusedError(Exception):
    """Kafka refuses a forwarded record permanently. Going on would lose it."""


class ForwarderClients(NamedTuple):
    """The Kafka clients of one forwarder."""

    consumer: Consumer
    """Reads the input, in the group `settings.repartition`, with `enable.partition.eof` set."""
    watcher: Consumer
    """Asks for offsets of the same group. Records in open transactions are not forwarded yet, so it is
    read_uncommitted: the end offsets include them. It reads no records.
    """
    producer: Producer
    """Never gives a record up, because a lost record would have to end the process."""
    dead_letters: DeadLetterQueue


class Forwarder:
    """Forwards aggregates in a thread until it is closed, or until `failure` says why it has ended."""

    def __init__(
        self,
        settings: AlertsSettings,
        registry: SchemaRegistry,
        clients: ForwarderClients,
        metrics: Metrics,
        health: Health,
    ) -> None:
        """The forwarder closes both consumers of `clients`."""
        self.failure: Exception | None = None
        self._settings, self._metrics, self._health = settings, metrics, health
        self._name = settings.repartition
        self._decode = ReadingDecoder(registry)
        self._merge: TimeOrderedMerge[Message] = TimeOrderedMerge()
        self._consumer, self._watcher, self._producer, self._dead_letters = clients
        self._clock = ForwardedClock()
        self._refused: KafkaError | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._committed_all_s = time.monotonic()
        self._held_back: set[TopicPartition] = set()
        self._paused, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="repartition", daemon=True)

    def start(self) -> None:
        """Start to forward."""
        self._health.not_ready(PART, "joining its group")
        self._thread.start()

    def pause(self, paused: bool) -> None:
        """Pause or resume forwarding."""
        (self._paused.set if paused else self._paused.clear)()

    def close(self) -> None:
        """Stop to forward. The next forwarder forwards again what is not committed."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._watcher.close()
        self._health.ready(PART)

    def forwarded_until_ms(self, now_ms: int) -> int:
        """Return the time (epoch ms) up to which every record of the input is forwarded; 0 while it is not known.

        Asks Kafka for the end offsets, and for the offsets that the group (all replicas) has committed. Blocks. Raises
        KafkaException.
        """
        ends = {}
        for name in self._settings.input_topics:
            for number in self._watcher.list_topics(name, timeout=_REQUEST_S).topics[name].partitions:
                low, high = self._watcher.get_watermark_offsets(KafkaPartition(name, number), timeout=_REQUEST_S)
                if low != high:
                    ends[TopicPartition(name, number)] = high
        offsets = self._watcher.committed([KafkaPartition(*partition) for partition in ends], timeout=_REQUEST_S)
        return self._clock.update(now_ms, ends, {_partition(one): one.offset for one in offsets})

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                self._settings.input_topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            committed_s = time.monotonic()
            while not self._ended.is_set():
                for message in consume_available(self._consumer, _BATCH, _POLL_S):
                    self._read(message)
                self._hold_back()
                while not self._paused.is_set() and (earliest := self._merge.pop()) is not None:
                    if not self._forward(earliest):
                        # The last commit must leave it to the next forwarder.
                        self._merge.restore_popped()
                        return
                if time.monotonic() - committed_s >= _COMMIT_INTERVAL_S:
                    self._commit()
                    committed_s = time.monotonic()
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
                self._commit()
            self._consumer.close()
        except Exception as failure:
            self.failure = self.failure or failure
            _log.warning("records whose offsets are not committed are forwarded again", reason=str(failure))

    def _read(self, message: Message) -> None:
        error = message.error()
        partition = TopicPartition(message.topic() or "", message.partition() or 0)
        if error is None:
            self._merge.add(partition, message.offset() or 0, message.timestamp()[1], message)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._merge.mark_end(partition, message.offset() or 0)
        elif error.fatal():
            raise KafkaException(error)
        else:
            self._health.not_ready(PART, error.str())
            _log.warning("cannot read", topic=partition.topic, reason=error.str())
            return
        self._health.ready(PART)

    def _hold_back(self) -> None:
        """Pause the partitions that wait for others, or all partitions while forwarding is paused."""
        assigned = {_partition(one) for one in self._consumer.assignment()}
        if self._paused.is_set():
            hold = assigned
        else:
            hold = self._merge.above(_MAX_WAITING) | (self._held_back & self._merge.above(_MAX_WAITING // 2))
        hold &= assigned
        self._consumer.pause([KafkaPartition(*partition) for partition in hold - self._held_back])
        self._consumer.resume([KafkaPartition(*partition) for partition in (self._held_back & assigned) - hold])
        self._held_back = hold

    def _forward(self, message: Message) -> bool:
        """Write a record with its device as key, or make it a dead-letter record; return False after a close."""
        try:
            device_id = self._device_of(message)
        except WireFormatError as error:
            dead = dead_letter_record(
                source_record(message),
                error,
                stage="VALUE_CONVERTER",
                name=self._settings.name,
                class_name=f"{__name__}.{type(self).__name__}",
            )
            self._dead_letters.send([dead])
            self._metrics.dead_lettered.labels(dead_letter_reason(error)).inc()
            _log.warning("dead-letter record", topic=message.topic(), offset=message.offset(), reason=str(error))
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
        """Return the device, waiting for the registry; None when the forwarder was closed first.

        Raises WireFormatError.
        """
        backoff = Backoff()
        while not self._ended.is_set():
            try:
                device_id = self._decode(message.value(), message.timestamp()[1]).device_id
            except RegistryUnavailableError as error:
                self._health.not_ready(PART, str(error))
                _log.warning("waiting for the registry", reason=str(error))
                self._ended.wait(backoff.next_ms() / 1000)
            else:
                if backoff.failures:
                    self._health.ready(PART)
                return device_id
        return None

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._metrics.repartitioned.inc()
        else:
            self._refused = self._refused or error

    def _commit(self) -> None:
        """Commit what was forwarded, after Kafka has it. Raises ForwardingRefusedError."""
        positions = self._merge.positions()
        if not self._is_stored():
            return
        now_s = time.monotonic()
        if now_s - self._committed_all_s >= _COMMIT_AGAIN_S:
            self._committed_all_s = now_s
            self._committed.clear()
        new = {one: position for one, position in positions.items() if self._committed.get(one) != position}
        if not new:
            return
        try:
            answers = self._consumer.commit(
                offsets=[KafkaPartition(*one, position) for one, position in new.items()], asynchronous=False
            )
        except KafkaException as error:
            self._not_committed(str(error))
            return
        # Kafka answers for each partition. An offset that it refused must be tried again even if the partition gets no
        # record any more: the time of the alerts waits until the group has committed every end offset.
        refused = []
        for answer in answers or []:
            if answer.error is None:
                self._committed[_partition(answer)] = answer.offset
            else:
                refused.append(f"{answer.topic}[{answer.partition}]: {answer.error.str()}")
        if refused:
            self._not_committed(", ".join(refused))
        else:
            self._health.ready(PART)

    def _not_committed(self, reason: str) -> None:
        """Report a refused commit: the next one tries again, or the partition's next owner forwards its records."""
        self._health.not_ready(PART, f"offsets are not committed: {reason}")
        _log.warning("offsets are not committed", reason=reason)

    def _is_stored(self) -> bool:
        """Wait until Kafka has what was forwarded; return False when it does not within a while after a close."""
        deadline_s: float | None = None
        while self._producer.flush(_POLL_S):
            if self._ended.is_set():
                deadline_s = deadline_s or time.monotonic() + _DRAIN_S
                if time.monotonic() > deadline_s:
                    return False
        if self._refused is not None:
            raise ForwardingRefusedError(self._refused.str())
        return True

    def _assigned(self, _consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        self._merge.assign([_partition(one) for one in partitions])
        self._health.ready(PART)
        _log.info("forwards", partitions=[f"{one.topic}[{one.partition}]" for one in partitions])

    def _revoked(self, consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        self._commit()
        self._lost(consumer, partitions)

    def _lost(self, _consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        lost = [_partition(one) for one in partitions]
        self._merge.revoke(lost)
        for partition in lost:
            self._committed.pop(partition, None)
            self._held_back.discard(partition)


def _partition(one: KafkaPartition) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)
