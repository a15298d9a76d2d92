"""Records of the model as the bytes of a fetch: record batches of version 2, one for each record (KIP-98)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from isotherm.proofs.kafka.log import StoredRecord

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET, _CRC = struct.Struct(">q"), struct.Struct(">I")
_ATTRIBUTES_AND_LAST_DELTA = struct.Struct(">hi")
_CRC_AT, _ATTRIBUTES_AT = struct.calcsize(">qiib"), struct.calcsize(">qiibI")
_LOG_APPEND_TIME = 0x08
_BATCH_BYTES = 1 << 20


def record_batches(records: Sequence[StoredRecord], offset: int, go_on: int) -> bytes:
    """Return the bytes that a broker sends for `records`, read from `offset`, when the reader goes on at `go_on`.

    What lies between, markers and aborted records, is covered by the last batch, as after a compaction.
    """
    batches = [_batch_of(record) for record in records]
    if go_on > (records[-1].offset + 1 if records else offset):
        first = records[-1].offset if records else offset
        last = batches.pop() if records else _empty_batch(offset)
        batches.append(_stamped(last, first, go_on - 1 - first))
    return b"".join(batches)


def _batch_of(record: StoredRecord) -> bytearray:
    key, value, headers, timestamp_ms = record.payload
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, _BATCH_BYTES)
    builder.append(0, timestamp=timestamp_ms, key=key, value=value, headers=list(headers))
    return _stamped(bytearray(builder.build()), record.offset, 0)


def _empty_batch(offset: int) -> bytearray:
    return bytearray(_HEADER.pack(offset, _HEADER.size - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 0))


def _stamped(batch: bytearray, offset: int, last_delta: int) -> bytearray:
    """Give a batch its place in the log and the broker's time, as the broker does at the append."""
    _BASE_OFFSET.pack_into(batch, 0, offset)
    _ATTRIBUTES_AND_LAST_DELTA.pack_into(batch, _ATTRIBUTES_AT, _LOG_APPEND_TIME, last_delta)
    _CRC.pack_into(batch, _CRC_AT, calc_crc32c(bytes(batch[_ATTRIBUTES_AT:])))
    return batch
