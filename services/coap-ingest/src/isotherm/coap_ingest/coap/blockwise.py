"""Payloads that come in blocks (RFC 7959 section 2.5), until they are whole. No IO.

A transfer is known by a key of its sender and its options. What is held is bounded in transfers and bytes, and for each
sender, so that one that begins many and ends none takes the others nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

MAX_TRANSFERS = 4_096
MAX_TRANSFERS_OF_A_SOURCE = 16
MAX_BYTES = 16 * 1024 * 1024
IDLE_S = 93.0
"""MAX_TRANSMIT_WAIT (RFC 7252 section 4.8.2): when a sender has certainly given up."""
SHARES = 4
"""One sender has at most a quarter of the bytes."""
YIELD_S = 5.0
"""A transfer that was silent for so long makes room for a new one: a block that is sent again comes after 2 to 3 s."""


class IncompleteError(Exception):
    """A block that does not follow the ones before it (4.08)."""


class TooManyTransfersError(Exception):
    """There is no room for one more transfer (5.03)."""


@dataclass(slots=True)
class _Share:
    """What one sender takes."""

    transfers: int = 0
    size: int = 0


@dataclass(slots=True)
class _Transfer:
    source: str
    touched_s: float
    payload: bytearray = field(default_factory=bytearray)


class Assemblies:
    """The transfers that are under way, those that were silent for longest first. Times are monotonic, in seconds."""

    def __init__(
        self,
        *,
        max_transfers: int = MAX_TRANSFERS,
        max_of_a_source: int = MAX_TRANSFERS_OF_A_SOURCE,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._max_transfers = max_transfers
        self._max_of_a_source = max_of_a_source
        self._max_bytes = max_bytes
        self._transfers: OrderedDict[Hashable, _Transfer] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self.size = 0
        """Bytes that are held."""

    def __len__(self) -> int:
        return len(self._transfers)

    def expects(self, key: Hashable, start: int) -> bool:
        """Whether a block that begins at byte `start` is the next one of a transfer."""
        transfer = self._transfers.get(key)
        return transfer is not None and start == len(transfer.payload) > 0

    def add(self, key: Hashable, source: str, start: int, block: bytes, now_s: float) -> None:
        """Take a block that is not the last one; one that begins at 0 begins the transfer anew.

        Raises IncompleteError, TooManyTransfersError.
        """
        if start == 0:
            self._end(key)
            self._make_room(source, len(block), now_s)
            self._transfers[key] = _Transfer(source, now_s)
            self._shares.setdefault(source, _Share()).transfers += 1
        elif not self.expects(key, start):
            raise IncompleteError
        transfer = self._transfers[key]
        share = self._shares[transfer.source]
        if self.size + len(block) > self._max_bytes or share.size + len(block) > self._max_bytes // SHARES:
            self._end(key)
            raise TooManyTransfersError
        transfer.payload += block
        transfer.touched_s = now_s
        share.size += len(block)
        self.size += len(block)
        self._transfers.move_to_end(key)

    def complete(self, key: Hashable, start: int, block: bytes) -> bytes:
        """The whole payload, of which `block` is the last part; the transfer is over. Raises IncompleteError."""
        if start == 0:
            self._end(key)
            return block
        if not self.expects(key, start):
            raise IncompleteError
        transfer = self._transfers[key]
        self._end(key)
        return bytes(transfer.payload) + block

    def expire(self, now_s: float) -> None:
        """Give up transfers whose senders have."""
        while self._transfers:
            key, transfer = next(iter(self._transfers.items()))
            if now_s - transfer.touched_s < IDLE_S:
                return
            self._end(key)

    def _make_room(self, source: str, size: int, now_s: float) -> None:
        if source in self._shares and self._shares[source].transfers >= self._max_of_a_source:
            own = next(key for key, transfer in self._transfers.items() if transfer.source == source)
            self._yield(own, now_s)
        while len(self._transfers) >= self._max_transfers or self.size + size > self._max_bytes:
            self._yield(next(iter(self._transfers)), now_s)

    def _yield(self, key: Hashable, now_s: float) -> None:
        if now_s - self._transfers[key].touched_s < YIELD_S:
            raise TooManyTransfersError
        self._end(key)

    def _end(self, key: Hashable) -> None:
        transfer = self._transfers.pop(key, None)
        if transfer is None:
            return
        share = self._shares[transfer.source]
        self.size -= len(transfer.payload)
        share.size -= len(transfer.payload)
        share.transfers -= 1
        if not share.transfers:
            del self._shares[transfer.source]
