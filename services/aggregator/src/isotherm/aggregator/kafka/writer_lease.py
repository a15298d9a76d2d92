"""One writer at a time: a group of Kafka decides who tries, and Kafka's fencing decides whose writes count (ADR 186).

The aggregators of one name are a consumer group, which reads the one partition of the journal. Kafka assigns it to one
member and gives it to another one when that member leaves, or is not heard of for SESSION_S. Whoever is assigned it
claims the journal (`writer_journal`), which ends the rights of every former holder, whether it has noticed or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.aggregator.kafka.writer_journal import Holder, LeaseLostError, WriterJournal
from isotherm.servicekit import logs

SESSION_S = 30.0
"""How long Kafka waits for a heartbeat of the holder. A broker restarts in less, so a restart moves no lease."""
HALT_S = 60.0
"""How long a former holder may take to end Spark, when another one has begun, before its process is killed.

Nothing depends on it: what a former holder still writes does not count. It only is of no use any more.
"""
_POLL_S = 0.2
_FOLLOW_S = 2.0
"""How often a process that does not hold the lease reads who does."""

_log = logs.logger(__name__)


class Tenure:
    """The time in which this process is the holder of one epoch: what it begins in that time counts."""

    def __init__(self, lease: WriterLease, journal: WriterJournal, epoch: int) -> None:
        self.epoch = epoch
        self._lease = lease
        self._journal = journal

    @property
    def is_held(self) -> bool:
        """Whether this process may write now, as far as it knows."""
        return self._lease.is_held and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether there was another holder since: this tenure does not come back."""
        holder = self._journal.holder
        return holder is not None and holder.epoch != self.epoch

    def verify(self) -> None:
        """Raise LeaseLostError unless this process may write, as far as it knows."""
        if not self.is_held:
            raise LeaseLostError(f"Kafka does not confirm that this is the holder of the lease: {self.reason()}")

    def reason(self) -> str:
        """Return why this process may not write, in words."""
        return self._lease.reason()

    def note(self, key: str, content: Mapping[str, Any]) -> None:
        """Note something in the journal, if Kafka takes it. Raises LeaseLostError and BrokerError."""
        self.verify()
        self._journal.note(self.epoch, key, content)

    def noted(self, key: str) -> Mapping[str, Any] | None:
        """Return what this or a former holder has noted last under a key."""
        return self._journal.noted(key)

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Write a record to another topic, if Kafka takes it. Raises LeaseLostError and BrokerError."""
        self.verify()
        self._journal.send(self.epoch, topic, key, value)


class WriterLease:
    """The right to write a checkpoint. A thread of its own asks Kafka for it, and keeps it."""

    def __init__(
        self,
        consumer: Consumer,
        journal: WriterJournal,
        topic: str,
        end_process: Callable[[], None],
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`consumer` joins the aggregators' group. The lease closes it and the journal, whose topic is `topic`.

        `end_process` ends this process when it still runs Spark HALT_S after another one has begun to write.
        """
        self._consumer = consumer
        self._journal = journal
        self._topic = topic
        self._end_process = end_process
        self._elapsed_s = elapsed_s
        self._closing = threading.Event()
        self._is_assigned = False
        self._has_claimed = False
        self._confirmed_s = elapsed_s()
        self._followed_s = -_FOLLOW_S
        self._writing: Tenure | None = None
        self._superseded_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="writer-lease", daemon=True)

    def start(self) -> None:
        """Begin to ask for the lease."""
        self._thread.start()

    def close(self) -> None:
        """Give the lease to another process, which begins at once. Call this when nothing writes any more."""
        self._closing.set()
        if self._thread.ident is None:
            self._close()
        else:
            self._thread.join()

    @property
    def is_held(self) -> bool:
        """Whether this process may write now, as far as it knows."""
        return self._has_claimed and self._elapsed_s() - self._confirmed_s < SESSION_S

    def tenure(self) -> Tenure:
        """Return the tenure that has begun. Raises LeaseLostError unless the lease is held."""
        holder = self._journal.holder
        if not self.is_held or holder is None:
            raise LeaseLostError(f"the lease is not held: {self.reason()}")
        return Tenure(self, self._journal, holder.epoch)

    def writing_has_begun(self, tenure: Tenure) -> None:
        """Take note that Spark runs in this tenure."""
        self._writing, self._superseded_s = tenure, None

    def writing_has_ended(self) -> None:
        """Take note that Spark has ended."""
        self._writing = None

    def reason(self) -> str:
        """Return why this process may not write, in words."""
        if self._is_assigned:
            return "it claims the lease, and Kafka has not confirmed it yet"
        return f"it waits until Kafka assigns {self._topic}-0 to it; {_in_words(self._journal.holder)}"

    def _run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost)
        while not self._closing.is_set():
            self._consumer.poll(_POLL_S)
            self._confirmed_s = self._elapsed_s()
            try:
                if self._is_assigned and not self._journal.is_claimed:
                    epoch = self._journal.claim()
                    self._has_claimed = True
                    _log.info("this process holds the lease", topic=self._topic, epoch=epoch)
                elif not self._is_assigned and self._elapsed_s() - self._followed_s >= _FOLLOW_S:
                    self._followed_s = self._elapsed_s()
                    self._journal.follow()
            except (BrokerError, LeaseLostError) as failure:
                _log.warning("Kafka has not decided about the lease", reason=str(failure))
            self._end_superseded()
        if self._journal.is_claimed:
            try:
                self._journal.release()
            except (BrokerError, LeaseLostError) as failure:
                _log.warning("the lease is left without a word", reason=str(failure))
        self._is_assigned = self._has_claimed = False
        self._close()

    def _close(self) -> None:
        self._consumer.close()
        self._journal.close()

    def _end_superseded(self) -> None:
        """End this process if it runs Spark for a tenure that has been over for HALT_S."""
        writing = self._writing
        if writing is None or not writing.is_over:
            return
        if self._superseded_s is None:
            self._superseded_s = self._elapsed_s()
            _log.error("another process has the lease now", epoch=writing.epoch, holder=_in_words(self._journal.holder))
        elif self._elapsed_s() - self._superseded_s > HALT_S:
            _log.error("Spark does not end although another process has the lease: this process is killed")
            self._end_process()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            consumer.incremental_assign(partitions)
            # The journal has a reader of its own; this consumer only holds the partition.
            consumer.pause(partitions)
            self._is_assigned = True

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions and self._is_assigned and not self._closing.is_set():
            self._is_assigned = self._has_claimed = False
            self._journal.drop()
            _log.error("the lease is lost: another process may claim it", topic=self._topic)


def _in_words(holder: Holder | None) -> str:
    if holder is None:
        return "nobody is known to hold it"
    return f"{'released' if holder.has_released else 'held'} by {holder.name} (epoch {holder.epoch})"
