"""When the devices of the alerts' world begin and end, and whether the topic of devices knows them, as a seed draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

UNREPORTED_MS = 45_000
"""After so long a device with a record and without a reading is told."""
FORGET_MS = 600_000
"""After so long without a reading a device without a record is forgotten: longer than any pause."""
_REMOVED_AFTER_MS = 150_000, 400_000
"""How long after its last reading a device's record is removed; what was held back has come by then."""
_FADES_MS = 45_000, 120_000, 10**9


@dataclass(frozen=True)
class Life:
    """The begin and the end of one device, in ms after the start of the run."""

    first_ms: float | None = 0.0
    """When it begins to measure; None: never."""
    last_ms: float | None = None
    """When it measures no more, before the others; None: with them."""
    removed_ms: float | None = None
    """When its record is removed from the topic of devices; None: it stays."""
    fades: float = 0.0
    """Probability of a measurement that the last of several metrics is left out from then on, maybe for ever."""
    moved_ms: float | None = None
    """When its record gets another region; None: never."""


def draw_life(chance: random.Random, *, is_known: bool, metrics: Sequence[str], input_ms: int) -> Life:
    """Draw the life of a device."""
    kind = chance.choice(("usual", "usual", "usual", "late", "never", "removed"))
    delay_ms, share, after_ms = chance.uniform(0.0, 5_000.0), chance.random(), chance.uniform(*_REMOVED_AFTER_MS)
    fades = chance.choice((0.0, 0.01, 0.05)) if len(metrics) > 1 else 0.0
    moved_ms = chance.choice((None, input_ms * chance.random()))
    if not is_known:
        return Life(fades=fades)
    if kind == "usual":
        return Life(fades=fades, moved_ms=moved_ms)
    if kind == "removed":
        last_ms = input_ms * (0.2 + 0.6 * share)
        return Life(last_ms=last_ms, removed_ms=last_ms + after_ms, fades=fades)
    return Life(1.2 * UNREPORTED_MS + delay_ms if kind == "late" else None, fades=fades)


def draw_fading_ms(chance: random.Random) -> float:
    """Draw for how long a metric is left out."""
    return float(chance.choice(_FADES_MS))
