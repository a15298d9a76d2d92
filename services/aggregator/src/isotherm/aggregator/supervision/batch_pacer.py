"""Spaces the micro-batches of the windowed query: they follow the load, not the trigger (ADR 0096).

A micro-batch costs the same whether it brings ten readings or ten thousand, so few readings wait for one another. The
wait stands between a batch's work and its commit, because Spark plans the next batch after the commit, and because the
driver can end it at once: when a window can end, and before the query is stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_INTERVALS, _MOST_MS = 6, 3_000
"""For how many trigger intervals, and how long at most, a batch keeps the next one from being planned.

Counted from its begin. Batches with a long trigger interval are spaced by it already.
"""
_MAX_REMEMBERED = 500


def hold_ms(trigger_ms: int) -> int:
    """Return for how long a batch keeps the next one from being planned, in milliseconds from its begin."""
    return min(_INTERVALS * trigger_ms, _MOST_MS)


class BatchPacer:
    """Holds a batch back that has done its work, unless something is urgent.

    The thread of the query calls `paced`; every other method is for the driver's main thread.
    """

    def __init__(
        self, hold_ms: int, reads_backlog: Callable[[int], bool], elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`reads_backlog` returns whether more records may wait than a batch (by number) could read."""
        self._hold_s = hold_ms / 1000
        self._reads_backlog = reads_backlog
        self._elapsed_s = elapsed_s
        self._changed = threading.Condition()
        self._hurried_to = -1
        self._is_open = False
        self._is_first = True
        self._holding: int | None = None
        self._held_ms: dict[int, int] = {}

    def begin(self) -> None:
        """Take note that the query is started. Its first batch is not held: it shows what is wrong with the plan."""
        with self._changed:
            self._is_open, self._is_first, self._hurried_to = False, True, -1

    def release(self) -> None:
        """Hold no batch any more, until the query is started again."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def hurry(self, batch_id: int) -> None:
        """Hold no batch up to this one: a window can end by the batches that follow it."""
        with self._changed:
            self._hurried_to = max(batch_id, self._hurried_to)
            self._changed.notify_all()

    @property
    def is_holding(self) -> bool:
        """Whether the newest batch has done its work and waits for its commit."""
        with self._changed:
            return self._holding is not None

    def held_ms(self, batch_id: int) -> int:
        """Return for how long a batch was held, in milliseconds."""
        with self._changed:
            return self._held_ms.get(batch_id, 0)

    def paced(self, write: Callable[[T, int], bool]) -> Callable[[T, int], None]:
        """Return `write` as the function that Spark calls for each batch.

        `write` returns whether it has written records: such a batch is committed at once, since a batch that is run
        again writes its records again.
        """

        def write_and_hold(rows: T, batch_id: int) -> None:
            began_s = self._elapsed_s()
            has_written = write(rows, batch_id)
            if not has_written and not self._reads_backlog(batch_id):
                self._hold(batch_id, began_s + self._hold_s)
            else:
                self._pass()

        return write_and_hold

    def _pass(self) -> None:
        with self._changed:
            self._is_first = False

    def _hold(self, batch_id: int, until_s: float) -> None:
        with self._changed:
            is_first, self._is_first = self._is_first, False
            if is_first:
                return
            begun_s = self._elapsed_s()
            self._holding = batch_id
            try:
                while not self._is_open and batch_id > self._hurried_to:
                    left_s = until_s - self._elapsed_s()
                    if left_s <= 0:
                        break
                    self._changed.wait(left_s)
            finally:
                self._holding = None
            self._held_ms[batch_id] = round((self._elapsed_s() - begun_s) * 1000)
            while len(self._held_ms) > _MAX_REMEMBERED:
                del self._held_ms[next(iter(self._held_ms))]
