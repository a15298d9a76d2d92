"""The exit codes of every command of the suite. It imports nothing heavy, so that commands start quickly."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command of the suite."""

    OK = 0
    FAILED = 1
    CONFIGURATION = 2
    DEADLINE = 3
    """The process was asked to stop and did not drain within the deadline."""
