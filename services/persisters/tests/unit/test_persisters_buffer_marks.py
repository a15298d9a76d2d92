"""Marks of partition buffers, the time of what stays behind a batch, and offsets that are gone between records."""

from __future__ import annotations

import pytest

from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.record import ProjectedRecord, Record, runs_of
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits, Share
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.servicekit.backoff import Backoff

LIMITS = BufferLimits(batch_records=4, linger_ms=50.0, waiting_records=8)
SIZE = 200
"""Of a record without key and value, in bytes."""


def record(offset: int, partition: int = 0) -> Record:
    return Record("t", partition, offset, 0, None, b"", ())


def buffer_of(*offsets: int, committed: int | None = None) -> PartitionBuffer:
    buffer = PartitionBuffer(("t", 0), Counts(), Backoff(), committed=committed)
    if offsets:
        buffer.append(runs_of([record(offset) for offset in offsets])[0], 0.0)
    return buffer


def prepare(buffer: PartitionBuffer, most: int, now_ms: float = 0.0) -> InFlightBatch:
    taken = buffer.next_batch(Share(most, 10**9))
    batch = InFlightBatch.prepare(taken, ErrorPolicy(Policy.NOOP), lambda _: ProjectedRecord(filtered="no"))
    buffer.accept(batch, now_ms)
    return batch


def settle(buffer: PartitionBuffer, most: int = 1_000) -> None:
    prepare(buffer, most)
    buffer.start(0.0)
    buffer.finish(None, 0.0)


@pytest.mark.parametrize(
    ("share", "is_high", "is_low"),
    [
        (Share(4, 4 * SIZE), True, False),
        (Share(5, 5 * SIZE), False, False),
        (Share(4, 100 * SIZE), True, False),
        (Share(100, 4 * SIZE), True, False),
        (Share(8, 8 * SIZE), False, True),
        (Share(7, 8 * SIZE), False, False),
        (Share(8, 8 * SIZE - 1), False, False),
    ],
)
def test_a_buffer_is_paused_at_its_share_and_resumed_at_half_of_it(share: Share, is_high: bool, is_low: bool) -> None:
    buffer = buffer_of(0, 1, 2, 3)
    assert (buffer.is_full(share, Share(0, 0)), buffer.is_at_low_mark(share)) == (is_high, is_low)


def test_a_full_buffer_may_hold_more_while_something_is_left_of_what_all_have_in_common() -> None:
    buffer = buffer_of(0, 1, 2, 3)
    by_records, by_size = Share(4, 100 * SIZE), Share(100, 4 * SIZE)
    assert [buffer.is_full(by_records, left) for left in (Share(1, 0), Share(0, 1))] == [False, True]
    assert [buffer.is_full(by_size, left) for left in (Share(1, 0), Share(0, 1))] == [True, False]


def test_all_buffers_are_full_only_if_each_is() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    for partition in range(2):
        buffers.assign(("t", partition), None, Counts())
    first, second = buffers.by_partition.values()
    assert first.read_ms == 0.0
    buffers.append(runs_of([record(offset) for offset in range(7)]), 0.0)
    assert buffers.pause_full() == [first]
    assert buffers.pause_full() == [], "it is paused already"
    assert (buffers.hold_enough, buffers.are_all_paused) == (False, False)
    buffers.append(runs_of([record(offset, 1) for offset in range(7)]), 0.0)
    assert buffers.pause_full() == [second]
    assert (buffers.hold_enough, buffers.are_all_paused) == (True, True)
    assert buffers.resume_drained() == []


def test_a_partition_is_at_its_end_until_more_is_delivered() -> None:
    buffer = buffer_of()
    seen = [buffer.is_at_end]
    buffer.end_of_partition = 7
    seen.append(buffer.is_at_end)
    buffer.append(runs_of([record(offset) for offset in range(7)])[0], 0.0)
    seen.append(buffer.is_at_end)
    buffer.append(runs_of([record(7)])[0], 0.0)
    seen.append(buffer.is_at_end)
    buffer.end_of_partition = 9  # a marker of a transaction is the last offset
    seen.append(buffer.is_at_end)
    settle(buffer)
    assert [*seen, buffer.is_at_end] == [False, True, True, False, True, True]


def test_the_end_of_a_deleted_topic_is_not_that_of_the_next_one() -> None:
    buffer = buffer_of(committed=7)
    buffer.end_of_partition = 7
    buffer.skip_gap(0, 0)
    assert not buffer.is_at_end


def test_a_paused_buffer_holds_enough_by_what_it_holds() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    buffers.assign(("t", 0), None, Counts())
    (buffer,) = buffers.by_partition.values()
    buffers.append(runs_of([record(offset) for offset in range(8)]), 0.0)
    assert buffers.pause_full() == [buffer]
    assert (buffers.hold_enough, buffers.unread_hold_enough) == (True, False), "a paused one delivers nothing"
    settle(buffer, 4)
    assert buffers.hold_enough
    settle(buffer, 1)
    assert not buffers.hold_enough


@pytest.mark.parametrize("partitions", range(1, 25))
@pytest.mark.parametrize("are_at_end", [False, True])
def test_empty_buffers_are_read_however_many_there_are(partitions: int, are_at_end: bool) -> None:
    for limits in (BufferLimits(), BufferLimits().with_writers(8), BufferLimits(50_000).with_large_batches()):
        buffers = PartitionBuffers(limits, Backoff)
        for partition in range(partitions):
            buffers.assign(("t", partition), None, Counts())
            buffers.by_partition["t", partition].end_of_partition = 0 if are_at_end else None
        reasons = (buffers.are_about_to_be_paused, buffers.unread_hold_enough, buffers.hold_enough)
        assert reasons == (False, False, False)


def test_only_partitions_with_more_records_need_room() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    for partition in range(2):
        buffers.assign(("t", partition), None, Counts())
    first, second = buffers.by_partition.values()
    first.end_of_partition = 0
    buffers.append(runs_of([record(offset, 1) for offset in range(2)]), 0.0)
    assert not buffers.unread_hold_enough
    buffers.append(runs_of([record(offset, 1) for offset in range(2, 5)]), 0.0)
    assert (buffers.unread_hold_enough, buffers.hold_enough) == (True, False)
    buffers.append(runs_of([record(0)]), 0.0)
    assert not buffers.unread_hold_enough
    first.end_of_partition, second.end_of_partition = 1, 5
    assert not buffers.unread_hold_enough, "nothing more is known of"


def test_a_partition_that_is_assigned_again_begins_anew() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    buffers.assign(("t", 0), None, Counts())
    buffers.append(runs_of([record(0)]), 0.0)
    before = buffers.by_partition["t", 0]
    buffers.assign(("t", 0), 5, Counts(read=5))
    after = buffers.by_partition["t", 0]
    assert not before.ownership.is_held, "nothing that waits of the former assignment is begun"
    assert (after.ownership.is_held, len(after.waiting), after.committed, after.counts.read) == (True, 0, 5, 5)


def test_what_stays_behind_a_batch_waits_from_then_on_for_more() -> None:
    buffer = buffer_of(*range(5))
    prepare(buffer, 4, now_ms=10.0)
    buffer.prepared = None
    assert not buffer.is_batch_due(LIMITS, 59.0)
    assert buffer.is_batch_due(LIMITS, 60.0)
    buffer.append(runs_of([record(5)])[0], 70.0)
    assert buffer.is_batch_due(LIMITS, 70.0), "the first one of them has waited"


def test_limits_have_room_for_two_batches_of_each_writer_and_eight_large_ones() -> None:
    limits = BufferLimits(batch_records=10, batch_bytes=100, waiting_records=15, waiting_bytes=500)
    of_writers = limits.with_writers(3)
    assert (of_writers.writing_records, of_writers.writing_bytes) == (60, 600)
    assert (of_writers.waiting_records, of_writers.waiting_bytes) == (30, 500)
    large = limits.with_large_batches()
    assert (large.waiting_records, large.waiting_bytes) == (40, 500)
    assert (large.writing_records, large.writing_bytes) == (80, 400)
    assert BufferLimits(batch_bytes=100, waiting_bytes=150).with_large_batches().waiting_bytes == 200


def test_a_batch_tells_the_sink_what_is_settled_before_it() -> None:
    buffer = buffer_of(7, 8)
    assert buffer.settled_before(prepare(buffer, 1)) == 7, "nothing is known of what is before the first record"
    buffer.start(0.0)
    buffer.finish(None, 0.0)
    second = prepare(buffer, 1)
    assert buffer.settled_before(second) == 8
    buffer.position = 5
    assert buffer.settled_before(second) == 5, "the offsets between are markers of transactions, or gone"
    resumed = buffer_of(7, committed=4)
    assert resumed.settled_before(prepare(resumed, 1)) == 4
    resumed.position = 9
    assert resumed.settled_before(resumed.prepared or prepare(resumed, 1)) == 7


def test_a_gap_is_counted_once_when_what_is_behind_it_is_settled() -> None:
    buffer = buffer_of(8, 9, committed=8)
    buffer.skip_gap(15, 5)
    settle(buffer)
    assert (buffer.position, buffer.next_offset, buffer.lost, buffer.counts.lost) == (10, 15, 5, 0)
    buffer.append(runs_of([record(15), record(16)])[0], 0.0)
    settle(buffer, 1)
    assert (buffer.position, buffer.next_offset, buffer.lost, buffer.counts.lost) == (16, 17, 5, 5)
    settle(buffer)
    assert (buffer.lost, buffer.counts.lost) == (5, 5)


def test_a_second_gap_adds_to_one_that_is_not_counted_yet() -> None:
    """A task that is behind by days meets one gap after another while its sink is away."""
    buffer = buffer_of(8, 9, committed=8)
    buffer.skip_gap(15, 5)
    buffer.append(runs_of([record(15), record(16)])[0], 0.0)
    buffer.skip_gap(30, 13)
    assert (buffer.next_offset, buffer.lost, buffer.counts.lost) == (17, 18, 0)
    settle(buffer)
    assert (buffer.position, buffer.lost, buffer.counts.lost) == (17, 18, 0)
    buffer.skip_gap(40, 10)
    assert (buffer.position, buffer.next_offset, buffer.lost, buffer.counts.lost) == (40, 40, 28, 28)


def test_a_topic_made_anew_behind_a_gap_is_read_from_its_begin() -> None:
    buffer = buffer_of(8, 9, committed=8)
    buffer.skip_gap(15, 5)
    settle(buffer)
    buffer.skip_gap(0, 0)
    assert (buffer.position, buffer.next_offset, buffer.counts.lost) == (0, 0, 5)
    buffer.append(runs_of([record(0)])[0], 0.0)
    settle(buffer)
    assert (buffer.position, buffer.lost) == (1, 5)
