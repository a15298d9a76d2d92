"""How much slower this machine is at present than one that does nothing else: bounds of a fault run follow it.

A run is judged by its history. On a busy machine servers start and recover later, which is no finding.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_WORK_S = 0.05
_SAMPLES = 20
_PAUSE_S = 0.05
_MOST = 8.0
"""A machine that is slower than this gives no run that says anything."""


def pace(
    clock: Callable[[], float] = time.perf_counter,
    processor: Callable[[], float] = time.process_time,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Return how many seconds pass for a processor second of one process, from 1 to 8.

    Takes two seconds on a quiet machine. It works in small pieces with pauses, because a scheduler favours a process
    that has just rested: one long piece and one short one would both measure something else.
    """
    waited_s = worked_s = 0.0
    for _ in range(_SAMPLES):
        began_s, began_work_s = clock(), processor()
        while processor() - began_work_s < _WORK_S:
            pass
        waited_s += clock() - began_s
        worked_s += processor() - began_work_s
        pause(_PAUSE_S)
    return min(_MOST, max(1.0, waited_s / worked_s))
