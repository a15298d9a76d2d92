"""One writer at a time: Kafka assigns the one partition of the clock's topic to one aggregator of a name (ADR 186).

The aggregators of one name are a consumer group. Kafka assigns a partition to one member of a group, keeps it with
that member while its heartbeats come, and gives it to another one when it leaves, or when its session ends. Both sides
measure the session: a member that Kafka does not answer any more gives up by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from isotherm.servicekit import logs
from isotherm.servicekit.kafka.errors import reason_of
from isotherm.servicekit.kafka.group_offsets import committed_offsets

SESSION_S = 30.0
"""How long Kafka waits for a heartbeat of the holder. A broker restarts in less, so a restart moves no lease."""
HALT_S = 8.0
"""How long a holder that has lost the lease may take to stop its queries, before its JVM is killed."""
TAKEOVER_S = 10.0
"""How long a new holder waits after one that did not release the lease: longer than that one may take to stop."""

_POLL_S = 0.2
_ASK_S = 2.0
"""How often one that waits asks who holds the lease."""
_REQUEST_TIMEOUT_S = 5.0
_HELD, _RELEASED = "held by ", "released by "

_log = logs.logger(__name__)


class LeaseLostError(Exception):
    """This process may not write any more: Kafka does not confirm that it is the only aggregator of its name."""


class WriterLease:
    """The right to write a checkpoint. A thread of its own asks Kafka for it, and keeps it."""

    def __init__(
        self,
        consumer: Consumer,
        reader: Consumer,
        topic: str,
        holder: str,
        end_writing: Callable[[], None],
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Two consumers of the aggregators' group, which the lease closes: `consumer` joins it, `reader` never does.

        `reader` reads what the group has committed: a member that waits for its part of the group cannot
        (`servicekit.kafka.group_offsets`). `holder` names this process to others. `end_writing` kills what still writes
        HALT_S after the lease was lost.
        """
        self._consumer = consumer
        self._reader = reader
        self._topic = topic
        self._holder = holder
        self._end_writing = end_writing
        self._elapsed_s = elapsed_s
        self._closing = threading.Event()
        self._released = False
        self._is_claimed = False
        self._assigned_s: float | None = None
        self._held_from_s = 0.0
        self._is_writing = False
        self._lost_s: float | None = None
        self._confirmed_s = elapsed_s()
        self._others = 0
        self._noted_by: str | None = None
        self._asked_s = -_ASK_S
        self._thread = threading.Thread(target=self._run, name="writer-lease", daemon=True)

    def start(self) -> None:
        """Begin to ask for the lease."""
        self._thread.start()

    def close(self) -> None:
        """Give the lease to another process, which begins at once. Call this when nothing writes any more."""
        self._released = True
        self._closing.set()
        if self._thread.ident is None:
            self._close()
        else:
            self._thread.join()

    @property
    def is_assigned(self) -> bool:
        """Whether Kafka has given the lease to this process, which may have to wait before it writes."""
        return self._is_claimed

    @property
    def is_held(self) -> bool:
        """Whether this process may write now."""
        now_s = self._elapsed_s()
        return self._is_claimed and now_s >= self._held_from_s and now_s - self._confirmed_s < SESSION_S

    @property
    def other_holders(self) -> int:
        """How often another process held the lease before this one got it."""
        return self._others

    def verify(self) -> None:
        """Raise LeaseLostError unless this process may write."""
        if not self.is_held:
            raise LeaseLostError(
                f"Kafka does not confirm that this is the only aggregator with the clock {self._topic}: {self.reason()}"
            )

    def writing_has_begun(self) -> None:
        """Take note that this process writes: from now on a loss of the lease ends it, if need be by a kill."""
        self._is_writing = True

    def writing_has_ended(self) -> None:
        """Take note that nothing of this process writes any more."""
        self._is_writing, self._lost_s = False, None

    def reason(self) -> str:
        """Return why this process may not write, in words."""
        if self._is_claimed:
            return "the former holder did not release it, and may still be stopping"
        return f"it waits until Kafka assigns {self._topic}-0 to it; {self._noted_by or 'nobody is known to hold it'}"

    def _run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost)
        while not self._closing.is_set():
            # Ticks come with it. They are for Spark.
            self._consumer.poll(_POLL_S)
            self._confirmed_s = self._elapsed_s()
            if not self._is_claimed:
                if self._assigned_s is not None:
                    self._claim(self._assigned_s)
                elif self._elapsed_s() - self._asked_s >= _ASK_S:
                    self._asked_s, self._noted_by = self._elapsed_s(), self._noted()
            lost_s = self._lost_s
            if self._is_writing and lost_s is not None and self._elapsed_s() - lost_s > HALT_S:
                self.writing_has_ended()
                _log.error("the queries do not stop although the lease is lost: the JVM is killed", topic=self._topic)
                self._end_writing()
        if self._released and self._is_claimed:
            self._note(_RELEASED)
        self._is_claimed = False
        self._close()

    def _close(self) -> None:
        self._consumer.close()
        self._reader.close()

    def _assigned(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        if _partitions:
            self._assigned_s = self._elapsed_s()

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        self._assigned_s = None
        if self._is_claimed and not self._closing.is_set():
            self._is_claimed, self._lost_s = False, self._elapsed_s()
            _log.error("the lease is lost: another aggregator of this name may begin", topic=self._topic)

    def _claim(self, assigned_s: float) -> None:
        """Note who holds the lease. Without an answer of Kafka the next turn tries again."""
        before = self._noted()
        if before is None or not self._note(_HELD):
            return
        is_other = before not in ("", f"{_HELD}{self._holder}", f"{_RELEASED}{self._holder}")
        self._others += is_other
        # A holder that left in order, or that was this process, writes no more.
        waits = is_other and before.startswith(_HELD)
        self._held_from_s = assigned_s + TAKEOVER_S if waits else assigned_s
        self._is_claimed = True
        _log.info("this is the only aggregator of its name", topic=self._topic, before=before, waits=waits)

    def _noted(self) -> str | None:
        """Return what the last holder noted; None when Kafka does not answer."""
        try:
            partition = TopicPartition(self._topic, 0)
            (committed,) = committed_offsets(self._reader, [partition], timeout_s=_REQUEST_TIMEOUT_S)
        except KafkaException as failure:
            _log.warning("Kafka does not say who holds the lease", reason=reason_of(failure))
            return None
        noted: Any = committed.metadata
        return str(noted or "")

    def _note(self, what: str) -> bool:
        """Commit `what` and the name of this process as metadata of the group's offset; return whether that worked."""
        note = TopicPartition(self._topic, 0, 0, metadata=f"{what}{self._holder}")
        try:
            self._consumer.commit(offsets=[note], asynchronous=False)
        except KafkaException as failure:
            _log.warning("the lease cannot be noted", reason=reason_of(failure))
            return False
        return True
