"""Committed offsets, with the counts that travel in their metadata. See docs/adr/0042."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isotherm.persisters.task.partition_buffers import Lane
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_TIMEOUT_S = 10.0
_WATERMARK_TIMEOUT_S = 1.0
_ASKING_INTERVAL_S = 5.0
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
    )
)
"""Offsets are asked for again, and committed again at the next interval, by us or by the partition's next owner."""


def position_of(lane: Lane) -> TopicPartition:
    """What is committed of a lane: everything before its position is settled, and these are the counts of it."""
    topic, partition = lane.partition
    return TopicPartition(topic, partition, lane.position or 0, metadata=lane.counts.to_metadata())


class CommitObserver(Protocol):
    """What wants to know of commits."""

    def committed(self, seconds: float, failed: bool) -> None:
        """Offsets were committed, or not."""


def commit(
    consumer: Consumer, lanes: Sequence[Lane], health: Health, observer: CommitObserver
) -> KafkaException | None:
    """Commit the lanes' positions with their counts; why Kafka refuses for good, if it does.

    What cannot be committed now is committed the next time, by us or by the partition's next owner.
    """
    if not lanes:
        return None
    refused: KafkaException | None = None
    started = time.perf_counter()
    try:
        answers = consumer.commit(offsets=[position_of(lane) for lane in lanes], asynchronous=False) or []
    except KafkaException as failure:
        observer.committed(time.perf_counter() - started, True)
        return _refused(kafka.error_of(failure), failure, health)
    by_partition = {lane.partition: lane for lane in lanes}
    for answer in answers:
        if answer.error is None:
            by_partition[(answer.topic, answer.partition)].committed = answer.offset
        else:
            refused = refused or _refused(answer.error, KafkaException(answer.error), health)
    if not any(answer.error for answer in answers):
        health.ready("kafka")
    observer.committed(time.perf_counter() - started, any(answer.error for answer in answers))
    return refused


def _refused(error: KafkaError | None, failure: KafkaException, health: Health) -> KafkaException | None:
    if error is None or error.code() not in RETRIABLE:
        return failure
    health.not_ready("kafka", f"offsets not committed: {error.str()}")
    _log.warning("offsets not committed, trying again", reason=error.str())
    return None


class Watermarks:
    """Where the partitions end: as the fetches tell, and for paused ones, which are not fetched, as Kafka says."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._next_asking_s = 0.0

    def look(self, lanes: Iterable[Lane]) -> None:
        """Bring the lanes' high watermarks up to date; only in the thread that polls."""
        asks = time.monotonic() >= self._next_asking_s
        for lane in lanes:
            where = TopicPartition(*lane.partition)
            _, high = self._consumer.get_watermark_offsets(where, cached=True)
            if lane.paused:
                high = max(high, -1 if lane.high_watermark is None else lane.high_watermark)
                if asks:
                    self._next_asking_s = time.monotonic() + _ASKING_INTERVAL_S
                    try:
                        _, high = self._consumer.get_watermark_offsets(where, timeout=_WATERMARK_TIMEOUT_S)
                    except KafkaException:
                        # Kafka is away; what is known stays, and the others are not worth a wait each.
                        asks = False
            lane.high_watermark = high if high >= 0 else None


def committed(
    consumer: Consumer, partitions: list[TopicPartition], backoff: Backoff, health: Health, stop: Stop
) -> Sequence[TopicPartition]:
    """What was committed of each partition; asked until Kafka answers, since counts begun anew would stay wrong.

    Raises KafkaException when Kafka refuses for good. Nothing when the task has to stop meanwhile.
    """
    while not stop.is_set():
        health.beat()
        try:
            found = consumer.committed(partitions, timeout=_TIMEOUT_S)
            error = next((one.error for one in found if one.error is not None), None)
            if error is None:
                return found
        except KafkaException as failure:
            error = kafka.error_of(failure)
        if error is None or error.code() not in RETRIABLE:
            raise KafkaException(error or "committed offsets not known")
        health.not_ready("kafka", f"committed offsets not known: {error.str()}")
        stop.wait(backoff.next_ms() / 1000)
    return []
