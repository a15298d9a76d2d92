"""Reassembly of payloads that arrive in blocks (RFC 7959 section 2.5). No IO.

A key made of the sender and the options identifies a transfer. Transfers and bytes are bounded, in total and for each
sender, so that a sender that begins many transfers and ends none takes no room from the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

MAX_TRANSFERS = 4_096
MAX_TRANSFERS_PER_SOURCE = 16
MAX_BYTES = 16 * 1024 * 1024
IDLE_S = 93.0
"""MAX_TRANSMIT_WAIT (RFC 7252 section 4.8.2): after this silence the sender has certainly given up."""
BYTE_SHARES = 4
"""One sender holds at most one fourth of the bytes."""
EVICTABLE_AFTER_S = 5.0
"""A new transfer may evict one that was silent for this long: a retransmitted block comes after 2 to 3 s."""


class IncompleteError(Exception):
    """A block does not follow the ones before it (answer 4.08)."""


class TooManyTransfersError(Exception):
    """There is no room for one more transfer (answer 5.03)."""


@dataclass(slots=True)
class _SourceUsage:
    """The transfers and bytes of one sender."""

    transfers: int = 0
    size: int = 0


@dataclass(slots=True)
class _Transfer:
    source: str
    touched_s: float
    payload: bytearray = field(default_factory=bytearray)


class BlockwiseTransfers:
    """The unfinished transfers, in the order of their last block. All times are seconds of one monotonic clock."""

    def __init__(
        self,
        *,
        max_transfers: int = MAX_TRANSFERS,
        max_per_source: int = MAX_TRANSFERS_PER_SOURCE,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._max_transfers = max_transfers
        self._max_per_source = max_per_source
        self._max_bytes = max_bytes
        self._transfers: OrderedDict[Hashable, _Transfer] = OrderedDict()
        self._usage: dict[str, _SourceUsage] = {}
        self.size = 0
        """Number of bytes held."""

    def __len__(self) -> int:
        return len(self._transfers)

    def expects(self, key: Hashable, start: int) -> bool:
        """Return whether a block that begins at byte `start` is the next one of a transfer."""
        transfer = self._transfers.get(key)
        return transfer is not None and start == len(transfer.payload) > 0

    def add(self, key: Hashable, source: str, start: int, block: bytes, now_s: float) -> None:
        """Add a block that is not the last one; a block at byte 0 restarts the transfer.

        Raises IncompleteError, TooManyTransfersError.
        """
        if start == 0:
            self._remove(key)
            self._make_room(source, len(block), now_s)
            self._transfers[key] = _Transfer(source, now_s)
            self._usage.setdefault(source, _SourceUsage()).transfers += 1
        elif not self.expects(key, start):
            raise IncompleteError
        transfer = self._transfers[key]
        usage = self._usage[transfer.source]
        if self.size + len(block) > self._max_bytes or usage.size + len(block) > self._max_bytes // BYTE_SHARES:
            self._remove(key)
            raise TooManyTransfersError
        transfer.payload += block
        transfer.touched_s = now_s
        usage.size += len(block)
        self.size += len(block)
        self._transfers.move_to_end(key)

    def complete(self, key: Hashable, start: int, block: bytes) -> bytes:
        """End a transfer with its last block and return the complete payload. Raises IncompleteError."""
        if start == 0:
            self._remove(key)
            return block
        if not self.expects(key, start):
            raise IncompleteError
        transfer = self._transfers[key]
        self._remove(key)
        return bytes(transfer.payload) + block

    def expire(self, now_s: float) -> None:
        """Drop the transfers whose senders have given up."""
        while self._transfers:
            key, transfer = next(iter(self._transfers.items()))
            if now_s - transfer.touched_s < IDLE_S:
                return
            self._remove(key)

    def _make_room(self, source: str, size: int, now_s: float) -> None:
        if source in self._usage and self._usage[source].transfers >= self._max_per_source:
            own = next(key for key, transfer in self._transfers.items() if transfer.source == source)
            self._evict(own, now_s)
        while len(self._transfers) >= self._max_transfers or self.size + size > self._max_bytes:
            self._evict(next(iter(self._transfers)), now_s)

    def _evict(self, key: Hashable, now_s: float) -> None:
        if now_s - self._transfers[key].touched_s < EVICTABLE_AFTER_S:
            raise TooManyTransfersError
        self._remove(key)

    def _remove(self, key: Hashable) -> None:
        transfer = self._transfers.pop(key, None)
        if transfer is None:
            return
        usage = self._usage[transfer.source]
        self.size -= len(transfer.payload)
        usage.size -= len(transfer.payload)
        usage.transfers -= 1
        if not usage.transfers:
            del self._usage[transfer.source]
