"""Feeds the transactional writer: batches from the event loop to its thread, outcomes back (ADR 0010)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from confluent_kafka import Message

from isotherm.mqtt_proxy.delivery.transaction_batcher import TransactionBatch, TransactionBatcher
from isotherm.mqtt_proxy.delivery.transaction_linger import TransactionLinger
from isotherm.mqtt_proxy.delivery.transactional_writer import TransactionalWriter, WriteResult
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sessions.store import StoredState
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWrite


class Transactions:
    """Collects session writes on the event loop, passes batches to the writer's thread and applies their outcome.

    The first write of a batch waits at least `linger_s` seconds for others (`TransactionLinger`). While a batch is
    undecided, the writes that arrive form the next one. The last record of every batch belongs to the sessions topic,
    because the writer may have to look for it: a session's state, made by `session_record`, or `witness` where no
    stored session changes. `on_stored` is called with each record of a commit, before its outcome is applied. When the
    writer fails, `on_fatal` is called once and no further batch is decided.
    """

    def __init__(
        self,
        writer: TransactionalWriter,
        *,
        executor: Executor,
        session_record: Callable[[str, StoredState | None], ProducerRecord],
        witness: ProducerRecord,
        max_records: int,
        linger_s: float,
        metrics: Metrics,
        on_fatal: Callable[[BaseException], None],
        on_stored: Callable[[Message], None] | None = None,
    ) -> None:
        self._batcher = TransactionBatcher(max_records)
        self._writer = writer
        self._executor = executor
        self._session_record = session_record
        self._witness = witness
        self._linger = TransactionLinger(linger_s)
        self._metrics = metrics
        self._on_fatal, self._on_stored = on_fatal, on_stored
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, write: SessionWrite) -> None:
        """Store `write` with the next batch."""
        self._batcher.add(write)
        now_s = self._loop.time()
        if write.session is not None and (publishes := write.publishes):
            self._linger.note_publish(now_s, now_s - write.session.decided_s, publishes)
        self._linger.add(now_s)
        self._idle.clear()
        if self._batcher.has_undecided_batch:
            return
        if self._is_full:
            self._start_batch()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger.left_s(now_s), self._start_batch)

    async def decide(self, write: SessionWrite) -> Outcome:
        """Store `write` with the next batch and return its outcome; replaces its `on_decided`."""
        decided: asyncio.Future[Outcome] = self._loop.create_future()
        write.on_decided = lambda outcome: None if decided.done() else decided.set_result(outcome)
        self.submit(write)
        return await decided

    async def drain(self) -> None:
        """Return when every submitted write is decided."""
        await self._idle.wait()

    @property
    def _is_full(self) -> bool:
        return self._batcher.is_full or self._linger.is_enough(self._batcher.waiting)

    def _start_next_batch(self) -> None:
        """Start the batch that formed while the last one was undecided, or let it wait for more writes."""
        if self._batcher.has_undecided_batch or self._timer is not None:
            return
        wait_s = 0.0 if self._is_full or not self._batcher.has_work else self._linger.left_s(self._loop.time())
        if wait_s:
            self._timer = self._loop.call_later(wait_s, self._start_batch)
        else:
            self._start_batch()

    def _start_batch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_full = self._is_full
        batch = self._batcher.take()
        self._linger.end(self._loop.time(), left=self._batcher.has_work, is_full=is_full)
        if batch is None:
            if not self._batcher.has_work and not self._batcher.has_undecided_batch:
                self._idle.set()
            return
        records = [record for write in batch.writes for record in write.records]
        states = [self._session_record(client_id, state) for client_id, state in batch.changes()]
        if not records and not states:
            # Only sessions that end with their connection, and no records: there is nothing to commit.
            self._loop.call_soon(self._apply_result, batch, WriteResult.COMMITTED)
            return
        records += states or (self._witness,)
        future = self._loop.run_in_executor(self._executor, self._writer.write, records)
        future.add_done_callback(lambda done: self._on_written(batch, done))

    def _on_written(self, batch: TransactionBatch, done: asyncio.Future[WriteResult]) -> None:
        if done.cancelled():
            return
        failure = done.exception()
        if failure is not None:
            self._metrics.transactions["fatal"] += 1
            self._on_fatal(failure)
            return
        result = done.result()
        self._metrics.transactions["committed" if result is WriteResult.COMMITTED else "aborted"] += 1
        if result is WriteResult.COMMITTED and self._on_stored is not None:
            for message in self._writer.stored:
                self._on_stored(message)
        self._apply_result(batch, result)

    def _apply_result(self, batch: TransactionBatch, result: WriteResult) -> None:
        if result is WriteResult.ABORTED_RECORD_AT_FAULT:
            self._batcher.retry_refused(batch, self._writer.fault)
        else:
            now_s = self._loop.time()
            for write in batch.writes:
                if write.session is not None:
                    write.session.decided_s = now_s
            self._batcher.decide(batch, Outcome.COMMITTED if result is WriteResult.COMMITTED else Outcome.ABORTED)
        self._start_next_batch()
