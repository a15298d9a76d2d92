"""Committed offsets, with the counts in their metadata, and the ends of partitions. See docs/adr/0042."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isotherm.persisters.api.ownership import Lease
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_TIMEOUT_S = 10.0
_WATERMARK_TIMEOUT_S = 1.0
_QUERY_INTERVAL_S = 5.0
RETRIABLE = frozenset(
    (
        KafkaError._NO_OFFSET,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        # The coordinator's broker learns of a new topic some time after the leader. Of a topic that was deleted, the
        # next rebalance revokes the partitions.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
)
"""After these errors this task asks for offsets again. The next commit, of this task or the next owner, succeeds."""


def position_of(buffer: PartitionBuffer) -> TopicPartition:
    """Return what to commit of a buffer: its position, before which everything is settled, and its counts."""
    topic, partition = buffer.partition
    return TopicPartition(topic, partition, buffer.settled_to or 0, metadata=buffer.counts.to_metadata())


class CommitObserver(Protocol):
    """Is told of commits."""

    def committed(self, seconds: float, failed: bool) -> None:
        """A commit of offsets took `seconds` seconds, and failed or not."""


def commit(
    consumer: Consumer, buffers: Sequence[PartitionBuffer], health: Health, observer: CommitObserver, lease: Lease
) -> KafkaException | None:
    """Commit the buffers' positions with their counts, which confirms the lease; return the error if Kafka refuses for
    good.

    The next commit, of this task or of the partition's next owner, includes what cannot be committed now.
    """
    if not buffers:
        return None
    refused: KafkaException | None = None
    started, asked_s = time.perf_counter(), lease.asked()
    try:
        answers = consumer.commit(offsets=[position_of(buffer) for buffer in buffers], asynchronous=False) or []
    except KafkaException as failure:
        observer.committed(time.perf_counter() - started, True)
        return _refused(error_of(failure), failure, health)
    by_partition = {buffer.partition: buffer for buffer in buffers}
    for answer in answers:
        if answer.error is None:
            lease.confirm(asked_s)
            by_partition[(answer.topic, answer.partition)].committed = answer.offset
        else:
            refused = refused or _refused(answer.error, KafkaException(answer.error), health)
    has_errors = any(answer.error for answer in answers)
    if not has_errors:
        health.ready("kafka")
    observer.committed(time.perf_counter() - started, has_errors)
    return refused


def _refused(error: KafkaError | None, failure: KafkaException, health: Health) -> KafkaException | None:
    if error is None or error.code() not in RETRIABLE:
        return failure
    health.not_ready("kafka", f"offsets not committed: {error.str()}")
    _log.warning("offsets not committed, trying again", reason=error.str())
    return None


class Watermarks:
    """The ends of partitions: from the fetches, or by asking Kafka for paused partitions, which are not fetched."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._next_query_s = 0.0

    def refresh(self, buffers: Iterable[PartitionBuffer]) -> None:
        """Update the buffers' high watermarks; only in the thread that polls."""
        is_query_due = time.monotonic() >= self._next_query_s
        for buffer in buffers:
            where = TopicPartition(*buffer.partition)
            _, high = self._consumer.get_watermark_offsets(where, cached=True)
            if buffer.paused:
                high = max(high, -1 if buffer.high_watermark is None else buffer.high_watermark)
                if is_query_due:
                    self._next_query_s = time.monotonic() + _QUERY_INTERVAL_S
                    try:
                        _, high = self._consumer.get_watermark_offsets(where, timeout=_WATERMARK_TIMEOUT_S)
                    except KafkaException:
                        # Kafka does not answer: keep what is known, and do not wait for every other partition too.
                        is_query_due = False
            buffer.high_watermark = high if high >= 0 else None


def committed(
    consumer: Consumer, partitions: list[TopicPartition], backoff: Backoff, health: Health, stop: Stop
) -> Sequence[TopicPartition]:
    """Return the committed offset and metadata of each partition; nothing if `stop` comes first.

    It asks until Kafka answers, because counts that start at zero would stay wrong for ever. Raises KafkaException if
    Kafka refuses for good.
    """
    while not stop.is_set():
        health.beat()
        try:
            found = consumer.committed(partitions, timeout=_TIMEOUT_S)
            error = next((one.error for one in found if one.error is not None), None)
            if error is None:
                return found
        except KafkaException as failure:
            error = error_of(failure)
        if error is None or error.code() not in RETRIABLE:
            raise KafkaException(error or "committed offsets not known")
        health.not_ready("kafka", f"committed offsets not known: {error.str()}")
        stop.wait(backoff.next_ms() / 1000)
    return []
