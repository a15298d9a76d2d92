"""What Elasticsearch's answer to one item of a bulk request means for its row. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isotherm.persisters.sinks.elasticsearch.index_names import is_of_record
from isotherm.persisters.sinks.sink import (
    Rejected,
    Row,
    SinkConfigError,
    is_derived,
)

_NOT_FOUND, _CONFLICT, _TOO_LARGE, _INTERNAL = 404, 409, 413, 500
_TRANSIENT = frozenset((429, 502, 503, 504))
_OF_THE_SERVER = re.compile(
    r"transport|connect|node|cluster|master|shard|replica|primary|recovery|engine|translog|lucene|corrupt|snapshot"
    r"|closed|rejected|unavailable|timeout|timed_out|interrupted|circuit|memory|disk|file|lock|(^|_)(i_?o|e_?o_?f)_"
)
"""In the types of errors behind a 500 that are the server's own: a node that leaves, a disk that fails."""
BLOCKED = "cluster_block_exception"
"""An index, or the whole cluster, that takes no writes now: read-only, out of disk space, without a master."""
_CLOSED, _MISSING = "index_closed_exception", "index_not_found_exception"
_FORBIDDEN = frozenset((401, 403))
_MAPPING = ("document_parsing_exception", "mapper_parsing_exception")


class RefusedByElasticsearchError(Exception):
    """An item of a bulk request that was refused; the text is the server's."""


def rejected_item(index: int, row: Row, outcome: Mapping[str, Any]) -> Rejected | None:
    """Why `row`, at place `index` of its batch, was not written; None when what it asks for is the case.

    Args:
        index: the place.
        row: what was asked for.
        outcome: `status` and `error` of the item in the answer (Elasticsearch's bulk API, "Response body").

    Raises SinkConfigError when the index that the statement names is missing or not for this user: no row is to blame.
    """
    status, error = int(outcome["status"]), outcome.get("error")
    if error is None or (status == _NOT_FOUND and row.values is None):
        return None
    if status == _CONFLICT and row.revision is not None:
        # A higher revision is there already.
        return None
    text = f"{status} {error.get('type')}: {error.get('reason')}"
    cause = error.get("caused_by", {}).get("reason")
    full = RefusedByElasticsearchError(f"{text}; {cause}" if cause else text)
    of_index = _of_the_index(index, row, status, error, full)
    if of_index is not None:
        return of_index
    transient = status == _CONFLICT or _is_transient(status, error)
    return Rejected(index, reason(status, error), full, transient=transient)


def _of_the_index(
    index: int, row: Row, status: int, error: Mapping[str, Any], full: RefusedByElasticsearchError
) -> Rejected | None:
    """What an answer means that says something about the index and nothing about the row; None for any other."""
    kind, statement = error.get("type"), row.plan.statement
    if kind == _MISSING or (status in _FORBIDDEN and kind != BLOCKED):
        if is_of_record(statement) if kind == _MISSING else is_derived(statement):
            return Rejected(index, "target", full)
        raise SinkConfigError(f"Elasticsearch: {full}")
    if kind == _CLOSED and is_of_record(statement):
        return Rejected(index, "target", full)
    return Rejected(index, "blocked", full, transient=True) if kind in (BLOCKED, _CLOSED) else None


def reason(status: int, error: Mapping[str, Any]) -> str:
    """A word for counting, for a status and the error with it."""
    if _is_transient(status, error):
        return "overloaded"
    if status == _TOO_LARGE:
        return "too_large"
    kind = str(error.get("type", ""))
    return "mapping" if kind in _MAPPING else "rejected"


def _is_transient(status: int, error: Mapping[str, Any]) -> bool:
    """Whether the same item may be taken later.

    500 is what Elasticsearch says of every exception that it has no status for. A processor of a pipeline that fails
    for a document ends so, and would fail for ever; so do a lost connection and a full disk, which pass.
    """
    if status != _INTERNAL:
        return status in _TRANSIENT
    return _OF_THE_SERVER.search(str(error.get("type", ""))) is not None
