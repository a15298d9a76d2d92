"""What the status of an answer means for the rows of its request. Pure. See RFC 9110."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

_LOWEST, _HIGHEST = 100, 599
_TOO_LARGE = 413
CONFLICT = 409
"""A server that knows keys of idempotency still works at the request with this key (IETF's draft of
`Idempotency-Key`); without a key the row is in conflict with what is there."""
MISSING = (404, 410)
"""There is nothing at this address, or not any more."""

StatusRange = range


class Meaning(Enum):
    """Who is to blame for an answer, and so what happens to the rows."""

    WRITTEN = auto()
    TRANSIENT = auto()
    """The server, for now: the same request may succeed later."""
    ROW = auto()
    """One of the rows: it is never taken as it is."""
    CONFIGURATION = auto()
    """The address, the credentials, the method: the task cannot go on."""


def status_ranges(texts: Iterable[str]) -> tuple[StatusRange, ...]:
    """Read `429` and `500-599`. Raises ValueError for anything else."""
    found = []
    for text in texts:
        first, dash, last = text.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} is not allowed; expected a status such as 429, or a range such as 500-599")
        low, high = int(first), int(last or first)
        if not _LOWEST <= low <= high <= _HIGHEST or any(200 <= status < 300 for status in (low, high)):
            raise ValueError(f"{text!r} is not allowed; expected statuses from 300 to 599")
        found.append(range(low, high + 1))
    return tuple(found)


def meaning_of(
    status: int, transient: Iterable[StatusRange], of_row: Iterable[StatusRange], *, names_row: bool
) -> Meaning:
    """Return what an answer's status means.

    Args:
        status: the status of the answer.
        transient, of_row: the statuses that have these meanings.
        names_row: whether the address depends on the row, so that a missing place is the row's fault.
    """
    if 200 <= status < 300:
        return Meaning.WRITTEN
    if any(status in one for one in transient):
        return Meaning.TRANSIENT
    if any(status in one for one in of_row) or (names_row and status in MISSING):
        return Meaning.ROW
    return Meaning.CONFIGURATION


def reason_of(status: int) -> str:
    """Return the word under which a row that was refused with this status is counted."""
    return "too_large" if status == _TOO_LARGE else "rejected"
