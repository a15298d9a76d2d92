"""What an error of PostgreSQL means for the rows that were written, by its SQLSTATE. Pure.

Source: PostgreSQL's documentation, appendix A (error codes); the first two characters are the class.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from isotherm.persisters.sinks.sqlstates import is_transient


class Meaning(Enum):
    """Who is to blame for an error, and so what happens to the rows."""

    TRANSIENT = auto()
    """The server or the way to it: the same write may succeed later."""
    ROW = auto()
    """One of the rows: it can never be written as it is."""
    TABLE = auto()
    """The table is not what it was when it was looked up."""
    CONFIGURATION = auto()
    """A right, a user, a database: the task cannot go on."""
    UNKNOWN = auto()
    """None of these: a bug."""


_ROW_CLASSES = {
    "21": "conflict",
    "22": "type",
    "23": "constraint",
    "44": "constraint",
    "54": "too_large",
}
"""Classes of errors that a single row causes, with the reasons under which they are counted."""
_CONFIGURATION_CLASSES = frozenset(("0L", "0P", "28", "3D", "3F", "42"))
_TABLE_STATES = frozenset(("42P01", "42703", "42P10", "42804", "0A000"))
"""Undefined table or column, no such unique constraint, another type; a cached plan whose result would change."""
_REFUSED_CONNECTION = re.compile(
    r"authentication failed|no pg_hba\.conf entry|role \"[^\"]*\" does not exist|database \"[^\"]*\" does not exist"
    r"|no password supplied|permission denied for database|certificate verify failed|does not support SSL"
    r"|server certificate for .* does not match|root certificate file|could not load .*certificate|private key file",
    re.IGNORECASE,
)
"""What libpq says of a connection that no later attempt can open; it passes no SQLSTATE on."""


def meaning_of(sqlstate: str | None) -> Meaning:
    """Return what an error with this SQLSTATE means; without one the connection is broken."""
    if sqlstate is None:
        return Meaning.TRANSIENT
    kind = sqlstate[:2]
    if sqlstate in _TABLE_STATES:
        return Meaning.TABLE
    if kind in _ROW_CLASSES:
        return Meaning.ROW
    if is_transient(sqlstate):
        return Meaning.TRANSIENT
    return Meaning.CONFIGURATION if kind in _CONFIGURATION_CLASSES else Meaning.UNKNOWN


def reason_of(sqlstate: str | None) -> str:
    """Return the word under which a row that failed with this SQLSTATE is counted."""
    return _ROW_CLASSES.get((sqlstate or "")[:2], "rejected")


def is_refused_connection(message: str) -> bool:
    """Whether a failed connection is the configuration's fault, from libpq's message."""
    return _REFUSED_CONNECTION.search(message) is not None
