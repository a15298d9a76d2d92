"""Collects garbage at moments that the seed decides.

A destructor, or a coroutine that is closed because nobody has it any more, may do what the run shows. When Python
collects it depends on what the process has allocated, down to which modules it had to compile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_EVERY = 50_000
"""A collection comes after so many timers of a run."""


@contextmanager
def collected_by_timers() -> Iterator[None]:
    """Collect nothing by itself while the body runs; what was there before is not looked at.

    In a process that has frozen objects before, as tests do, all stay frozen: there is no way to tell them apart.
    """
    was_enabled, had_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not had_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def collect_after(timers: int) -> None:
    """Collect garbage if it is time, after so many timers of the run."""
    if timers % _EVERY == 0:
        gc.collect()
