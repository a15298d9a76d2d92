"""Times and durations that options give."""

from __future__ import annotations

import re

from isotherm.cli.output import refuse
from isotherm.connector.offsets.replay import time_ms_of

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")


def time_ms_or_refuse(option: str, text: str) -> int:
    """Return the epoch milliseconds of an option's time. Ends with exit code 2 where it is none."""
    try:
        return time_ms_of(text)
    except ValueError:
        refuse(f"{option} {text!r} is not a time; expected one such as 2026-01-31T12:00:00Z")


def duration_ms_or_refuse(option: str, text: str) -> int:
    """Return the milliseconds of an option's duration, such as 30m. Ends with exit code 2 where it is none."""
    found = _DURATION.fullmatch(text)
    if found is None or int(found.group(1)) == 0:
        refuse(f"{option} {text!r} is not allowed; expected a number with s, m, h or d, such as 30m")
    return int(found.group(1)) * _UNITS_MS[found.group(2)]
