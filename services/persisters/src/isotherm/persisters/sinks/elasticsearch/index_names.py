"""Names of Elasticsearch indices: what the server allows, and which indices a dated statement writes. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from isotherm.kcql.model import Statement
from isotherm.kcql.dates import compile_pattern, format_suffix
from isotherm.persisters.sinks.elasticsearch.mapping import index_pattern
from isotherm.persisters.sinks.elasticsearch.retention import Family
from isotherm.persisters.sinks.sink import is_derived

_FORBIDDEN = '\\/*?"<>| ,#:'
_BAD_BEGINNINGS = "-_+."
_LONGEST_BYTES = 255
_DATE_GROUP = re.compile(r"(\{[^}]*\})")


class BadIndexNameError(ValueError):
    """A text that is no name of an index; above all none that stands for other indices too."""


@lru_cache(maxsize=4096)
def index_name(text: str) -> str:
    """The index that `text` names: in lower case, since Elasticsearch knows no other names.

    The rules are those of Elasticsearch's create-index API ("Path parameters"); a dot at the beginning, which is for
    hidden and system indices, is refused too.

    Raises BadIndexNameError.
    """
    name = text.lower()
    forbidden = sorted(set(name).intersection(_FORBIDDEN))
    if forbidden:
        raise BadIndexNameError(f"{text!r} names no index: {' '.join(map(repr, forbidden))} is not allowed in it")
    if not name or name[0] in _BAD_BEGINNINGS:
        expected = "it must not be empty or begin with " + " ".join(_BAD_BEGINNINGS)
        raise BadIndexNameError(f"{text!r} names no index: {expected}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise BadIndexNameError(f"{text!r} names no index: it is not Unicode") from error
    if size > _LONGEST_BYTES:
        raise BadIndexNameError(f"{text[:40]!r}... names no index: {size} bytes, at most {_LONGEST_BYTES} are allowed")
    return name


def example(prefix: str, statement: Statement) -> str:
    """One of the indices of a statement, as written: with the date of 1970, and `x` for what a record names.

    Args:
        prefix: before every index (`tableprefix`).
        statement: one with a target.
    """
    named = "x" if is_derived(statement) else statement.target or ""
    return prefix + named + format_suffix(statement.index_suffix or "", 0)


def dated_family(prefix: str, statement: Statement) -> Family | None:
    """The dated indices of a statement with a fixed target; None for any other one."""
    if statement.target is None or is_derived(statement) or statement.index_suffix is None:
        return None
    literals_and_dates = _DATE_GROUP.split(statement.index_suffix)
    suffix = "".join(piece if _DATE_GROUP.fullmatch(piece) else piece.lower() for piece in literals_and_dates)
    return Family((prefix + statement.target).lower(), suffix)


def pattern(prefix: str, statement: Statement, index: str) -> str:
    """The index pattern of a template for `index`, one of the indices of a statement."""
    dated = dated_family(prefix, statement)
    return index if dated is None else index_pattern(dated.base, dated.suffix)


def is_of_record(statement: Statement) -> bool:
    """Whether the name of the index depends on the record: on what it names, or on its time."""
    suffix = statement.index_suffix
    return is_derived(statement) or (suffix is not None and compile_pattern(suffix).granularity_ms is not None)
