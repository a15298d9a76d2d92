"""Writes batches in Kafka transactions together with the offsets that they come from.

Two fences keep a process that was replaced from writing. The group's generation goes with the offsets of every
transaction (KIP-447), so Kafka refuses those of a process that is no member any more. And whoever is assigned a
partition initialises the transactional id of that partition, which ends an open transaction of a process that was
killed at once: with ids of its own it would stop all readers of `isotherm.commands.open` until its time-out. A process
writes with the id of its first partition; within a generation no two processes have the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from isotherm.connector.errors.dead_letters import Headers
from isotherm.servicekit import logs
from isotherm.servicekit.kafka.errors import error_of

_log = logs.logger(__name__)

ID_PREFIX = "isotherm-commands-"
TRANSACTION_TIMEOUT_MS = 10_000
"""Kafka ends a transaction after this time, in case nobody takes over from a process that was killed."""
RETRY_BACKOFF_MS = 500
"""librdkafka's `retry.backoff.ms`; no configuration may change it.

When a connection breaks, librdkafka sends an EndTxn again, and the first one may still be on its way: it would end this
producer's next transaction (KIP-890, ADR 16). Only the time shows it: librdkafka waits so long, less 20 %, before that.
"""
_RETRIED_AFTER_S = RETRY_BACKOFF_MS / 1_000 * 0.8 * 0.9
"""A commit that takes this long may have been sent twice. A tenth is subtracted for the clocks."""
_CALL_TIMEOUT_S = 5.0
_ABORT_TIMEOUT_S = 2.0
_POLL_S = 0.05
_SIDE_BY_SIDE = 8


class Output(NamedTuple):
    """One record to write."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = []  # noqa: RUF012  # nobody changes it: producing reads it


class TransactionFailedError(Exception):
    """The transaction did not commit, or nobody knows whether it did; `take_over` decides that."""


class TransactionalWriter:
    """Writes for the partitions that it has taken over. One thread uses it."""

    def __init__(self, make_producer: Callable[[str], Producer]) -> None:
        """`make_producer` makes a producer with a transactional id."""
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._first = 0
        self._refused: KafkaError | None = None

    def take_over(self, partitions: Sequence[int]) -> None:
        """Decide every open transaction of former owners of these partitions, and refuse their later ones.

        Raises KafkaException.
        """
        self._producer, self._first = None, min(partitions)
        with ThreadPoolExecutor(min(len(partitions), _SIDE_BY_SIDE)) as pool:
            producers = dict(zip(partitions, pool.map(self._initialised, partitions), strict=True))
        self._producer = producers[self._first]

    def write(self, outputs: Sequence[Output], offsets: Sequence[TopicPartition], group: Any) -> None:
        """Commit records and offsets, or neither.

        `group` is the consumer's `consumer_group_metadata`. Raises TransactionFailedError; then `take_over` has to be
        called before the next `write`.
        """
        producer, self._producer, self._refused = self._producer, None, None
        if producer is None:
            raise TransactionFailedError("no transactional id is initialised")
        try:
            self._fill(producer, outputs, offsets, group)
        except (KafkaException, SystemError) as failure:
            # Nobody has asked for a commit, so it is sure that this one does not happen.
            with suppress(KafkaException, SystemError):
                producer.abort_transaction(_ABORT_TIMEOUT_S)
            raise _failed(failure, self._refused) from failure
        started_s = time.monotonic()
        try:
            producer.commit_transaction(_CALL_TIMEOUT_S)
        except (KafkaException, SystemError) as failure:
            raise _failed(failure, self._refused) from failure
        if time.monotonic() - started_s >= _RETRIED_AFTER_S:
            _log.warning("replacing the producer: the end of its transaction may have been sent twice")
            try:
                producer = self._initialised(self._first)
            except KafkaException as failure:
                # What was written is committed. The next write fails, and so its records are read again.
                _log.warning("the producer is not replaced yet", reason=str(failure))
                return
        self._producer = producer

    def _fill(
        self, producer: Producer, outputs: Sequence[Output], offsets: Sequence[TopicPartition], group: Any
    ) -> None:
        producer.begin_transaction()
        for output in outputs:
            self._produce(producer, output)
        # Flushed before the offsets: while Kafka still ends the transaction before, librdkafka asks again after 20 ms
        # for records, but for offsets only after `retry.backoff.ms`. And the commit takes as long as its EndTxn.
        if producer.flush(_CALL_TIMEOUT_S):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Kafka did not store the records in time"))
        if self._refused is not None:
            raise KafkaException(self._refused)
        producer.send_offsets_to_transaction(list(offsets), group, _CALL_TIMEOUT_S)

    def _produce(self, producer: Producer, output: Output) -> None:
        deadline_s = time.monotonic() + _CALL_TIMEOUT_S
        while True:
            try:
                producer.produce(
                    output.topic,
                    key=output.key,
                    value=output.value,
                    headers=list(output.headers),
                    on_delivery=self._on_delivery,
                )
            except BufferError:
                if time.monotonic() > deadline_s:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from None
                producer.poll(_POLL_S)
            else:
                return

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        self._refused = self._refused or error

    def _initialised(self, partition: int) -> Producer:
        producer = self._make_producer(f"{ID_PREFIX}{partition}")
        producer.init_transactions(_CALL_TIMEOUT_S)
        return producer


def _failed(failure: BaseException, refused: KafkaError | None) -> TransactionFailedError:
    """Return the error for a failure; confluent-kafka raises SystemError around a fatal one in a callback."""
    error: KafkaError | None = refused
    cause: BaseException | None = failure
    while error is None and cause is not None:
        error, cause = error_of(cause), cause.__cause__ or cause.__context__
    return TransactionFailedError(str(failure) if error is None else error.str())
