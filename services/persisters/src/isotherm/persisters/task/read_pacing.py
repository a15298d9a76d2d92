"""When the task reads next: not before there is room, and records that flow steadily in groups. Pure; see ADR 100."""

from __future__ import annotations

import math

from isotherm.persisters.buffers.partition_buffers import PartitionBuffers

FLOW_PER_S = 40.0
"""Records a second from which on they are read in groups. Fewer are stored one by one, each at once."""
GROUP_MS = 300.0
"""Pause between two reads while records flow: as long as the first record of a group waits for the last one."""
_RATE_WINDOW_MS = 1_000.0
_OPEN_MS = 250.0

_LONGEST_PAUSE_MS = 2_000.0
"""How long no poll comes at most while every buffer holds enough, and how long a write says that more room follows."""
_PAUSE_BESIDE_EMPTY_MS = 250.0
"""The same while some buffers are empty: so long do records of their partitions wait for others at most."""


class RoomPause:
    """Stops reading while the buffers hold enough: only a finished write makes room.

    The loop does not pause the partitions for that. The client discards what it has fetched of a paused partition, and
    once it is resumed fetches it only after the fetch under way is answered: half a second later, if that one is of
    partitions without records.
    """

    def __init__(self) -> None:
        self._written_ms = self._polled_ms = 0.0

    def note_poll(self, now_ms: float) -> None:
        """Note that the consumer was polled, which it must be from time to time."""
        self._polled_ms = now_ms

    def note_read(self, now_ms: float) -> None:
        """Note that records were read: before the first write, the first of them count as one."""
        self._written_ms = self._written_ms or now_ms

    def note_written(self, now_ms: float) -> None:
        """Note that a batch has its outcome."""
        self._written_ms = now_ms

    def is_on(self, buffers: PartitionBuffers, now_ms: float) -> bool:
        """Return whether neither to read nor to pause a partition now."""
        since_poll_ms = now_ms - self._polled_ms
        if now_ms - self._written_ms >= _LONGEST_PAUSE_MS or since_poll_ms >= _LONGEST_PAUSE_MS:
            return False
        if since_poll_ms < _PAUSE_BESIDE_EMPTY_MS and (buffers.are_about_to_be_paused or buffers.unread_hold_enough):
            return True
        return buffers.hold_enough


class ReadPacing:
    """Makes one write of several records that come one after the other, where each would be a write of its own.

    A write costs the task, the sink's client and the server about as much for ten records as for one. A record after a
    silence does not wait, nor do records that Kafka already holds: reading pauses only if everything was read.
    """

    def __init__(self) -> None:
        self._rate_per_s = 0.0
        """Records a second at `_read_ms`: a mean in which a record counts less, the longer ago it was read."""
        self._read_ms = 0.0
        self._next_ms = 0.0

    def note_read(self, records: int, now_ms: float) -> None:
        """Note that so many records were read."""
        self._rate_per_s = self._rate_at(now_ms) + records * 1_000 / _RATE_WINDOW_MS
        self._read_ms = now_ms

    @property
    def is_flowing(self) -> bool:
        """Whether so many records come that they are worth grouping."""
        return self._rate_per_s >= FLOW_PER_S

    @property
    def open_offsets(self) -> float:
        """How many offsets may be unread although everything was read.

        They are of open transactions and of the markers that end them, and of records that came since the last look.
        """
        return self._rate_per_s * _OPEN_MS / 1_000

    def pause(self, now_ms: float) -> None:
        """Read nothing until a group has come together."""
        self._next_ms = now_ms + GROUP_MS

    def wait_ms(self, now_ms: float) -> float:
        """Return how long reading pauses from now on, in milliseconds; 0 if it does not."""
        return max(0.0, self._next_ms - now_ms)

    def _rate_at(self, now_ms: float) -> float:
        return self._rate_per_s * math.exp((self._read_ms - now_ms) / _RATE_WINDOW_MS)
