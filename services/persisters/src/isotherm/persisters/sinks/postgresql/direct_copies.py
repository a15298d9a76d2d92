"""Which tables take rows by COPY alone, because the keys of the rows are new. Pure. See docs/adr/0251."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_SKIPPED = 64
"""Of so many batches one tries COPY alone on a table whose keys are never new, so that a refused try costs little."""


@dataclass
class _History:
    skips: int = 1
    """How many batches were merged after the last refused try."""
    left: int = 0
    """How many are still to be merged before the next one."""


class DirectCopies:
    """Remembers what became of the last tries, table by table; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, _History] = {}

    def is_worth_a_try(self, tables: Iterable[str]) -> bool:
        """Whether a batch for these tables tries COPY alone."""
        with self._lock:
            return not any(known.left for table in tables if (known := self._tables.get(table)) is not None)

    def note_new(self, tables: Iterable[str]) -> None:
        """Note that all keys of a batch were new."""
        with self._lock:
            for table in tables:
                self._tables.pop(table, None)

    def note_merged(self, tables: Iterable[str]) -> None:
        """Note that a batch was merged."""
        with self._lock:
            for table in tables:
                history = self._tables.get(table)
                if history is not None:
                    history.left = max(0, history.left - 1)

    def note_refused(self, tables: Iterable[str]) -> None:
        """Note that PostgreSQL refused a try: after each in a row twice as many batches are merged."""
        with self._lock:
            for table in tables:
                history = self._tables.setdefault(table, _History())
                history.skips = min(_MOST_SKIPPED, 2 * history.skips)
                history.left = history.skips
