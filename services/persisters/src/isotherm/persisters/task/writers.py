"""The threads that write batches to the sink; every attempt gets an answer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from isotherm.connector.errors.policies import ErrorPolicy
from isotherm.persisters.api.ownership import OwnershipLostError
from isotherm.persisters.api.record import FailedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import BulkSink, Sink, Unavailable
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer

Part = tuple[PartitionBuffer, InFlightBatch]
"""A partition and its batch in flight."""


class WriteObserver(Protocol):
    """Is told of writes; the writers' threads call it."""

    def wrote(self, rows: int, seconds: float) -> None:
        """One write of `rows` rows to the sink ended, successful or not."""

    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None:
        """The sink has taken `rows`, made of some of `records`, both in the order of their offsets."""

    def retried(self, rows: int) -> None:
        """`rows` rows wait for another attempt."""

    def failed(self, records: Sequence[FailedRecord]) -> None:
        """Records were skipped or dead-lettered."""


class Attempt(NamedTuple):
    """The answer to one attempt at a partition's batch."""

    buffer: PartitionBuffer
    retry_reason: str | None = None
    """Why rows wait for another attempt; None if all of them have their outcome."""
    retry_after_ms: float | None = None
    fatal: BaseException | None = None
    """Why the task cannot continue."""


class Writers:
    """Threads that write batches of different partitions at the same time; one more whenever all of them are busy.

    A `BulkSink` gets the batches of several partitions in one write, up to the limits of a batch.
    """

    def __init__(
        self,
        threads: int,
        sink: Sink,
        policy: ErrorPolicy,
        send_dead_letters: Callable[[Sequence[FailedRecord]], None],
        observer: WriteObserver,
        limits: BufferLimits | None = None,
    ) -> None:
        """There are at most `threads`. `send_dead_letters` returns once the dead-letter topic has all of them."""
        self._sink, self._policy, self._observer = sink, policy, observer
        self._bulk_sink = sink if isinstance(sink, BulkSink) else None
        self._send_dead_letters = send_dead_letters
        self._limits = limits or BufferLimits()
        self._gathered: list[Part] = []
        """Batches for the next write."""
        # Not a SimpleQueue: its `get` waits for ever when a signal's handler ends after the time-out (Python 3.11), and
        # the main thread waits here when SIGTERM comes.
        self._answers: queue.Queue[Attempt] = queue.Queue()
        self._attempts: queue.SimpleQueue[Sequence[Part] | None] = queue.SimpleQueue()
        self._most_threads = threads
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._unanswered = 0
        """Writes that are queued or being made."""

    def gather(self, buffer: PartitionBuffer, batch: InFlightBatch) -> None:
        """Take a batch for the next write, which begins at `start_gathered` at the latest, or once it is full.

        Only one thread may call this and `start_gathered`.
        """
        records = len(batch.records) + sum(len(one.records) for _, one in self._gathered)
        size_bytes = batch.size_bytes + sum(one.size_bytes for _, one in self._gathered)
        if records > self._limits.batch_records or size_bytes > self._limits.batch_bytes:
            self.start_gathered()
        self._gathered.append((buffer, batch))
        if self._bulk_sink is None:
            self.start_gathered()

    def start_gathered(self) -> None:
        """Queue the write of the gathered batches; `answers` returns an answer for each of them."""
        if not self._gathered:
            return
        with self._lock:
            self._unanswered += 1
            are_all_busy = self._unanswered > len(self._threads)
        self._attempts.put(self._gathered)
        self._gathered = []
        if not are_all_busy or len(self._threads) == self._most_threads:
            return
        # Daemon threads, so that the end of the process does not wait for a server that does not answer.
        thread = threading.Thread(target=self._run, name=f"writer-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def answers(self, wait_s: float = 0.0) -> Iterator[Attempt]:
        """Return the answers that have come in, after waiting up to `wait_s` seconds for the first one."""
        try:
            yield self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait()
            while True:
                yield self._answers.get_nowait()
        except queue.Empty:
            return

    def close(self) -> None:
        """Drop queued attempts and end the threads, without waiting for attempts that have begun."""
        while True:
            try:
                self._attempts.get_nowait()
            except queue.Empty:
                break
        for _ in self._threads:
            self._attempts.put(None)

    def _run(self) -> None:
        while (parts := self._attempts.get()) is not None:
            self._attempt(parts)

    def _attempt(self, parts: Sequence[Part]) -> None:
        answers: Sequence[Attempt] = [Attempt(buffer) for buffer, _ in parts]
        try:
            answers = self._write(parts)
        except OwnershipLostError as lost:
            # The attempt does not count, and this task does not repeat it: the next owner writes these rows, or they
            # wait until the lease is valid again.
            answers = [Attempt(buffer, str(lost)) for buffer, _ in parts]
        except BaseException as fatal:
            answers = [Attempt(buffer, fatal=fatal) for buffer, _ in parts]
        finally:
            # Before the answers, because they may be followed by the next attempt, for which this thread is free.
            with self._lock:
                self._unanswered -= 1
            for answer in answers:
                self._answers.put(answer)

    def _write(self, parts: Sequence[Part]) -> list[Attempt]:
        answers: list[Attempt] = []
        held: list[Part] = []
        for buffer, batch in parts:
            # The partition may have gone to another task while its batch waited for a thread.
            if buffer.ownership.is_held:
                held.append((buffer, batch))
            else:
                answers.append(Attempt(buffer, "this task does not own the partition any more"))
        to_write = [(buffer, batch) for buffer, batch in held if batch.rows]
        reasons: dict[PartitionBuffer, Attempt] = {}
        if to_write:
            started, rows = time.perf_counter(), sum(len(batch.rows) for _, batch in to_write)
            reasons = self._write_rows(to_write)
            self._observer.wrote(rows, time.perf_counter() - started)
        return [*answers, *(self._settled(buffer, batch, reasons.get(buffer)) for buffer, batch in held)]

    def _write_rows(self, parts: Sequence[Part]) -> dict[PartitionBuffer, Attempt]:
        """Write the rows of the parts; return the answers of those that may have rows left."""
        answers: dict[PartitionBuffer, Attempt] = {}
        try:
            results = self._ask_sink([_rows_of(buffer, batch) for buffer, batch in parts])
        except Unavailable as away:
            for buffer, batch in parts:
                batch.apply_unavailable(away, self._policy)
                answers[buffer] = Attempt(buffer, str(away), away.retry_after_ms)
            return answers
        for (buffer, batch), failed in zip(parts, results, strict=True):
            self._observer.stored(_without(failed, batch.rows), batch.records)
            batch.apply_result(failed, self._policy)
            if batch.rows:
                example = next(one for one in failed if one.transient)
                answers[buffer] = Attempt(buffer, f"{len(batch.rows)} rows failed for now: {example.error}")
        return answers

    def _ask_sink(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
        if self._bulk_sink is not None and len(batches) > 1:
            return self._bulk_sink.write_bulk(batches)
        return [self._sink.write(batch) for batch in batches]

    def _settled(self, buffer: PartitionBuffer, batch: InFlightBatch, answer: Attempt | None) -> Attempt:
        """Settle a batch whose rows were written, and return its answer."""
        if batch.rows:
            # Dead letters wait until no row is left: if a row stopped the task at last, every restart would send them
            # again.
            self._observer.retried(len(batch.rows))
        else:
            try:
                self._settle_failed(buffer, batch)
            except OwnershipLostError as lost:
                return Attempt(buffer, str(lost))
            except Exception as fatal:
                # The other partitions of the write are settled all the same.
                return Attempt(buffer, fatal=fatal)
        return answer or Attempt(buffer)

    def _settle_failed(self, buffer: PartitionBuffer, batch: InFlightBatch) -> None:
        if batch.dead_letters:
            buffer.ownership.check()
            self._send_dead_letters(batch.dead_letters)
        failed = [*batch.dead_letters, *batch.skipped]
        batch.dead_letters, batch.skipped = [], []
        if failed:
            self._observer.failed(failed)


def _without(failed: Sequence[FailedRow], rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows that the sink has taken."""
    if not failed:
        return rows
    refused = {one.index for one in failed}
    return [row for index, row in enumerate(rows) if index not in refused]


def _rows_of(buffer: PartitionBuffer, batch: InFlightBatch) -> Batch:
    topic, partition = buffer.partition
    begin = buffer.settled_before(batch)
    return Batch(topic, partition, batch.rows, buffer.ownership, begin, batch.end, batch.failed_before)
