"""Which records a partition buffer accepts, and when they become a batch."""

from __future__ import annotations

from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.record import ProjectedRecord, Record
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.servicekit.backoff import Backoff

TOPIC = "t"
LIMITS = BufferLimits(batch_records=4, waiting_records=6, batch_bytes=1_000_000, waiting_bytes=10_000_000)


def record(offset: int) -> Record:
    return Record(TOPIC, 0, offset, 1_000, b"key", str(offset).encode(), ())


def test_records_of_partitions_that_are_gone_are_dropped() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    buffers.assign((TOPIC, 0), None, Counts())
    buffers.remove((TOPIC, 0))
    buffers.append([record(0)], 0.0)
    assert buffers.by_partition == {}


def test_batches_are_bounded_by_count_and_by_bytes_and_wait_for_linger() -> None:
    limits = BufferLimits(batch_records=3, batch_bytes=500, linger_ms=50.0)
    buffers = PartitionBuffers(limits, Backoff)
    buffers.assign((TOPIC, 0), None, Counts())
    buffer = buffers.by_partition[(TOPIC, 0)]
    buffers.append([record(0)], now_ms=10.0)
    assert not buffer.is_batch_due(limits, now_ms=59.0)
    assert buffer.is_batch_due(limits, now_ms=60.0)
    buffers.append([record(1), record(2), record(3)], now_ms=11.0)
    assert buffer.is_batch_due(limits, now_ms=11.0)
    assert [one.offset for one in buffers.next_batch(buffer)] == [0, 1]
    big = Record(TOPIC, 0, 9, 0, None, b"x" * 10_000, ())
    alone = PartitionBuffers(limits, Backoff)
    alone.assign((TOPIC, 0), None, Counts())
    alone.append([big], now_ms=0.0)
    assert alone.next_batch(alone.by_partition[(TOPIC, 0)]) == [big]


def test_a_partition_that_is_paused_does_not_wait_for_a_batch_to_fill() -> None:
    """Its share may be smaller than a batch, and no further record fits until that is written."""
    limits = BufferLimits(batch_records=100, linger_ms=60_000, waiting_records=100)
    buffers = PartitionBuffers(limits, Backoff)
    for partition in range(2):
        buffers.assign(("t", partition), None, Counts())
    for partition in range(2):
        buffers.append([Record("t", partition, offset, 0, None, b"", ()) for offset in range(60)], 0.0)
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
    buffers.append([record(0)], now_ms=10.0)
    assert buffers.next_start_ms() == 60.0
    second.append([Record(TOPIC, 1, offset, 0, None, b"", ()) for offset in range(3)], 20.0)
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
    buffers.append([record(0), record(1)], now_ms=0.0)
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
    second.append([Record(TOPIC, 1, offset, 0, None, b"", ()) for offset in (5, 6)], 0.0)
    assert buffers.are_read(1.0)
    second.end_of_partition = 8
    assert buffers.are_read(0.0), "the client has reported the end, behind which there is only a marker"


def test_a_paused_partition_has_more_to_read_but_a_read_brings_none_of_it() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    for partition in range(2):
        buffers.assign((TOPIC, partition), 0, Counts())
    full, other = buffers.by_partition.values()
    buffers.append([record(offset) for offset in range(6)], 0.0)
    full.high_watermark, other.high_watermark = 100, 0
    assert not buffers.are_open_read(0.0)
    assert buffers.pause_full() == [full]
    assert buffers.are_open_read(0.0), "only the partition that is full has more"
    assert not buffers.are_read(0.0)
    other.high_watermark = 1
    assert not buffers.are_open_read(0.0)
    other.high_watermark = None
    assert not buffers.are_open_read(1_000.0), "its end is not known yet"
