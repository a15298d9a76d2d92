"""Attempts to write a batch to the sink, in threads of their own; every one of them is answered."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from isotherm.connector.errors.policies import ErrorPolicy
from isotherm.persisters.consuming.ownership import OwnershipLostError
from isotherm.persisters.sinks.sink import Batch, Sink, Unavailable
from isotherm.persisters.task.in_flight_batch import Refusal, Work
from isotherm.persisters.task.partition_buffers import Lane


class WriteObserver(Protocol):
    """What wants to know of writes; called from the writers' threads."""

    def wrote(self, rows: int, seconds: float) -> None:
        """One write to the sink is over, well or not."""

    def retried(self, rows: int) -> None:
        """`rows` rows wait for another attempt."""

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Records were skipped or dead-lettered."""


class Attempt(NamedTuple):
    """The answer to one attempt at a lane's batch."""

    lane: Lane
    trouble: str | None = None
    """Why rows wait for another attempt; None when all of them have their outcome."""
    retry_after_ms: float | None = None
    fatal: BaseException | None = None
    """Why the task cannot go on."""


class Writers:
    """The threads."""

    def __init__(
        self,
        threads: int,
        sink: Sink,
        policy: ErrorPolicy,
        send_dead_letters: Callable[[Sequence[Refusal]], None],
        observer: WriteObserver,
    ) -> None:
        self._sink, self._policy, self._observer = sink, policy, observer
        self._send_dead_letters = send_dead_letters
        self._answers: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        self._attempts: queue.SimpleQueue[tuple[Lane, Work] | None] = queue.SimpleQueue()
        # Daemons: the end of the process does not wait for a server that does not answer.
        self._threads = [
            threading.Thread(target=self._run, name=f"writer-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, lane: Lane, work: Work) -> None:
        """Begin an attempt; `answers` gives its answer."""
        self._attempts.put((lane, work))

    def answers(self, wait_s: float = 0.0) -> Iterator[Attempt]:
        """The answers that are there; waits up to `wait_s` for the first one."""
        try:
            yield self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait()
            while True:
                yield self._answers.get_nowait()
        except queue.Empty:
            return

    def close(self) -> None:
        """Begin no more attempts; what is under way is not waited for."""
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

    def _attempt(self, lane: Lane, work: Work) -> None:
        answer = Attempt(lane)
        try:
            answer = self._write(lane, work)
        except OwnershipLostError as lost:
            # What was begun is not repeated here, and no attempt is counted: its rows are the next owner's, or wait.
            answer = Attempt(lane, str(lost))
        except BaseException as fatal:
            answer = Attempt(lane, fatal=fatal)
        finally:
            self._answers.put(answer)

    def _write(self, lane: Lane, work: Work) -> Attempt:
        topic, partition = lane.partition
        # It may have waited for a thread while the partition went to another task.
        lane.ownership.check()
        answer = Attempt(lane)
        started = time.perf_counter()
        rows = len(work.rows)
        try:
            rejected = self._sink.write(Batch(topic, partition, work.rows, lane.ownership)) if work.rows else ()
        except Unavailable as away:
            work.unavailable(away, self._policy)
            answer = Attempt(lane, str(away), away.retry_after_ms)
        else:
            work.judge(rejected, self._policy)
            if work.rows:
                example = next(one for one in rejected if one.transient)
                answer = Attempt(lane, f"{len(work.rows)} rows refused for now: {example.error}")
        if rows:
            self._observer.wrote(rows, time.perf_counter() - started)
        if work.rows:
            # Refusals wait for the rows: a row that at last stops the task would have every restart send them again.
            self._observer.retried(len(work.rows))
            return answer
        if work.letters:
            lane.ownership.check()
            self._send_dead_letters(work.letters)
        refused = [*work.letters, *work.skipped]
        work.letters, work.skipped = [], []
        if refused:
            self._observer.refused(refused)
        return answer
