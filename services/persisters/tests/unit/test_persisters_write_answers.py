"""Every attempt gets an answer: of sinks that break, of batches that wait, and of dead letters that are away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isotherm import kcql
from isotherm.connector.errors.dead_letters import DeadLetterRecord, DeadLettersUnavailableError
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import Unavailable
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.sinks.merged_batches import Ownerships, write_merged
from isotherm.persisters.task import writers as writers_module
from isotherm.persisters.task.dead_letter_sender import DeadLetterSender
from isotherm.persisters.task.writers import Attempt, Part, Writers
from isotherm.servicekit.backoff import Backoff

(STATEMENT,) = kcql.parse("INSERT INTO target SELECT * FROM t")
PLAN = compile_plan(STATEMENT, None, "-")
POLICY = ErrorPolicy(Policy.RETRY, max_retries=3, dead_letters=True)
WAIT_S = 60.0


class Sink:
    """A sink whose answer to a write is that of a function."""

    def __init__(self, answer: Callable[[Batch], Sequence[FailedRow]]) -> None:
        self.write = answer

    def open(self) -> None: ...

    def close(self) -> None: ...


class Told:
    """The calls of the writers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def send(self, records: Sequence[FailedRecord]) -> None:
        self.calls.append(("send", [one.record.offset for one in records]))

    def wrote(self, rows: int, seconds: float) -> None:
        self.calls.append(("wrote", (rows, seconds)))

    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None:
        self.calls.append(("stored", ([one.offset for one in rows], [one.offset for one in records])))

    def retried(self, rows: int) -> None:
        self.calls.append(("retried", rows))

    def failed(self, records: Sequence[FailedRecord]) -> None:
        self.calls.append(("failed", [one.record.offset for one in records]))


def part(partition: int, *offsets: int, filtered: bool = False) -> Part:
    records = [Record("t", partition, offset, 0, None, b"", ()) for offset in offsets]
    rows = [Row(offset, "target", str(offset), {}, 0, None, PLAN) for offset in offsets]
    batch = InFlightBatch.prepare(records, POLICY, lambda _: ProjectedRecord(), lambda _: [] if filtered else rows)
    return PartitionBuffer(("t", partition), Counts(), Backoff()), batch


def answered(writers: Writers, count: int = 1) -> list[Attempt]:
    found: list[Attempt] = []
    while len(found) < count:
        found += writers.answers(WAIT_S)
    return found


def refusing(*failed: FailedRow) -> Sink:
    return Sink(lambda _: failed)


def test_what_a_sink_raises_ends_the_task_and_not_the_thread() -> None:
    broken = [RuntimeError("broken"), None]

    def write(_batch: Batch) -> Sequence[FailedRow]:
        if (error := broken.pop(0)) is not None:
            raise error
        return ()

    told = Told()
    writers = Writers(1, Sink(write), POLICY, told.send, told)
    writers.gather(*part(0, 1))
    (answer,) = answered(writers)
    assert (str(answer.fatal), answer.retry_reason, answer.buffer.partition) == ("broken", None, ("t", 0))
    writers.gather(*part(1, 1))
    (answer,) = answered(writers)
    assert answer[1:] == (None, None, None)
    assert len(writers._threads) == 1
    writers.close()


def test_a_write_tells_how_many_rows_it_had_how_long_it_took_and_what_was_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = [10.0, 12.5]
    monkeypatch.setattr(writers_module, "time", SimpleNamespace(perf_counter=lambda: times.pop(0)))
    told, (buffer, batch) = Told(), part(0, 4, 5, 6)
    sink = refusing(FailedRow(2, "busy", ValueError("later"), transient=True), FailedRow(1, "type", ValueError("no")))
    writers = Writers(1, sink, POLICY, told.send, told)
    writers.gather(buffer, batch)
    (answer,) = answered(writers)
    assert answer == Attempt(buffer, "1 rows failed for now: later")
    assert told.calls == [("stored", ([4], [4, 5, 6])), ("wrote", (3, 2.5)), ("retried", 1)]
    writers.close()


def test_a_batch_without_rows_is_settled_without_a_write() -> None:
    told = Told()
    writers = Writers(1, refusing(), POLICY, told.send, told)
    writers.gather(*part(0, 1, filtered=True))
    (answer,) = answered(writers)
    assert (answer[1:], told.calls) == ((None, None, None), [])
    writers.close()


def test_a_store_that_is_away_says_when_to_come_back() -> None:
    def write(_batch: Batch) -> Sequence[FailedRow]:
        raise Unavailable("away", retry_after_ms=7.0)

    told, (buffer, batch) = Told(), part(0, 1, 2)
    writers = Writers(1, Sink(write), POLICY, told.send, told)
    for attempt in range(1, 5):
        writers.gather(buffer, batch)
        (answer,) = answered(writers)
        assert answer == Attempt(buffer, "away", 7.0)
        assert batch.attempts == attempt
    assert batch.stopped_at is not None
    assert batch.stopped_at.record.offset == 1
    assert [call for call, _ in told.calls] == ["wrote", "retried"] * 3 + ["wrote"]
    writers.close()


def test_a_sink_that_takes_one_batch_gets_each_at_once_and_no_write_is_gathered_for_nothing() -> None:
    written: list[tuple[int, int | None, int | None]] = []

    def write(batch: Batch) -> Sequence[FailedRow]:
        written.append((batch.partition, batch.begin, batch.end))
        return ()

    told = Told()
    writers = Writers(1, Sink(write), POLICY, told.send, told)
    writers.start_gathered()
    for partition in range(2):
        writers.gather(*part(partition, 3, 4))
    writers.start_gathered()
    assert len(answered(writers, 2)) == 2
    assert written == [(0, 3, 5), (1, 3, 5)]
    assert list(writers.answers()) == []
    writers.close()


def test_what_waits_for_a_thread_is_dropped_by_the_end_and_what_has_begun_is_not() -> None:
    entered, go_on, written = threading.Event(), threading.Event(), list[int]()

    def write(batch: Batch) -> Sequence[FailedRow]:
        entered.set()
        assert go_on.wait(WAIT_S)
        written.append(batch.partition)
        return ()

    told = Told()
    writers = Writers(1, Sink(write), POLICY, told.send, told)
    for partition in range(3):
        writers.gather(*part(partition, 1))
    assert entered.wait(WAIT_S)
    writers.close()
    go_on.set()
    (answer,) = answered(writers)
    (thread,) = writers._threads
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert (written, answer.buffer.partition, list(writers.answers())) == ([0], ("t", 0), [])


@pytest.mark.parametrize(
    ("limits", "written"),
    [
        (BufferLimits(batch_records=4, batch_bytes=10_000), [[0, 1], [2]]),
        (BufferLimits(batch_records=3, batch_bytes=10_000), [[0], [1], [2]]),
        (BufferLimits(batch_records=100, batch_bytes=800), [[0, 1], [2]]),
        (BufferLimits(batch_records=100, batch_bytes=799), [[0], [1], [2]]),
    ],
)
def test_a_write_of_several_batches_is_no_larger_than_one_batch_may_be(
    limits: BufferLimits, written: list[list[int]]
) -> None:
    told, writes = Told(), list[list[int]]()

    class Bulk(Sink):
        def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
            writes.append([one.partition for one in batches])
            return [() for _ in batches]

    def write(batch: Batch) -> Sequence[FailedRow]:
        writes.append([batch.partition])
        return ()

    writers = Writers(1, Bulk(write), POLICY, told.send, told, limits)
    for partition in range(3):
        buffer, batch = part(partition, 1, 2)
        batch.size_bytes = 400
        writers.gather(buffer, batch)
    writers.start_gathered()
    answered(writers, 3)
    assert writes == written
    writers.close()


def test_dead_letters_are_told_after_they_are_sent_and_the_skipped_records_with_them() -> None:
    told, (buffer, batch) = Told(), part(0, 1, 2)
    policy = ErrorPolicy(Policy.NOOP, dead_letters=True)
    batch.skipped.append(FailedRecord(batch.records[1], "TASK_PUT", "type", ValueError("no")))
    writers = Writers(1, refusing(FailedRow(0, "type", ValueError("no"))), policy, told.send, told)
    writers.gather(buffer, batch)
    assert answered(writers) == [Attempt(buffer)]
    assert told.calls[2:] == [("send", [1]), ("failed", [1, 2])]
    assert (batch.dead_letters, batch.skipped) == ([], [])
    writers.close()


class DeadLetterTopic:
    """A dead-letter topic that may be away."""

    def __init__(self, *, is_away: bool = False) -> None:
        self.is_away = is_away
        self.sent: list[DeadLetterRecord] = []

    def send(self, records: Sequence[DeadLetterRecord]) -> None:
        if self.is_away:
            raise DeadLettersUnavailableError("away")
        self.sent += records


def sender(queue: DeadLetterTopic | None, told: list[int]) -> DeadLetterSender:
    config = SimpleNamespace(name="c", definition=SimpleNamespace(klass="a.Sink"))
    return DeadLetterSender(cast(Any, queue), cast(Any, config), 3, told.append)


def test_a_dead_letter_is_its_record_with_the_place_and_the_reason() -> None:
    queue, told = DeadLetterTopic(), list[int]()
    record = Record("t", 5, 7, 1_234, b"key", b"value", (("mine", b"1"),))
    sender(queue, told).send([FailedRecord(record, "TASK_PUT", "mapping", ValueError("never"))])
    (sent,) = queue.sent
    assert (sent.key, sent.value, sent.timestamp_ms, told) == (b"key", b"value", 1_234, [])
    headers = dict(sent.headers)
    assert headers["mine"] == b"1"
    names = ("stage", "connector.name", "class.name", "task.id", "topic", "partition", "offset", "exception.message")
    assert [headers[f"__connect.errors.{name}"] for name in names] == [
        *(b"TASK_PUT", b"c", b"a.Sink", b"3", b"t", b"5", b"7", b"never")
    ]


def test_dead_letters_that_are_not_acknowledged_are_counted_and_end_the_task() -> None:
    told = list[int]()
    failed = [FailedRecord(part(0, 1)[1].records[0], "TASK_PUT", "type", ValueError("no"))] * 2
    with pytest.raises(DeadLettersUnavailableError):
        sender(DeadLetterTopic(is_away=True), told).send(failed)
    assert told == [2]
    sender(None, told).send(failed)
    assert told == [2]


def test_rows_of_several_partitions_are_written_while_each_is_owned() -> None:
    owners = [Ownership() for _ in range(2)]
    both, alone = Ownerships(owners), Ownerships(owners[1:])
    assert [one.is_held for one in (both, alone)] == [True, True]
    owners[0].release()
    assert [one.is_held for one in (both, alone)] == [False, True]
    alone.release()
    assert [one.is_held for one in (both, alone, owners[1])] == [False, False, True]


def test_a_permanent_failure_holds_no_other_row_back() -> None:
    ids = [("x", "a"), ("x", "b"), ("y", "a"), ("x", "a")]
    rows = [Row(offset, target, id_, {}, 0, None, PLAN) for offset, (target, id_) in enumerate(ids)]
    batches = [Batch("t", 0, rows[:2]), Batch("u", 1, rows[2:])]
    seen: list[Batch] = []
    answer: list[FailedRow] = []

    def write(batch: Batch) -> Sequence[FailedRow]:
        seen.append(batch)
        return answer

    for transient, expected in ((False, [[0], []]), (True, [[0], [1]])):
        answer[:] = [FailedRow(0, "busy", ValueError(), transient)]
        assert [[one.index for one in of_batch] for of_batch in write_merged(write, batches)] == expected
    answer.clear()
    assert write_merged(write, batches) == [[], []]
    assert (seen[-1].topic, seen[-1].partition, seen[-1].begin, seen[-1].end) == ("", -1, None, None)
    assert write_merged(write, batches[:1]) == [[]]
    assert seen[-1] is batches[0], "with its offsets and its own ownership"
