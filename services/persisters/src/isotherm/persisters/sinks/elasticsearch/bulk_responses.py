"""What Elasticsearch's answer to one item of a bulk request means for its row. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isotherm.persisters.api.row import FailedRow, Row
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.api.statements import has_target_per_record
from isotherm.persisters.sinks.elasticsearch.indices.index_names import is_of_record
from isotherm.persisters.sinks.elasticsearch.product import BLOCKED
from isotherm.persisters.sinks.elasticsearch.statements import is_data_stream

_NOT_FOUND, _CONFLICT, _TOO_LARGE, _INTERNAL = 404, 409, 413, 500
_TRANSIENT = frozenset((429, 502, 503, 504))
_OF_THE_SERVER = re.compile(
    r"transport|connect|node|cluster|master|shard|replica|primary|recovery|engine|translog|lucene|corrupt|snapshot"
    r"|closed|rejected|unavailable|timeout|timed_out|interrupted|circuit|memory|disk|file|lock|(^|_)(i_?o|e_?o_?f)_"
)
"""In the types of errors that a 500 carries and that are the server's own: a node that leaves, a disk that fails."""
_CLOSED, _MISSING = "index_closed_exception", "index_not_found_exception"
_FORBIDDEN = frozenset((401, 403))
_MAPPING = ("document_parsing_exception", "mapper_parsing_exception")


class RefusedByElasticsearchError(Exception):
    """Elasticsearch refused an item of a bulk request; the text is the server's."""


def failed_item(index: int, row: Row, outcome: Mapping[str, Any]) -> FailedRow | None:
    """Return why `row`, at `index` of its batch, was not written; None if the store is as the row asks.

    Args:
        index: the row's index in the batch.
        row: the row.
        outcome: `status` and `error` of the item in the response (Elasticsearch's bulk API, "Response body").

    Raises SinkConfigError if the index that the statement names is missing or this user may not write it: no row is to
    blame.
    """
    status, error = int(outcome["status"]), outcome.get("error")
    if error is None or (status == _NOT_FOUND and row.values is None):
        return None
    if status == _CONFLICT and (row.revision is not None or is_data_stream(row.plan.statement)):
        # The index holds a higher revision already, the data stream this very record.
        return None
    text = f"{status} {error.get('type')}: {error.get('reason')}"
    cause = error.get("caused_by", {}).get("reason")
    full = RefusedByElasticsearchError(f"{text}; {cause}" if cause else text)
    of_index = _of_the_index(index, row, status, error, full)
    if of_index is not None:
        return of_index
    transient = status == _CONFLICT or _is_transient(status, error)
    return FailedRow(index, reason(status, error), full, transient=transient)


def _of_the_index(
    index: int, row: Row, status: int, error: Mapping[str, Any], full: RefusedByElasticsearchError
) -> FailedRow | None:
    """Return what a response means that concerns the index and not the row; None for any other response."""
    kind, statement = error.get("type"), row.plan.statement
    if kind == _MISSING or (status in _FORBIDDEN and kind != BLOCKED):
        if is_of_record(statement) if kind == _MISSING else has_target_per_record(statement):
            return FailedRow(index, "target", full)
        raise SinkConfigError(f"Elasticsearch: {full}")
    if kind == _CLOSED and is_of_record(statement):
        return FailedRow(index, "target", full)
    return FailedRow(index, "blocked", full, transient=True) if kind in (BLOCKED, _CLOSED) else None


def reason(status: int, error: Mapping[str, Any]) -> str:
    """Return the word under which a row with this status and error is counted."""
    if _is_transient(status, error):
        return "overloaded"
    if status == _TOO_LARGE:
        return "too_large"
    kind = str(error.get("type", ""))
    return "mapping" if kind in _MAPPING else "rejected"


def _is_transient(status: int, error: Mapping[str, Any]) -> bool:
    """Whether Elasticsearch may accept the same item later.

    Elasticsearch answers 500 for every exception that it has no status for. A pipeline's processor that fails for a
    document ends so, and fails again each time; a lost connection or a full disk also ends so, and passes.
    """
    if status != _INTERNAL:
        return status in _TRANSIENT
    return _OF_THE_SERVER.search(str(error.get("type", ""))) is not None
