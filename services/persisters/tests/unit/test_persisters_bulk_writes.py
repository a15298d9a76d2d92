"""Batches across partitions: which buffers are due together, and how a sink gets several batches in one write."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from isotherm import kcql
from isotherm.connector.config.files import from_mapping
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.ownership import Ownership, OwnershipLostError
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record, runs_of
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import Unavailable
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.persisters.configuration import check
from isotherm.persisters.service import buffer_limits
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.merged_batches import write_merged
from isotherm.persisters.task.writers import Attempt, Writers
from isotherm.servicekit.backoff import Backoff

(STATEMENT,) = kcql.parse("INSERT INTO target SELECT * FROM t")
PLAN = compile_plan(STATEMENT, None, "-")
RETRY = ErrorPolicy(Policy.RETRY, max_retries=3, dead_letters=True)
LIMITS = BufferLimits(batch_records=10, batch_bytes=100_000, linger_ms=1_000.0)
WAIT_S = 60.0


class Bulks:
    """A sink that takes several batches at once; of each it refuses offset 1 if it is told to."""

    def __init__(self, *, refuses: bool = False, away: int = 0) -> None:
        self.refuses, self.away = refuses, away
        self.writes: list[list[int]] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return self.write_bulk([batch])[0]

    def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
        self.writes.append([batch.partition for batch in batches])
        if self.away:
            self.away -= 1
            raise Unavailable("away", retry_after_ms=7.0)
        return [
            [FailedRow(index, "type", ValueError("no")) for index, row in enumerate(one.rows) if row.offset == 1]
            if self.refuses
            else []
            for one in batches
        ]


class Told:
    def __init__(self) -> None:
        self.dead_letters: list[tuple[int, int]] = []
        self.rows: list[int] = []
        self.away = False

    def send(self, records: Sequence[FailedRecord]) -> None:
        if self.away and records[0].record.partition == 0:
            raise RuntimeError("dead letters are away")
        self.dead_letters += [(one.record.partition, one.record.offset) for one in records]

    def wrote(self, rows: int, seconds: float) -> None:
        self.rows.append(rows)

    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None: ...

    def retried(self, rows: int) -> None: ...

    def failed(self, records: Sequence[FailedRecord]) -> None: ...


def records(partition: int, count: int) -> list[Record]:
    return [Record("t", partition, offset, 0, None, b"value", ()) for offset in range(count)]


def buffers_of(*waiting: int, limits: BufferLimits = LIMITS, are_merged: bool = True) -> PartitionBuffers:
    """Buffers of as many partitions, each with so many records that wait since time 0."""
    buffers = PartitionBuffers(limits, Backoff, are_merged=are_merged)
    for partition, count in enumerate(waiting):
        buffers.assign(("t", partition), None, Counts())
        buffers.append(runs_of(records(partition, count)), 0.0)
    return buffers


def due(buffers: PartitionBuffers, now_ms: float) -> list[int]:
    return sorted(buffer.partition[1] for buffer in buffers.due(now_ms))


@pytest.mark.parametrize(
    ("waiting", "now_ms", "expected"),
    [
        pytest.param((3, 3, 3), 999.0, [], id="too few, too early"),
        pytest.param((3, 3, 4), 0.0, [0, 1, 2], id="a batch of all"),
        pytest.param((10, 3, 0), 0.0, [0], id="one of its own does not take the thin ones along"),
        pytest.param((1, 1, 0), 1_000.0, [0, 1], id="waited long enough"),
    ],
)
def test_thin_partitions_are_due_together(waiting: Sequence[int], now_ms: float, expected: list[int]) -> None:
    assert due(buffers_of(*waiting), now_ms) == expected


def test_partitions_whose_parts_are_written_one_by_one_wait_each_for_its_own() -> None:
    """An archive would write a small file of each part."""
    buffers = buffers_of(3, 3, 10, are_merged=False)
    assert due(buffers, 0.0) == [2]
    buffers.append(runs_of(records(1, 1)), 500.0)
    assert due(buffers, 999.0) == [2]
    assert due(buffers, 1_000.0) == [0, 1, 2]


def test_bytes_of_all_partitions_make_a_batch_too() -> None:
    limits = BufferLimits(batch_records=1_000, batch_bytes=1_000, linger_ms=1_000.0)
    assert due(buffers_of(2, 2, limits=limits), 0.0) == []
    assert due(buffers_of(2, 3, limits=limits), 0.0) == [0, 1]


def test_the_first_that_waited_long_enough_takes_the_others_along() -> None:
    buffers = buffers_of(1, 0)
    buffers.append(runs_of(records(1, 1)), 900.0)
    assert due(buffers, 999.0) == []
    assert due(buffers, 1_000.0) == [0, 1]


def test_what_cannot_be_prepared_is_neither_due_nor_counted() -> None:
    buffers = buffers_of(6, 4)
    buffers.by_partition["t", 0].back_off("no registry", 0.0)
    assert due(buffers, 0.0) == []


def test_large_batches_have_room_whatever_the_limits_of_the_process_say() -> None:
    """A partition that is paused before a batch is full would make a small one."""
    limits = BufferLimits(
        batch_records=100, linger_ms=1_000.0, waiting_records=50, waiting_bytes=10
    ).with_large_batches()
    buffers = buffers_of(30, 30, 30, limits=limits)
    assert buffers.pause_full() == []
    assert due(buffers, 0.0) == []
    buffers.append(runs_of(records(0, 10)), 0.0)
    assert due(buffers, 0.0) == [0, 1, 2]
    assert [len(buffers.next_batch(buffer)) for buffer in buffers.by_partition.values()] == [40, 30, 30]


def prepared(taken: Sequence[Record]) -> InFlightBatch:
    """A batch with a row for each record."""
    rows = [Row(one.offset, "target", str(one.offset), {}, 0, None, PLAN) for one in taken]
    return InFlightBatch.prepare(taken, RETRY, lambda _: ProjectedRecord(), lambda _: rows)


def written(
    sink: Bulks, told: Told, *counts: int, limits: BufferLimits = LIMITS
) -> tuple[PartitionBuffers, list[Attempt]]:
    """One turn of a task: a batch of each partition, and the answers."""
    buffers = buffers_of(*counts, limits=limits)
    writers = Writers(1, sink, RETRY, told.send, told, limits)
    for buffer in buffers.by_partition.values():
        taken = buffers.next_batch(buffer)
        buffer.accept(prepared(taken), 0.0)
        batch = buffer.start(0.0)
        assert batch is not None
        writers.gather(buffer, batch)
    writers.start_gathered()
    answers: list[Attempt] = []
    while len(answers) < len(counts):
        answers += writers.answers(WAIT_S)
    writers.close()
    return buffers, answers


def test_a_sink_gets_the_batches_of_several_partitions_in_one_write_up_to_the_limits() -> None:
    sink, told = Bulks(), Told()
    _, answers = written(sink, told, 4, 4, 4, 1)
    assert sink.writes == [[0, 1], [2, 3]]
    assert told.rows == [8, 5]
    assert [answer.retry_reason for answer in answers] == [None] * 4
    sink = Bulks()
    written(sink, told, 1, 1, 1, limits=BufferLimits(batch_records=10, batch_bytes=500))
    assert sink.writes == [[0, 1], [2]], "a record counts as at least 200 bytes"


def test_each_partition_of_a_write_has_its_own_bad_rows() -> None:
    sink, told = Bulks(refuses=True), Told()
    buffers, answers = written(sink, told, 2, 1, 3)
    assert sink.writes == [[0, 1, 2]]
    assert told.dead_letters == [(0, 1), (2, 1)]
    assert [answer.fatal for answer in answers] == [None] * 3
    settled = [buffer.finish(None, 0.0) for buffer in buffers.by_partition.values()]
    assert [(one.written, one.dead_lettered.total()) for one in settled if one] == [(1, 1), (1, 0), (2, 1)]


def test_a_store_that_is_away_costs_each_partition_of_a_write_an_attempt_and_no_row() -> None:
    buffers, answers = written(Bulks(away=1), Told(), 2, 1)
    assert [(answer.retry_reason, answer.retry_after_ms) for answer in answers] == [("away", 7.0)] * 2
    batches = [buffer.in_flight for buffer in buffers.by_partition.values()]
    assert [(one.attempts, len(one.rows)) for one in batches if one] == [(1, 2), (1, 1)]


def test_dead_letters_that_cannot_be_sent_for_one_partition_do_not_unsettle_the_others() -> None:
    told = Told()
    told.away = True
    _, answers = written(Bulks(refuses=True), told, 2, 2)
    assert [str(answer.fatal) for answer in answers] == ["dead letters are away", "None"]
    assert told.dead_letters == [(1, 1)]


def test_a_partition_that_is_gone_is_left_out_of_a_write() -> None:
    sink, told = Bulks(), Told()
    buffers = buffers_of(1, 1)
    writers = Writers(1, sink, RETRY, told.send, told, LIMITS)
    for buffer in buffers.by_partition.values():
        taken = buffers.next_batch(buffer)
        writers.gather(buffer, prepared(taken))
    buffers.remove(("t", 0))
    writers.start_gathered()
    answers: list[Attempt] = []
    while len(answers) < 2:
        answers += writers.answers(WAIT_S)
    writers.close()
    assert sink.writes == [[1]]
    assert [(answer.buffer.partition[1], answer.retry_reason is None) for answer in answers] == [(0, False), (1, True)]


def test_a_batch_says_from_where_to_where_it_settles_offsets() -> None:
    """A sink that remembers offsets counts what was filtered, and what is no record, as settled too."""
    seen: list[tuple[int | None, int | None]] = []

    class Asking(Bulks):
        def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
            seen.extend((batch.begin, batch.end) for batch in batches)
            return super().write_bulk(batches)

    buffers = PartitionBuffers(LIMITS, Backoff)
    buffers.assign(("t", 0), 5, Counts())
    buffer = buffers.by_partition["t", 0]
    writers = Writers(1, Asking(), RETRY, Told().send, Told(), LIMITS)
    for offsets in ((8, 9), (12,)):
        buffers.append(runs_of([Record("t", 0, offset, 0, None, b"", ()) for offset in offsets]), 0.0)
        buffer.accept(prepared(buffers.next_batch(buffer)), 0.0)
        batch = buffer.start(0.0)
        assert batch is not None
        writers.gather(buffer, batch)
        writers.start_gathered()
        (answer,) = writers.answers(WAIT_S)
        buffer.finish(answer.retry_reason, 0.0)
    writers.close()
    assert seen == [(5, 10), (10, 13)]


def test_batches_that_are_written_as_one_keep_their_bad_rows_apart() -> None:
    owners = [Ownership() for _ in range(3)]
    seen: list[Batch] = []

    def write(batch: Batch) -> Sequence[FailedRow]:
        seen.append(batch)
        batch.ownership.check()
        bad = [index for index, row in enumerate(batch.rows) if row.offset == 1]
        return [FailedRow(index, "type", ValueError(), transient=index > 1) for index in reversed(bad)]

    rows = [Row(offset, "target", "", {}, 0, None, PLAN) for offset in range(2)]
    batches = [Batch("t", number, rows[:count], owners[number]) for number, count in enumerate((2, 1, 2))]
    failed = write_merged(write, batches)
    assert [[(one.index, one.transient) for one in of_batch] for of_batch in failed] == [[(1, False)], [], [(1, True)]]
    assert [row.offset for row in seen[0].rows] == [0, 1, 0, 0, 1]
    owners[1].release()
    with pytest.raises(OwnershipLostError):
        write_merged(write, batches)
    assert write_merged(write, batches[:1])[0][0].index == 1, "another partition's loss is nothing to it"


def test_a_row_behind_an_unwritten_one_of_its_id_waits_also_in_another_partition() -> None:
    ids = ["a", "b", "a", "b", "a"]
    rows = [Row(offset, "target", id_, {}, 0, None, PLAN) for offset, id_ in enumerate(ids)]
    batches = [Batch("t", 0, rows[:3], Ownership()), Batch("u", 0, rows[3:], Ownership())]
    refused = {0: FailedRow(0, "overloaded", ValueError(), transient=True), 1: FailedRow(1, "type", ValueError())}
    failed = write_merged(lambda _: list(refused.values()), batches)
    assert [[(one.index, one.reason, one.transient) for one in of_batch] for of_batch in failed] == [
        [(0, "overloaded", True), (1, "type", False), (2, "overloaded", True)],
        [(1, "overloaded", True)],
    ]


@pytest.mark.parametrize(
    ("sink", "own", "expected"),
    [
        ("parquet", {"url": "file:///srv"}, (50_000, 200_000, 64 * 1024 * 1024, 400_000, 60_000)),
        ("postgresql", {"database": "d"}, (2_000, 20_000, 32 * 1024 * 1024, 32_000, 0)),
    ],
)
def test_a_task_of_an_archive_has_room_for_its_batches(
    sink: str, own: dict[str, str], expected: tuple[int, ...]
) -> None:
    kind = installed_sinks()[sink]
    keys = {f"{kind.prefix}.{key}": value for key, value in own.items()}
    given = {
        "name": "n",
        "connector.class": sink,
        "topics": "t",
        f"{kind.prefix}.kcql": "INSERT INTO a SELECT * FROM t",
    }
    limits = buffer_limits(kind, check(kind, from_mapping({**given, **keys})), PersistersSettings())
    assert expected == (
        limits.batch_records,
        limits.waiting_records,
        limits.waiting_bytes,
        limits.writing_records,
        limits.linger_ms,
    )
