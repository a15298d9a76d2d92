"""Which records a partition buffer accepts, and when they become a batch."""

from __future__ import annotations

import pytest

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import ProjectedRecord, Record, runs_of
from isotherm.persisters.api.row import Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits, Share
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.servicekit.backoff import Backoff

TOPIC = "t"
(STATEMENT,) = kcql.parse("INSERT INTO target SELECT * FROM t")
PLAN = compile_plan(STATEMENT, None, "-")
LIMITS = BufferLimits(batch_records=4, waiting_records=6, batch_bytes=1_000_000, waiting_bytes=10_000_000)


def record(offset: int) -> Record:
    return Record(TOPIC, 0, offset, 1_000, b"key", str(offset).encode(), ())


def test_records_of_partitions_that_are_gone_are_dropped() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    buffers.assign((TOPIC, 0), None, Counts())
    buffers.remove((TOPIC, 0))
    buffers.append(runs_of([record(0)]), 0.0)
    assert buffers.by_partition == {}


def test_batches_are_bounded_by_count_and_by_bytes_and_wait_for_linger() -> None:
    limits = BufferLimits(batch_records=3, batch_bytes=500, linger_ms=50.0)
    buffers = PartitionBuffers(limits, Backoff)
    buffers.assign((TOPIC, 0), None, Counts())
    buffer = buffers.by_partition[(TOPIC, 0)]
    buffers.append(runs_of([record(0)]), now_ms=10.0)
    assert not buffer.is_batch_due(limits, now_ms=59.0)
    assert buffer.is_batch_due(limits, now_ms=60.0)
    buffers.append(runs_of([record(1), record(2), record(3)]), now_ms=11.0)
    assert buffer.is_batch_due(limits, now_ms=11.0)
    assert [one.offset for one in buffers.next_batch(buffer)] == [0, 1]
    big = Record(TOPIC, 0, 9, 0, None, b"x" * 10_000, ())
    alone = PartitionBuffers(limits, Backoff)
    alone.assign((TOPIC, 0), None, Counts())
    alone.append(runs_of([big]), now_ms=0.0)
    assert alone.next_batch(alone.by_partition[(TOPIC, 0)]) == [big]


def test_a_partition_that_is_paused_does_not_wait_for_a_batch_to_fill() -> None:
    """Its share may be smaller than a batch, and no further record fits until that is written."""
    limits = BufferLimits(batch_records=100, linger_ms=60_000, waiting_records=100)
    buffers = PartitionBuffers(limits, Backoff)
    for partition in range(2):
        buffers.assign(("t", partition), None, Counts())
    for partition in range(2):
        buffers.append(runs_of([Record("t", partition, offset, 0, None, b"", ()) for offset in range(60)]), 0.0)
    paused = buffers.pause_full()
    assert len(paused) == 2
    assert all(buffer.is_batch_due(limits, 1.0) for buffer in paused)


def test_the_time_of_the_next_batch_is_that_of_its_linger_and_of_its_back_off() -> None:
    limits = BufferLimits(batch_records=3, linger_ms=50.0)
    buffers = PartitionBuffers(limits, Backoff)
    for partition in range(2):
        buffers.assign((TOPIC, partition), None, Counts())
    first, second = buffers.by_partition.values()
    assert buffers.next_start_ms() is None
    buffers.append(runs_of([record(0)]), now_ms=10.0)
    assert buffers.next_start_ms() == 60.0
    second.append(runs_of([Record(TOPIC, 1, offset, 0, None, b"", ()) for offset in range(3)])[0], 20.0)
    assert buffers.next_start_ms() == 20.0, "a full batch does not linger"
    second.back_off("the sink is away", 20.0, retry_after_ms=500.0)
    assert buffers.next_start_ms() == 60.0
    first.halted = True
    assert buffers.next_start_ms() == second.not_before_ms >= 520.0


def test_nothing_waits_for_a_time_behind_a_write_in_flight() -> None:
    """Whatever comes next for the partition begins with the answer."""
    buffers = PartitionBuffers(LIMITS, Backoff)
    buffers.assign((TOPIC, 0), None, Counts())
    buffer = buffers.by_partition[TOPIC, 0]
    buffers.append(runs_of([record(0), record(1)]), now_ms=0.0)
    batch = InFlightBatch.prepare([record(0)], ErrorPolicy(Policy.NOOP), lambda _: ProjectedRecord(filtered="no"))
    buffer.accept(batch, 0.0)
    assert buffers.next_start_ms() == 0.0
    buffer.start(0.0)
    assert buffers.next_start_ms() is None
    buffer.finish(None, 5.0)
    assert buffers.next_start_ms() == 0.0


def test_a_task_has_read_everything_at_the_ends_of_all_partitions_that_it_knows() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    for partition in range(2):
        buffers.assign((TOPIC, partition), 5, Counts())
    first, second = buffers.by_partition.values()
    first.high_watermark = 5
    assert not buffers.are_read(1_000.0), "the end of one partition is not known yet"
    second.high_watermark = 8
    assert not buffers.are_read(2.0)
    assert buffers.are_read(3.0), "so many may be markers of transactions"
    second.append(runs_of([Record(TOPIC, 1, offset, 0, None, b"", ()) for offset in (5, 6)])[0], 0.0)
    assert buffers.are_read(1.0)
    second.end_of_partition = 8
    assert buffers.are_read(0.0), "the client has reported the end, behind which there is only a marker"


def test_a_paused_partition_has_more_to_read_but_a_read_brings_none_of_it() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    for partition in range(2):
        buffers.assign((TOPIC, partition), 0, Counts())
    full, other = buffers.by_partition.values()
    buffers.append(runs_of([record(offset) for offset in range(6)]), 0.0)
    full.high_watermark, other.high_watermark = 100, 0
    assert not buffers.are_open_read(0.0)
    assert buffers.pause_full() == [full]
    assert buffers.are_open_read(0.0), "only the partition that is full has more"
    assert not buffers.are_read(0.0)
    other.high_watermark = 1
    assert not buffers.are_open_read(0.0)
    other.high_watermark = None
    assert not buffers.are_open_read(1_000.0), "its end is not known yet"


SHARED = BufferLimits(
    batch_records=10,
    batch_bytes=100,
    waiting_records=80,
    waiting_bytes=800,
    writing_records=80,
    writing_bytes=1_600,
)


@pytest.mark.parametrize(
    ("buffers", "waiting", "share"),
    [
        (0, Share(0, 0), Share(40, 400)),
        (2, Share(80, 800), Share(20, 200)),
        (4, Share(80, 800), Share(10, 100)),
        (8, Share(80, 800), Share(10, 100)),
        (16, Share(39, 399), Share(10, 100)),
        (16, Share(40, 0), Share(1, 12)),
        (16, Share(0, 400), Share(1, 12)),
        (200, Share(80, 800), Share(1, 1)),
    ],
)
def test_a_buffer_may_hold_half_of_its_part_or_a_batch_while_half_of_the_total_is_free(
    buffers: int, waiting: Share, share: Share
) -> None:
    assert SHARED.share_of_each(buffers, waiting) == share


@pytest.mark.parametrize(
    ("buffers", "share", "common"),
    [
        (2, Share(20, 200), Share(40, 400)),
        (5, Share(10, 100), Share(30, 300)),
        (8, Share(10, 100), Share(0, 0)),
        (16, Share(10, 100), Share(0, 0)),
        (1, Share(9, 100), Share(0, 0)),
        (1, Share(10, 99), Share(0, 0)),
    ],
)
def test_what_shares_of_whole_batches_leave_of_the_total_is_common(buffers: int, share: Share, common: Share) -> None:
    assert SHARED.common(buffers, share) == common


def test_one_buffer_takes_the_common_rest_and_the_others_have_their_shares() -> None:
    limits = BufferLimits(batch_records=10, waiting_records=80)
    buffers = PartitionBuffers(limits, Backoff)
    for partition in range(4):
        buffers.assign(("t", partition), None, Counts())
    offsets = dict.fromkeys(range(4), 0)

    def read(partition: int, records: int) -> list[int]:
        """Deliver so many records; return the partitions that are paused then."""
        begin = offsets[partition]
        offsets[partition] += records
        made = [Record("t", partition, offset, 0, None, b"", ()) for offset in range(begin, offsets[partition])]
        buffers.append(runs_of(made), 0.0)
        return [buffer.partition[1] for buffer in buffers.pause_full()]

    assert read(0, 49) == []
    assert read(1, 9) == []
    assert read(0, 1) == [0], "its share of 10, and 40 that all have in common"
    assert read(1, 1) == [1]
    assert read(2, 10) == [2]
    assert read(3, 9) == []


@pytest.mark.parametrize(("records", "size_bytes", "share"), [(79, 800, Share(2, 25)), (80, 799, Share(2, 24))])
def test_a_part_is_ample_if_it_holds_a_batch_in_records_and_in_bytes(
    records: int, size_bytes: int, share: Share
) -> None:
    limits = BufferLimits(batch_records=10, batch_bytes=100, waiting_records=records, waiting_bytes=size_bytes)
    assert limits.share_of_each(8, Share(records, size_bytes)) == share


@pytest.mark.parametrize(
    ("buffers", "writing", "batch"),
    [
        (4, Share(80, 1_600), Share(10, 100)),
        (5, Share(30, 1_600), Share(10, 100)),
        (5, Share(31, 1_600), Share(4, 100)),
        (9, Share(31, 700), Share(2, 100)),
        (9, Share(31, 701), Share(2, 44)),
        (100, Share(80, 1_600), Share(1, 4)),
    ],
)
def test_a_batch_is_whole_while_half_of_what_is_written_at_once_is_free(
    buffers: int, writing: Share, batch: Share
) -> None:
    assert SHARED.next_batch(buffers, writing) == batch


def positions(**given: int | None) -> PartitionBuffer:
    return PartitionBuffer((TOPIC, 0), Counts(), Backoff(base_ms=0.0, floor_ms=0.0), **given)  # type: ignore[arg-type]


def prepared(buffer: PartitionBuffer, most: int) -> InFlightBatch:
    """The next batch of at most so many records, in the buffer; its records are filtered."""
    records = buffer.next_batch(Share(most, 10**9))
    batch = InFlightBatch.prepare(records, ErrorPolicy(Policy.NOOP), lambda _: ProjectedRecord(filtered="no"))
    buffer.accept(batch, 0.0)
    return batch


@pytest.mark.parametrize(
    ("position", "committed", "end", "high", "lag"),
    [
        (None, None, None, None, 0),
        (None, None, None, 9, 9),
        (None, 4, None, 9, 5),
        (6, 4, None, 9, 3),
        (6, 4, 9, 9, 0),
        (6, 4, 8, 9, 3),
        (0, 4, None, 9, 9),
        (12, 4, None, 9, 0),
    ],
)
def test_the_lag_counts_from_the_position_or_from_what_was_committed(
    position: int | None, committed: int | None, end: int | None, high: int | None, lag: int
) -> None:
    buffer = positions(position=position, committed=committed, end_of_partition=end, high_watermark=high)
    assert buffer.lag == lag
    assert buffer.settled_to == (committed if position is None else position)
    assert buffer.next_offset == (committed if position is None else position)


def test_what_waits_or_is_written_lags_also_at_the_partitions_end() -> None:
    buffer = positions(committed=4, end_of_partition=6, high_watermark=6)
    buffer.append(runs_of([record(4), record(5)])[0], 0.0)
    assert (buffer.lag, buffer.is_settled, buffer.unread) == (2, False, 0)
    prepared(buffer, 2)
    assert (buffer.lag, buffer.is_settled) == (2, False)
    buffer.start(0.0)
    assert (buffer.lag, buffer.is_settled) == (2, False)
    buffer.finish(None, 0.0)
    assert (buffer.lag, buffer.is_settled, buffer.position) == (0, True, 6)


def test_without_a_committed_offset_the_first_record_that_is_held_is_the_position() -> None:
    buffer = positions()
    assert (buffer.settled_to, buffer.next_offset, buffer.unread) == (None, None, None)
    buffer.high_watermark = 20
    assert buffer.unread == 0, "the client has chosen no position yet"
    buffer.append(runs_of([record(offset) for offset in range(7, 12)])[0], 0.0)
    assert (buffer.settled_to, buffer.next_offset, buffer.unread) == (7, 12, 8)
    first = prepared(buffer, 2)
    assert (buffer.settled_to, buffer.next_offset) == (7, 12)
    assert buffer.start(0.0) is first
    prepared(buffer, 3)
    assert (buffer.settled_to, buffer.next_offset, buffer.unread) == (7, 12, 8)
    sizes = sum(record(offset).size_bytes for offset in range(7, 12))
    assert (buffer.writing_records, buffer.writing_bytes, buffer.waiting_bytes) == (5, sizes, 0)


def test_a_batch_that_failed_waits_for_its_back_off_with_the_reason() -> None:
    buffer = positions(committed=0)
    buffer.append(runs_of([record(0), record(1)])[0], 5.0)
    batch = prepared(buffer, 1)
    batch.rows = [Row(0, "target", "0", {}, 0, None, PLAN)]
    assert buffer.start(5.0) is batch
    assert buffer.start(5.0) is None, "one batch at a time"
    assert buffer.finish("away", 5.0, retry_after_ms=30.0) is None
    assert (buffer.retry_reason, buffer.not_before_ms, buffer.retrying) == ("away", 35.0, batch)
    prepared(buffer, 1)
    assert buffer.start(34.9) is None
    assert buffer.start(35.0) is batch, "before the prepared one"
    assert buffer.finish(None, 35.0) is None
    assert (buffer.retry_reason, buffer.not_before_ms) == ("rows failed for now", 35.0)
    batch.rows = []
    assert buffer.start(36.0) is batch
    assert buffer.backoff.failures == 2
    settled = buffer.finish(None, 36.0)
    assert settled is not None
    assert (settled.read, buffer.position, buffer.retry_reason, buffer.backoff.failures) == (1, 1, None, 0)
    with pytest.raises(ValueError, match="nothing is in flight"):
        buffer.finish(None, 37.0)


def test_only_moved_positions_are_committed_and_one_that_is_known_confirms_the_lease() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    assert (buffers.known(), buffers.uncommitted(), buffers.in_flight) == ([], [], 0)
    assert (buffers.are_all_paused, buffers.hold_enough) == (False, False)
    for partition, committed in enumerate((None, 5, 5)):
        buffers.assign((TOPIC, partition), committed, Counts(), now_ms=7.0)
    _, still, moved = buffers.by_partition.values()
    assert still.read_ms == 7.0
    still.position, moved.position = 5, 6
    assert (buffers.known(), buffers.uncommitted()) == ([still], [moved])
    assert buffers.max_records_per_read == 4
    moved.append(runs_of([Record(TOPIC, 2, 6, 0, None, b"", ())])[0], 8.0)
    prepared(moved, 1)
    moved.start(8.0)
    assert (buffers.in_flight, moved.read_ms) == (1, 8.0)
    assert buffers.remove((TOPIC, 2)) is moved
    assert not moved.ownership.is_held
    assert buffers.remove((TOPIC, 2)) is None
