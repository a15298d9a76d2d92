"""Groups the session writes of all clients into transactions, one after the other (ADR 0010). No Kafka, no clock.

A batch holds the writes of one transaction, with the state that each session has after its commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from isotherm.mqtt_proxy.sessions.store import Session, StoredState
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWrite


@dataclass(slots=True, eq=False)
class TransactionBatch:
    """The writes of one transaction, and the state of each durable session that they change, after the commit.

    A session that ends with its connection has no draft: the commit changes it in place.
    """

    writes: list[SessionWrite] = field(default_factory=list)
    drafts: dict[Session, StoredState | None] = field(default_factory=dict)

    def changes(self) -> list[tuple[str, StoredState | None]]:
        """Return the states to store with the records, by client id; None is a tombstone."""
        return [(session.client_id, state) for session, state in self.drafts.items()]


class TransactionBatcher:
    """A queue of session writes that gives out one batch at a time.

    A batch is closed when it has `max_records` records; one write may bring more.
    """

    def __init__(self, max_records: int) -> None:
        self._queue: deque[SessionWrite] = deque()
        self._max_records = max_records
        self._limit = max_records
        self._current: TransactionBatch | None = None
        self.outstanding_records = 0
        self.waiting = 0
        """How many packets wait for a batch."""

    @property
    def has_undecided_batch(self) -> bool:
        """Whether a batch is given out and not decided."""
        return self._current is not None

    @property
    def has_work(self) -> bool:
        """Whether writes wait for a batch."""
        return bool(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether enough packets wait to fill a batch."""
        return self.waiting >= self._limit

    def add(self, write: SessionWrite) -> None:
        """Queue a write."""
        if write.session is not None:
            write.session.undecided += 1
        self.outstanding_records += len(write.records) + write.packets
        self.waiting += write.packets
        # After a refusal, until the one at fault is behind us.
        is_whole = self._limit == self._max_records
        self._queue.extend((write,) if is_whole else self._parts(write))

    def take(self) -> TransactionBatch | None:
        """Return the next batch; None while one is undecided or when nothing waits.

        The writes of a source that failed are not stored: they are decided here, as aborted.
        """
        if self._current is not None:
            return None
        batch = TransactionBatch()
        dropped: list[SessionWrite] = []
        records = 0
        while self._queue and records < self._limit:
            write = self._queue.popleft()
            self.waiting -= write.packets
            if write.source is not None and write.source.failed:
                dropped.append(write)
                continue
            batch.writes.append(write)
            records += len(write.records) + write.packets
            session = write.session
            if session is not None and session.durable:
                if session not in batch.drafts:
                    batch.drafts[session] = session.stored.copy() if session.stored else None
                batch.drafts[session] = write.apply(batch.drafts[session])
        if batch.writes:
            self._current = batch
        # The callback of a dropped write may submit another one, which may start a batch of its own.
        self._settle(dropped, Outcome.ABORTED)
        return batch if batch.writes else None

    def retry_refused(self, batch: TransactionBatch, reason: str) -> None:
        """Queue the writes of `batch` again: its transaction was aborted because Kafka refused a record for `reason`.

        The writes, also those of several packets, are tried alone at first and then in batches that grow with each
        commit, so that the one at fault harms no other. When it is alone, its `on_refused` replaces its records, or it
        is decided as aborted.
        """
        assert batch is self._current
        self._limit = 1
        batch.writes = [part for write in batch.writes for part in self._parts(write)]
        if len(batch.writes) == 1:
            (write,) = batch.writes
            on_refused, write.on_refused = write.on_refused, None
            records = None if on_refused is None else on_refused(reason)
            if records is None:
                self.decide(batch, Outcome.ABORTED)
                return
            self.outstanding_records += len(records) - len(write.records)
            write.records = records
        self._current = None
        self.waiting += sum(write.packets for write in batch.writes)
        later = [part for write in self._queue for part in self._parts(write)]
        self._queue = deque((*batch.writes, *later))

    def _parts(self, write: SessionWrite) -> Sequence[SessionWrite]:
        parts = write.parts()
        if write.session is not None:
            write.session.undecided += len(parts) - 1
        return parts

    def decide(self, batch: TransactionBatch, outcome: Outcome) -> None:
        """Apply the outcome of the transaction of `batch` to its sessions, and call `on_decided` of its writes.

        The batch counts as undecided until all of them are called: an outcome may end a connection, which a later one
        then cannot tell, so that no write may be taken in between.
        """
        assert batch is self._current
        if outcome is Outcome.COMMITTED:
            for session, state in batch.drafts.items():
                session.stored = state
            for write in batch.writes:
                if write.session is not None and write.session not in batch.drafts:
                    write.session.stored = write.apply(write.session.stored)
            self._limit = min(self._max_records, self._limit * 2)
        else:
            for write in batch.writes:
                if write.source is not None:
                    write.source.fail()
        try:
            self._settle(batch.writes, outcome)
        finally:
            self._current = None

    def _settle(self, writes: Sequence[SessionWrite], outcome: Outcome) -> None:
        for write in writes:
            self.outstanding_records -= len(write.records) + write.packets
            if write.session is not None:
                write.session.undecided -= 1
            write.settle(outcome)
        for write in writes:
            write.on_decided(outcome)
        for write in writes:
            session = write.session
            if session is not None and not session.undecided and session.when_settled:
                waiting, session.when_settled = session.when_settled, []
                for call in waiting:
                    call()
