"""Feeds the transactional writer: batches from the event loop to its thread, outcomes back (ADR 0010)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from isotherm.mqtt_proxy.delivery.transaction_batcher import (
    Batch,
    Grouping,
    Outcome,
    OutRecord,
    Unit,
)
from isotherm.mqtt_proxy.delivery.transactional_writer import TransactionalWriter, Written
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sessions.store import StoredState


class Transactions:
    """Collects units on the event loop, hands batches to the writer's thread and decides them.

    A first unit waits `linger_s` for others; while a batch is out, everything that comes forms the next one. The last
    record of every batch is of the sessions topic, for the writer may have to look for it: a session's state, made by
    `session_record`, or `witness` where no stored session changes. When the writer fails, `on_fatal` is called once and
    nothing is decided any more.
    """

    def __init__(
        self,
        writer: TransactionalWriter,
        *,
        executor: Executor,
        session_record: Callable[[str, StoredState | None], OutRecord],
        witness: OutRecord,
        max_records: int,
        linger_s: float,
        metrics: Metrics,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.grouping = Grouping(max_records)
        self._writer = writer
        self._executor = executor
        self._session_record = session_record
        self._witness = witness
        self._linger_s = linger_s
        self._metrics = metrics
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, unit: Unit) -> None:
        """Have `unit` stored with the next batch."""
        self.grouping.add(unit)
        self._idle.clear()
        if self.grouping.is_deciding:
            return
        if self.grouping.is_full:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger_s, self._start)

    async def decide(self, unit: Unit) -> Outcome:
        """Submit `unit`, which must have no `on_decided` of its own use, and return its outcome."""
        decided: asyncio.Future[Outcome] = self._loop.create_future()
        unit.on_decided = lambda outcome: None if decided.done() else decided.set_result(outcome)
        self.submit(unit)
        return await decided

    async def drain(self) -> None:
        """Return when everything submitted is decided."""
        await self._idle.wait()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = self.grouping.take()
        if batch is None:
            if not self.grouping.has_work:
                self._idle.set()
            return
        records = [record for unit in batch.units for record in unit.records]
        states = [self._session_record(client_id, state) for client_id, state in batch.changes()]
        if not records and not states:
            # Only sessions that do not outlive their connection, and nothing to store: there is nothing to commit.
            self._loop.call_soon(self._decided, batch, Written.COMMITTED)
            return
        records += states or (self._witness,)
        future = self._loop.run_in_executor(self._executor, self._writer.write, records)
        future.add_done_callback(lambda done: self._written(batch, done))

    def _written(self, batch: Batch, done: asyncio.Future[Written]) -> None:
        if done.cancelled():
            return
        failure = done.exception()
        if failure is not None:
            self._metrics.transactions["fatal"] += 1
            self._on_fatal(failure)
            return
        written = done.result()
        self._metrics.transactions["committed" if written is Written.COMMITTED else "aborted"] += 1
        self._decided(batch, written)

    def _decided(self, batch: Batch, written: Written) -> None:
        if written is Written.ABORTED_RECORD_AT_FAULT:
            self.grouping.refused(batch, self._writer.fault)
        else:
            self.grouping.decided(batch, Outcome.COMMITTED if written is Written.COMMITTED else Outcome.ABORTED)
        self._start()
