"""A queued write does not begin after the partition was revoked, nor when the coordinator was silent for long."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.ownership import Lease, Ownership, OwnershipLostError
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.persisters.task.writers import Writers
from isotherm.servicekit.backoff import Backoff

(STATEMENT,) = kcql.parse("INSERT INTO target SELECT * FROM t PK k")
PLAN = compile_plan(STATEMENT, None, "-")
WAIT_S = 60.0
NOOP = ErrorPolicy(Policy.NOOP, dead_letters=True)


class Held:
    """A sink whose first write waits until the test releases it, and that refuses the row at offset 1."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.written: list[int] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        self.entered.set()
        assert self.go_on.wait(WAIT_S)
        self.written.append(batch.partition)
        at = [index for index, row in enumerate(batch.rows) if row.offset == 1]
        return [FailedRow(index, "mapping", ValueError("never")) for index in at]


class Told:
    def __init__(self) -> None:
        self.dead_letters: list[tuple[int, int]] = []

    def send(self, records: Sequence[FailedRecord]) -> None:
        self.dead_letters += [(one.record.partition, one.record.offset) for one in records]

    def wrote(self, rows: int, seconds: float) -> None: ...
    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None: ...

    def retried(self, rows: int) -> None: ...

    def failed(self, records: Sequence[FailedRecord]) -> None: ...


def batch_of(partition: int) -> InFlightBatch:
    records = [Record("t", partition, offset, 0, None, b"", ()) for offset in range(2)]
    rows = [Row(one.offset, "target", str(one.offset), {}, 0, None, PLAN) for one in records]
    return InFlightBatch.prepare(records, NOOP, lambda one: ProjectedRecord([rows[one.offset]]))


def test_a_queued_write_and_the_dead_letters_of_one_under_way_are_not_begun_for_a_partition_that_is_gone() -> None:
    """With one thread the second buffer's write waits behind the first one's."""
    sink, told, buffers = Held(), Told(), PartitionBuffers(BufferLimits(), Backoff)
    writers = Writers(1, sink, NOOP, told.send, told)
    batches = {}
    for partition in range(3):
        buffers.assign(("t", partition), None, Counts())
        batches[partition] = batch_of(partition)
        writers.gather(buffers.by_partition["t", partition], batches[partition])
    assert sink.entered.wait(WAIT_S)
    buffers.remove(("t", 0))
    buffers.remove(("t", 1))
    sink.go_on.set()
    answers: list[tuple[int, BaseException | None]] = []
    while len(answers) < 3:
        answers += [(answer.buffer.partition[1], answer.fatal) for answer in writers.answers(WAIT_S)]
    writers.close()
    assert sink.written == [0, 2], "the write that waited was not begun"
    assert told.dead_letters == [(2, 1)], "the next owner writes the others"
    assert answers == [(0, None), (1, None), (2, None)]
    assert [one.offset for one in batches[1].rows] == [0, 1]


def test_a_write_that_was_not_begun_counts_no_attempt_and_waits_where_the_partition_stays() -> None:
    now_s = [0.0]
    buffers = PartitionBuffers(BufferLimits(), Backoff, Lease(10_000, lambda: now_s[0]))
    buffers.assign(("t", 0), None, Counts())
    buffer = buffers.by_partition["t", 0]
    sink, told = Held(), Told()
    sink.go_on.set()
    writers = Writers(1, sink, NOOP, told.send, told)
    buffer.prepared = batch_of(0)
    begun = buffer.start(0.0)
    assert begun is not None
    now_s[0] = 60.0
    writers.gather(buffer, begun)
    (answer,) = writers.answers(WAIT_S)
    writers.close()
    assert buffer.finish(answer.retry_reason, 0.0) is None
    assert (sink.written, begun.attempts, buffer.retrying) == ([], 0, begun)


def test_a_task_writes_only_while_the_coordinators_last_word_is_recent() -> None:
    now_s = [0.0]
    lease = Lease(10_000, lambda: now_s[0])
    ownership = Ownership(lease)

    def is_held() -> bool:
        return ownership.is_held

    assert not is_held(), "nothing is owned before the first commit was accepted"
    for now_s[0] in (1.0, 5.0):
        lease.confirm(lease.asked())
        assert is_held()
    for now_s[0], is_due, held in ((8.0, False, True), (8.1, True, True), (11.0, True, True), (11.1, True, False)):
        assert (lease.is_due, is_held()) == (is_due, held)
    lease.confirm(4.0)
    assert not is_held(), "a commit counts from when it was sent, and an older one not at all"
    now_s[0] = 60.0
    lease.confirm(lease.asked())
    assert is_held()
    ownership.release()
    with pytest.raises(OwnershipLostError):
        ownership.check()
