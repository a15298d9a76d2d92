"""Which errors of PostgreSQL may pass, by SQLSTATE. Pure.

Source: PostgreSQL's documentation, appendix A (error codes); the first two characters are the class.
"""

from __future__ import annotations

_TRANSIENT_CLASSES = frozenset(("08", "25", "40", "53", "55", "57", "58", "XX"))
"""Among class 25 is 25006, a server that only reads: a former primary, or one that is not yet the new one."""


def is_transient(sqlstate: str) -> bool:
    """Whether the same statement may succeed later, on this server or on the one that takes its place."""
    return sqlstate[:2] in _TRANSIENT_CLASSES
