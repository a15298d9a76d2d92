"""Parts hold what aiokafka's own reading of the same bytes gives, and leave the consumer at the same position."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from isotherm.alerts.stream import fetched_parts
from isotherm.alerts.stream.fetched_parts import FetchedPart, hand_over_parts, input_record, part_message, parts

PARTITION = TopicPartition("in", 3)
CODECS = range(5)
"""None, gzip, snappy, lz4, zstd."""
CONTROL, CRC_AT, ATTRIBUTES_AT = 0x20, 17, 21
ABORT, COMMIT = struct.pack(">hh", 0, 0), struct.pack(">hh", 0, 1)


class Fetched(NamedTuple):
    """What a broker answers."""

    data: bytes
    aborted: list[tuple[int, int]]
    """Producer and first offset of each aborted transaction."""
    end: int


def batch(first: int, values: list[bytes], codec: int = 0, producer: int = -1, marker: bytes = b"") -> bytes:
    """Return a record batch; `marker` is the key of the end of a transaction."""
    made = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=producer >= 0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for index, value in enumerate(values):
        headers = [("room", b"3")] if index % 2 else []
        made.append(index, 1_000 + index, marker or b"key", value or None, headers)
    data = made.build()
    struct.pack_into(">q", data, 0, first)
    if marker:
        data[ATTRIBUTES_AT + 1] |= CONTROL
    struct.pack_into(">I", data, CRC_AT, calc_crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


@st.composite
def fetches(draw: st.DrawFn) -> Fetched:
    """Batches of plain and of transactional producers, some aborted, with gaps as compaction leaves them."""
    data, aborted, offset = b"", list[tuple[int, int]](), draw(st.integers(0, 5))
    open_since: dict[int, tuple[int, bool]] = {}
    for _ in range(draw(st.integers(0, 12))):
        producer = draw(st.sampled_from((-1, -1, 7, 8)))
        if producer >= 0 and producer in open_since and draw(st.booleans()):
            since, is_aborted = open_since.pop(producer)
            marker = ABORT if is_aborted else COMMIT
            data, offset = data + batch(offset, [b"\0" * 6], producer=producer, marker=marker), offset + 1
            if is_aborted:
                aborted.append((producer, since))
            continue
        values = draw(st.lists(st.binary(max_size=6), min_size=1, max_size=8))
        data += batch(offset, values, draw(st.sampled_from(CODECS)), producer)
        if producer >= 0:
            open_since.setdefault(producer, (offset, draw(st.booleans())))
        offset += len(values) + draw(st.sampled_from((0, 0, 0, 4)))
    aborted += [(producer, since) for producer, (since, is_aborted) in open_since.items() if is_aborted]
    return Fetched(data, aborted, offset)


def partition_records(fetched: Fetched, begin: int, isolation: int = READ_COMMITTED) -> PartitionRecords:
    return PartitionRecords(PARTITION, MemoryRecords(fetched.data), fetched.aborted, begin, None, None, True, isolation)


def seen(record: Any) -> tuple[Any, ...]:
    return (
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        tuple(record.headers),
    )


@given(
    fetches(), st.integers(0, 20), st.sampled_from((READ_COMMITTED, READ_UNCOMMITTED)), st.sampled_from((1, 5, 5_000))
)
def test_parts_are_what_aiokafka_reads(fetched: Fetched, begin: int, isolation: int, at_most: int) -> None:
    own = partition_records(fetched, begin, isolation)
    expected = [seen(one) for one in own]
    ours = partition_records(fetched, begin, isolation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetched_parts, "MAX_RECORDS", at_most)
        found = list(parts(ours))
    assert [seen(one) for part in found for one in part.records] == expected
    assert ours.next_fetch_offset == own.next_fetch_offset
    assert all(part.records and part.offset == part.records[-1].offset for part in found)


def test_a_consumer_gets_parts_and_its_position_moves_behind_them() -> None:
    data = batch(0, [b"a", b"b"], 3) + batch(2, [b"c"]) + batch(3, [b"\0" * 6], producer=7, marker=ABORT)
    positions: list[int] = []
    state = SimpleNamespace(paused=False, position=1, consumed_to=positions.append)
    assignment = SimpleNamespace(active=True, state_value=lambda _partition: state)
    result = FetchResult(
        PARTITION, assignment=assignment, partition_records=partition_records(Fetched(data, [], 4), 1), backoff=0
    )
    fetcher = SimpleNamespace(_records={PARTITION: result})
    hand_over_parts(fetcher)
    hand_over_parts(fetcher)
    (part,) = result.getall()
    assert [one.value for one in part.records] == [b"b", b"c"]
    assert positions == [4]
    assert not result.has_more()
    hand_over_parts(fetcher)


def test_a_broken_batch_is_an_error_and_moves_no_position() -> None:
    data = bytearray(batch(0, [b"a"]) + batch(1, [b"b"]))
    data[-1] ^= 1
    read = partition_records(Fetched(bytes(data), [], 2), 0)
    with pytest.raises(CorruptRecordException, match="Invalid CRC"):
        list(parts(read))


def test_a_part_is_one_message_with_the_offset_of_its_last_record() -> None:
    (part,) = parts(partition_records(Fetched(batch(5, [b"a", b"b"]), [], 7), 0))
    message = part_message(TP(*PARTITION), part, 9)
    assert (message.tp, message.offset, message.generation_id) == (TP("in", 3), 6, 9)
    carried: Any = message.value
    assert isinstance(carried, FetchedPart)
    record = input_record(TP(*PARTITION), carried.records[1])
    assert record[:-1] == ("in", 3, 6, 1.001, 0, b"key", b"b")
    assert list(record.headers) == [("room", b"3")]
