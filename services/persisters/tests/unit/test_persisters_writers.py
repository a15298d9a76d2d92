"""When the observers of a batch are called: dead-letter records wait until no row of it is written again."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.task.writers import Writers
from isotherm.servicekit.backoff import Backoff

(STATEMENT,) = kcql.parse("INSERT INTO target SELECT * FROM t")
PLAN = compile_plan(STATEMENT, None, "-")
OVERLOADED, REFUSED = ValueError("try later"), ValueError("never")
WAIT_S = 60.0


class Overloaded:
    """A sink in memory that accepts the first offset of a batch after `busy` attempts, and the third one never."""

    def __init__(self, busy: int) -> None:
        self.busy = busy

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        self.busy -= 1
        at = {row.offset: index for index, row in enumerate(batch.rows)}
        later = [FailedRow(at[0], "overloaded", OVERLOADED, transient=True)] if self.busy >= 0 and 0 in at else []
        return [*later, *([FailedRow(at[2], "mapping", REFUSED)] if 2 in at else [])]


class Told:
    """The calls of the writers, and the dead letters that they send."""

    def __init__(self) -> None:
        self.dead_letters: list[int] = []
        self.failed_offsets: list[int] = []
        self.stored_offsets: list[int] = []

    def send(self, records: Sequence[FailedRecord]) -> None:
        self.dead_letters += [one.record.offset for one in records]

    def wrote(self, rows: int, seconds: float) -> None: ...
    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None:
        assert [one.offset for one in records] == sorted(one.offset for one in records)
        self.stored_offsets += [one.offset for one in rows]

    def retried(self, rows: int) -> None: ...

    def failed(self, records: Sequence[FailedRecord]) -> None:
        self.failed_offsets += [one.record.offset for one in records]


def attempts(busy: int, max_retries: int) -> tuple[Told, list[list[int]], InFlightBatch]:
    """Attempts at a batch of three until none is needed; the dead letters that were sent after each."""
    policy = ErrorPolicy(Policy.RETRY, max_retries=max_retries, dead_letters=True)
    records = [Record("t", 0, offset, 0, None, b"", ()) for offset in range(3)]
    rows = [Row(one.offset, "target", str(one.offset), {}, 0, None, PLAN) for one in records]
    batch = InFlightBatch.prepare(records, policy, lambda one: ProjectedRecord([rows[one.offset]]))
    told, buffer = Told(), PartitionBuffer(("t", 0), Counts(), Backoff())
    writers = Writers(1, Overloaded(busy), policy, told.send, told)
    sent = []
    while True:
        writers.gather(buffer, batch)
        (answer,) = writers.answers(WAIT_S)
        assert answer.fatal is None
        sent.append(list(told.dead_letters))
        if not batch.rows:
            writers.close()
            return told, sent, batch


def test_a_dead_letter_is_sent_once_its_batch_has_no_row_that_waits() -> None:
    told, sent, batch = attempts(busy=2, max_retries=5)
    assert sent == [[], [], [2]]
    assert told.failed_offsets == [2]
    assert told.stored_offsets == [1, 0], "each row once, when the sink has taken it"
    assert batch.count_outcomes().dead_lettered == {"mapping": 1}


def test_a_record_behind_the_one_that_stops_the_task_is_no_dead_letter_of_this_run() -> None:
    told, sent, batch = attempts(busy=100, max_retries=2)
    assert batch.stopped_at is not None
    assert (batch.stopped_at.record.offset, batch.end) == (0, 0)
    assert sent[-1] == []
    assert told.failed_offsets == []


def test_a_sink_hears_which_records_failed_before_it() -> None:
    """What it notes as stored must not include them; what WHERE leaves out is no failure."""
    records = [Record("t", 0, offset, 0, None, b"", ()) for offset in range(4)]
    made = [
        ProjectedRecord([Row(0, "target", "0", {}, 0, None, PLAN)]),
        ProjectedRecord(failed=FailedRecord(records[1], "VALUE_CONVERTER", "avro", REFUSED)),
        ProjectedRecord(filtered="where"),
        ProjectedRecord([Row(3, "target", "3", {}, 0, None, PLAN)]),
    ]
    batches: list[Batch] = []

    class Listening(Overloaded):
        def write(self, batch: Batch) -> Sequence[FailedRow]:
            batches.append(batch)
            return []

    policy, told = ErrorPolicy(Policy.NOOP, max_retries=1, dead_letters=True), Told()
    writers = Writers(1, Listening(0), policy, told.send, told)
    batch = InFlightBatch.prepare(records, policy, lambda one: made[one.offset])
    writers.gather(PartitionBuffer(("t", 0), Counts(), Backoff()), batch)
    (answer,) = writers.answers(WAIT_S)
    writers.close()
    assert answer.fatal is None
    assert [(one.begin, one.end, one.failed_before) for one in batches] == [(0, 4, frozenset((1,)))]


class Together:
    """A sink whose writes wait for each other."""

    def __init__(self, writes: int) -> None:
        self._all = threading.Barrier(writes)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, _batch: Batch) -> Sequence[FailedRow]:
        self._all.wait(WAIT_S)
        return ()


@pytest.fixture
def switching_often() -> Iterator[None]:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


def one_record(number: int) -> tuple[PartitionBuffer, InFlightBatch]:
    """A partition and its batch of one record."""
    row = Row(0, "target", "0", {}, 0, None, PLAN)
    records = [Record("t", number, 0, 0, None, b"", ())]
    batch = InFlightBatch.prepare(records, ErrorPolicy(Policy.NOOP), lambda _: ProjectedRecord([row]))
    return PartitionBuffer(("t", number), Counts(), Backoff()), batch


@pytest.mark.usefixtures("switching_often")
def test_as_many_batches_as_there_may_be_threads_are_written_beside_each_other() -> None:
    """A thread that has just answered and looks for its next attempt is free for it."""
    for _ in range(50):
        writers = Writers(3, Together(3), ErrorPolicy(Policy.NOOP), lambda _: None, Told())
        for _ in range(3):
            for number in range(3):
                writers.gather(*one_record(number))
            answered = 0
            while answered < 3:
                answers = list(writers.answers(WAIT_S))
                assert answers, "a batch waits for a thread"
                assert all(answer.fatal is None for answer in answers)
                answered += len(answers)
        writers.close()


def test_an_answered_thread_makes_the_next_attempt() -> None:
    """Threads that are not needed are not started."""
    writers = Writers(3, Overloaded(0), ErrorPolicy(Policy.NOOP), lambda _: None, Told())
    for number in range(100):
        writers.gather(*one_record(number))
        (answer,) = writers.answers(WAIT_S)
        assert answer.fatal is None
    assert len(writers._threads) == 1
    writers.close()


def test_a_signal_whose_handler_takes_longer_than_the_wait_does_not_prolong_it() -> None:
    """SIGTERM finds the main thread waiting for answers; none may ever come, because nothing is in flight."""
    writers = Writers(1, Together(1), ErrorPolicy(Policy.NOOP), lambda _: None, Told())
    handled = []

    def on_alarm(_number: int, _frame: object) -> None:
        # The fault itself, not a wait for something: the handler ends after the time-out of `answers`.
        time.sleep(0.1)
        handled.append(True)

    # Only this ends a wait that has no end.
    rescue = threading.Timer(WAIT_S / 6, lambda: writers.gather(*one_record(0)))
    previous = signal.signal(signal.SIGALRM, on_alarm)
    rescue.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert list(writers.answers(0.05)) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        rescue.cancel()
        writers.close()
    assert handled == [True]
