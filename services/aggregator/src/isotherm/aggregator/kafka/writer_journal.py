"""What only the newest holder of the lease can write: Kafka refuses the transactions of every former one (ADR 186).

The journal is a compacted topic with one partition. It says who holds the lease, with an epoch that each holder raises,
and which batch each query has begun. All of it, and the ticks of the clock, is written in transactions with one
transactional id. A new holder initialises that id, and from then on Kafka refuses the former one.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.servicekit import logs
from isotherm.servicekit.kafka.consuming import assign_from_start
from isotherm.servicekit.kafka.errors import error_of, reason_of

TRANSACTION_TIMEOUT_S = 15.0
"""How long a transaction may be open before Kafka aborts it: readers of the topic wait for it."""

_HOLDER = "holder"
_CALL_TIMEOUT_S = 5.0
_FENCED = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))

_log = logs.logger(__name__)


class LeaseLostError(Exception):
    """This process may not write any more: Kafka does not confirm that it is the newest holder of the lease."""


@dataclass(frozen=True)
class Holder:
    """Who holds the lease, or held it last."""

    epoch: int
    name: str
    has_released: bool


class WriterJournal:
    """The journal, as one process reads and writes it.

    The lease's thread calls `follow`, `claim` and `release`; any thread may call the other methods.
    """

    def __init__(self, topic: str, name: str, make_producer: Callable[[], Producer], reader: Consumer) -> None:
        """`name` names this process; no other process ever has it.

        `make_producer` returns a producer, always with the same transactional id. `reader` is read_committed and
        reports partition ends; the journal closes it.
        """
        self._topic = topic
        self._name = name
        self._make_producer = make_producer
        self._reader = reader
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._read_to: int | None = None
        self._records: dict[str, dict[str, Any]] = {}

    @property
    def holder(self) -> Holder | None:
        """Who holds the lease, as far as this process has read; None: nobody ever did."""
        found = self._records.get(_HOLDER)
        return None if found is None else Holder(found["epoch"], found["name"], found["released"])

    @property
    def is_claimed(self) -> bool:
        """Whether this process holds the lease, and no write has failed since it claimed it."""
        return self._producer is not None

    def follow(self) -> None:
        """Read what others have written. Raises BrokerError."""
        with self._lock, _answer_expected("Kafka does not say who holds the lease"):
            self._read()

    def claim(self) -> int:
        """Become the newest holder, and return the epoch: the one before, if nobody else was the holder since.

        Kafka refuses every other process from now on. Raises BrokerError, and LeaseLostError when another process does
        the same and is faster.
        """
        with self._lock, _answer_expected("the lease cannot be claimed"):
            self._producer = None
            producer = self._make_producer()
            producer.init_transactions(_CALL_TIMEOUT_S)
            # Nothing of a former holder is added behind this end.
            self._read()
            former = self.holder
            if former is None or former.name != self._name:
                epoch = 1 if former is None else former.epoch + 1
                self._commit(producer, _HOLDER, {"epoch": epoch, "name": self._name, "released": False})
            self._producer = producer
            claimed = self.holder
            assert claimed is not None
            return claimed.epoch

    def drop(self) -> None:
        """Write nothing more before the next `claim`."""
        with self._lock:
            self._producer = None

    def release(self) -> None:
        """Say that this process writes no more. Raises BrokerError and LeaseLostError."""
        holder = self.holder
        if holder is not None:
            self._write(holder.epoch, _HOLDER, {"epoch": holder.epoch, "name": self._name, "released": True})
        self.drop()

    def close(self) -> None:
        """Close the connections."""
        self.drop()
        self._reader.close()

    def note(self, epoch: int, key: str, content: Mapping[str, Any]) -> None:
        """Replace what is noted under a key. Returns when Kafka has committed it for the holder of this epoch.

        Raises LeaseLostError when another process is the newest holder, or may be, and BrokerError when Kafka does not
        answer: then it is not known whether the note is there. Nothing more is written before the next `claim`.
        """
        self._write(epoch, key, {**content, "epoch": epoch})

    def noted(self, key: str) -> Mapping[str, Any] | None:
        """Return what the holders have noted last under a key, as of the last `claim` or `note`."""
        return self._records.get(key)

    def send(self, epoch: int, topic: str, key: bytes, value: bytes) -> None:
        """Write a record to another topic, as `note` does."""
        with self._lock, _answer_expected(f"{topic} cannot be written"):
            self._commit_bytes(self._producer_of(epoch), topic, key, value)

    def _write(self, epoch: int, key: str, content: dict[str, Any]) -> None:
        with self._lock, _answer_expected("the journal cannot be written"):
            self._commit(self._producer_of(epoch), key, content)

    def _producer_of(self, epoch: int) -> Producer:
        holder = self.holder
        if holder is None or holder.epoch != epoch or holder.name != self._name:
            raise LeaseLostError(f"the lease of epoch {epoch} is over: {holder}")
        if self._producer is None:
            raise BrokerError("the lease is to be claimed again, after a write that Kafka has not confirmed")
        return self._producer

    def _commit(self, producer: Producer, key: str, content: dict[str, Any]) -> None:
        self._commit_bytes(producer, self._topic, key.encode(), json.dumps(content).encode())
        self._records[key] = content

    def _commit_bytes(self, producer: Producer, topic: str, key: bytes, value: bytes) -> None:
        """Write one record in a transaction of its own. After a failure the producer is not used again.

        A request to end the transaction may then still be on its way. The next `claim` raises the producer's epoch, so
        that Kafka refuses it.
        """
        try:
            producer.begin_transaction()
            producer.produce(topic, value=value, key=key, partition=0)
            producer.commit_transaction(_CALL_TIMEOUT_S)
        except KafkaException:
            self._producer = None
            producer.purge()
            raise

    def _read(self) -> None:
        """Read up to the present end of the topic. Raises KafkaException and BrokerError."""
        partition = TopicPartition(self._topic, 0)
        _, end = self._reader.get_watermark_offsets(partition, timeout=_CALL_TIMEOUT_S, cached=False)
        if self._read_to is None:
            assign_from_start(self._reader, self._topic, [0], _CALL_TIMEOUT_S)
            self._read_to = 0
        deadline_s = time.monotonic() + _CALL_TIMEOUT_S
        while self._read_to < end:
            left_s = deadline_s - time.monotonic()
            message = self._reader.poll(left_s) if left_s > 0 else None
            if message is None:
                raise BrokerError(f"Kafka does not answer: {self._topic} is not read to its end within 5 s")
            error, offset = message.error(), message.offset() or 0
            if error is None:
                self._take(message.key() or b"", message.value() or b"")
                self._read_to = offset + 1
                # A long journal takes as long as it takes: only standing still is a failure.
                deadline_s = time.monotonic() + _CALL_TIMEOUT_S
            elif error.code() == KafkaError._PARTITION_EOF:
                # An end that was reported before the question lies before `end`.
                self._read_to = max(self._read_to, offset)
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)

    def _take(self, key: bytes, value: bytes) -> None:
        try:
            self._records[key.decode()] = dict(json.loads(value))
        except (ValueError, TypeError):
            _log.error("the journal has a record that no aggregator has written", topic=self._topic, key=repr(key))


@contextmanager
def _answer_expected(what: str) -> Iterator[None]:
    """Turn KafkaException into LeaseLostError where Kafka has fenced this process, else into BrokerError."""
    try:
        yield
    except KafkaException as failure:
        error = error_of(failure)
        if error is not None and error.code() in _FENCED:
            raise LeaseLostError("another process has begun to write, or this one stood still") from failure
        raise BrokerError(f"{what}: {reason_of(failure)}") from failure
