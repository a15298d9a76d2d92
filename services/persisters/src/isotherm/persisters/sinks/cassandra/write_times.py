"""Write times that keep the order of a key's records if event times and offsets alone do not.

CQL's write times are microseconds. The later of two records of one key and one millisecond gets the later write time
from its offset. A millisecond has room for the last three digits of the offset only, so every thousandth offset would
turn the order round. Therefore the last write of each key is remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

_MOST_KEYS = 20_000


_Last = tuple[int, int, int]
"""Event time (ms), offset and write time (us) of the record of a key that happened last."""


class WriteTimes:
    """The last write times of recent keys; for several threads that do not write one key at once."""

    def __init__(self, most_keys: int = _MOST_KEYS) -> None:
        """It remembers up to twice `most_keys` keys."""
        self._most_keys = most_keys
        self._last: dict[Hashable, _Last] = {}
        self._last_before: dict[Hashable, _Last] = {}
        self._moved: dict[tuple[Hashable, int], int] = {}
        """By key and offset, the write times that differ from the records' own, for records that are written again."""
        self._moved_before: dict[tuple[Hashable, int], int] = {}
        self._lock = threading.Lock()

    def behind_earlier(self, key: Hashable, event_ms: int, offset: int, own_us: int) -> int:
        """Return the write time (us) of a record, after those of the key's earlier records that did not happen after
        it.

        `key` names a row and the partition that the record comes from; `own_us` is the write time as far as the record
        alone decides it. A record that is written again gets the same write time.
        """
        last = self._last.get(key) or self._last_before.get(key)
        time_us = own_us
        if last is not None and own_us <= last[2]:
            last_ms, last_offset, last_us = last
            if event_ms < last_ms or offset <= last_offset:
                time_us = last_us if (event_ms, offset) == (last_ms, last_offset) else own_us
                return self._moved.get((key, offset)) or self._moved_before.get((key, offset)) or time_us
            time_us = self._moved[(key, offset)] = last_us + 1
            if len(self._moved) >= self._most_keys:
                self._forget()
        self._last[key] = (event_ms, offset, time_us)
        if len(self._last) >= self._most_keys:
            self._forget()
        return time_us

    def _forget(self) -> None:
        with self._lock:
            if len(self._last) >= self._most_keys:
                self._last_before, self._last = self._last, {}
            if len(self._moved) >= self._most_keys:
                self._moved_before, self._moved = self._moved, {}
