"""Reads documents back, and compares them with the rows that they were made of."""

from __future__ import annotations

from typing import Any

import orjson

from isotherm.persisters.api.row import Row
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.records.documents import to_json
from isotherm.persisters.sinks.elasticsearch.search_server import SearchServer
from isotherm.persisters.sinks.elasticsearch.statements import is_data_stream
from isotherm.persisters.sinks.replacement import another_row, written_columns


def read_back(server: SearchServer, row: Row, index: str, routing: str | None) -> StoredRow:
    """Look a row up in its index or data stream.

    Raises NotADocumentError, RequestRefusedError, Unavailable, SinkConfigError.
    """
    is_stream = is_data_stream(row.plan.statement)
    if is_stream:
        found = server.streamed_document(data_stream=index, id=row.id)
    else:
        found = server.document(index=index, id=row.id, routing=routing)
    if row.values is None:
        return StoredRow(Finding.SAME) if found is None else StoredRow(Finding.DIFFERENT)
    if found is None:
        return StoredRow(Finding.ABSENT)
    stored = found["_source"]
    may_have_more = is_stream or row.plan.statement.mode == "UPSERT"
    if row.plan.statement.pipeline is not None:
        text = f"the pipeline {row.plan.statement.pipeline} may have changed it"
        return StoredRow(Finding.UNREADABLE, written_columns(row, stored), text)
    if _is_same(row, stored, may_have_more):
        return StoredRow(Finding.SAME, written_columns(row, stored))
    is_field = row.plan.revision_column is not None
    if row.revision is not None and not is_field and found.get("_version", row.revision) > row.revision:
        # The revision is the document's version. Whoever changes a document by hand raises it too, but not the field.
        return StoredRow(Finding.NEWER, written_columns(row, stored), f"the stored revision is {found['_version']}")
    return another_row(row, stored)


def _is_same(row: Row, stored: dict[str, Any], may_have_more: bool) -> bool:
    written: dict[str, Any] = orjson.loads(to_json(row.values))
    return _holds(stored, written) if may_have_more else stored == written


def _holds(stored: Any, written: Any) -> bool:
    """Whether a merged document, or one of a data stream, has what was written; it may have more fields."""
    if not isinstance(written, dict) or not isinstance(stored, dict):
        return bool(stored == written)
    return all(name in stored and _holds(stored[name], value) for name, value in written.items())
