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
from isotherm.persisters.api.sink import Sink, Unavailable
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer


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
    """Threads that write batches of different partitions at the same time; one more whenever all of them are busy."""

    def __init__(
        self,
        threads: int,
        sink: Sink,
        policy: ErrorPolicy,
        send_dead_letters: Callable[[Sequence[FailedRecord]], None],
        observer: WriteObserver,
    ) -> None:
        """There are at most `threads`. `send_dead_letters` returns once the dead-letter topic has all of them."""
        self._sink, self._policy, self._observer = sink, policy, observer
        self._send_dead_letters = send_dead_letters
        # Not a SimpleQueue: its `get` waits for ever when a signal's handler ends after the time-out (Python 3.11), and
        # the main thread waits here when SIGTERM comes.
        self._answers: queue.Queue[Attempt] = queue.Queue()
        self._attempts: queue.SimpleQueue[tuple[PartitionBuffer, InFlightBatch] | None] = queue.SimpleQueue()
        self._most_threads = threads
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._unanswered = 0
        """Attempts that are queued or being made."""

    def start(self, buffer: PartitionBuffer, batch: InFlightBatch) -> None:
        """Queue an attempt at writing `batch`; `answers` returns its answer. Only one thread may call this."""
        with self._lock:
            self._unanswered += 1
            are_all_busy = self._unanswered > len(self._threads)
        self._attempts.put((buffer, batch))
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
        while (attempt := self._attempts.get()) is not None:
            self._attempt(*attempt)

    def _attempt(self, buffer: PartitionBuffer, batch: InFlightBatch) -> None:
        answer = Attempt(buffer)
        try:
            answer = self._write(buffer, batch)
        except OwnershipLostError as lost:
            # The attempt does not count, and this task does not repeat it: the next owner writes these rows, or they
            # wait until the lease is valid again.
            answer = Attempt(buffer, str(lost))
        except BaseException as fatal:
            answer = Attempt(buffer, fatal=fatal)
        finally:
            # Before the answer, because it may be followed by the next attempt, for which this thread is free.
            with self._lock:
                self._unanswered -= 1
            self._answers.put(answer)

    def _write(self, buffer: PartitionBuffer, batch: InFlightBatch) -> Attempt:
        topic, partition = buffer.partition
        # The partition may have gone to another task while the batch waited for a thread.
        buffer.ownership.check()
        answer = Attempt(buffer)
        started = time.perf_counter()
        rows = len(batch.rows)
        try:
            failed = self._sink.write(Batch(topic, partition, batch.rows, buffer.ownership)) if batch.rows else ()
        except Unavailable as away:
            batch.apply_unavailable(away, self._policy)
            answer = Attempt(buffer, str(away), away.retry_after_ms)
        else:
            self._observer.stored(_without(failed, batch.rows), batch.records)
            batch.apply_result(failed, self._policy)
            if batch.rows:
                example = next(one for one in failed if one.transient)
                answer = Attempt(buffer, f"{len(batch.rows)} rows failed for now: {example.error}")
        if rows:
            self._observer.wrote(rows, time.perf_counter() - started)
        if batch.rows:
            # Dead letters wait until no row is left: if a row stopped the task at last, every restart would send them
            # again.
            self._observer.retried(len(batch.rows))
            return answer
        self._settle_failed(buffer, batch)
        return answer

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
