"""The lines of rows in a bulk request. Pure. See Elasticsearch's bulk API, "Request body"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.persisters.sinks.elasticsearch.statements import is_data_stream, routing_of
from isotherm.persisters.sinks.repeated_ids import may_repeat_ids

_LONGEST_ID_BYTES = 512
_TIMESTAMP = "@timestamp"
"""Every document of a data stream has it: the time that it is about."""


class Operations:
    """How rows of one plan are written."""

    __slots__ = ("_is_stream", "_pipeline", "_routing_of", "is_ordered")

    def __init__(self, plan: Plan) -> None:
        statement = plan.statement
        self._is_stream = is_data_stream(statement)
        self.is_ordered = plan.revision is None and may_repeat_ids(plan) and not self._is_stream
        """Whether several rows of an id may differ, and the later one has to win."""
        self._routing_of = routing_of(statement)
        pipeline = statement.pipeline
        self._pipeline = b"" if pipeline is None else b',"pipeline":%b' % orjson.dumps(pipeline)

    def routing(self, row: Row) -> str | None:
        """Return the row's routing value; None without routing. Raises RowError."""
        return None if self._routing_of is None else self._routing_of(row)

    def lines(self, row: Row, index: str | None) -> bytes:
        """Return the lines of a row whose `index` is written only if the request's address names another one.

        They are put together as text: a dictionary for each row would cost more than everything else.

        Raises NotADocumentError, RowError.
        """
        place = b'"_id":' + quoted_id(row.id)
        if index is not None:
            # The server need not parse in every row what the address says.
            place += b',"_index":%b' % orjson.dumps(index)
        if self._routing_of is not None:
            place += b',"routing":%b' % quoted(self._routing_of(row))
        if row.values is None:
            return b'{"delete":{%b}}\n' % place
        if self._pipeline:
            place += self._pipeline
        if self._is_stream:
            return b'{"create":{%b}}\n%b\n' % (place, _timed(row.values, row.event_time_ms))
        document = to_json(row.values)
        if row.revision is not None:
            return b'{"index":{%b,"version":%d,"version_type":"external"}}\n%b\n' % (place, row.revision, document)
        return b'{"index":{%b}}\n%b\n' % (place, document)


def quoted_id(id_: str) -> bytes:
    """Return the id as JSON. Raises NotADocumentError for one that Elasticsearch refuses."""
    found = quoted(id_)
    # Quotes add two bytes and escapes add more, so the short ids need no exact count.
    if not 2 < len(found) <= _LONGEST_ID_BYTES and not 0 < (size := len(id_.encode())) <= _LONGEST_ID_BYTES:
        raise NotADocumentError(f"an id has 1 to {_LONGEST_ID_BYTES} bytes, this one has {size}")
    return found


def quoted(text: str) -> bytes:
    """Return a text as JSON. Raises NotADocumentError for one that is not Unicode."""
    try:
        return orjson.dumps(text)
    except orjson.JSONEncodeError as error:
        raise NotADocumentError(f"the id is not Unicode: {error}") from error


def _timed(values: Mapping[str, Any], event_time_ms: int) -> bytes:
    document = to_json(values)
    if _TIMESTAMP in values:
        return document
    return b'{"%b":%d%b%b' % (_TIMESTAMP.encode(), event_time_ms, b"" if document == b"{}" else b",", document[1:])
