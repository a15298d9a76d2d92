"""Names of Elasticsearch indices: what the server allows, and which indices a dated statement writes. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from isotherm.kcql.dates import compile_pattern, format_suffix
from isotherm.kcql.model import Statement
from isotherm.persisters.api.statements import has_target_per_record
from isotherm.persisters.sinks.elasticsearch.indices.mapping import index_pattern
from isotherm.persisters.sinks.elasticsearch.indices.retention import IndexSeries

_FORBIDDEN = '\\/*?"<>| ,#:'
_BAD_BEGINNINGS = "-_+."
_LONGEST_BYTES = 255
_DATE_GROUP = re.compile(r"(\{[^}]*\})")


class BadIndexNameError(ValueError):
    """A text is no name of an index; in particular, one that stands for other indices too."""


@lru_cache(maxsize=4096)
def index_name(text: str) -> str:
    """Return the index that `text` names, in lower case, because Elasticsearch allows no other names.

    The rules are those of Elasticsearch's create-index API ("Path parameters"). A dot at the beginning, which is for
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
    """Return one of the indices of a statement as written: with the date of 1970, and `x` for what a record names.

    Args:
        prefix: before every index (`tableprefix`).
        statement: one with a target.
    """
    named = "x" if has_target_per_record(statement) else statement.target or ""
    return prefix + named + format_suffix(statement.index_suffix or "", 0)


def dated_series(prefix: str, statement: Statement) -> IndexSeries | None:
    """Return the series of dated indices of a statement with a fixed target; None for any other statement."""
    if statement.target is None or has_target_per_record(statement) or statement.index_suffix is None:
        return None
    literals_and_dates = _DATE_GROUP.split(statement.index_suffix)
    suffix = "".join(piece if _DATE_GROUP.fullmatch(piece) else piece.lower() for piece in literals_and_dates)
    return IndexSeries((prefix + statement.target).lower(), suffix)


def pattern(prefix: str, statement: Statement, index: str) -> str:
    """Return the index pattern of the template for `index`, one of the statement's indices."""
    dated = dated_series(prefix, statement)
    return index if dated is None else index_pattern(dated.base, dated.suffix)


def is_of_record(statement: Statement) -> bool:
    """Whether the name of the index depends on the record: on what it names, or on its time."""
    suffix = statement.index_suffix
    return has_target_per_record(statement) or (
        suffix is not None and compile_pattern(suffix).granularity_ms is not None
    )
