"""Times that options give."""

from __future__ import annotations

from isotherm.cli.output import refuse
from isotherm.connector.offsets.replay import time_ms_of


def time_ms_or_refuse(option: str, text: str) -> int:
    """Return the epoch milliseconds of an option's time. Ends with exit code 2 where it is none."""
    try:
        return time_ms_of(text)
    except ValueError:
        refuse(f"{option} {text!r} is not a time; expected one such as 2026-01-31T12:00:00Z")
