"""Requests from rows: bodies of a bounded size, addresses, keys of idempotency, signatures. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import RowError
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.persisters.sinks.http.connector_keys import JSON_ARRAY, NDJSON, RECORD
from isotherm.persisters.sinks.http.settings import ID, TARGET, HttpSettings
from isotherm.servicekit.webhooks.signature import header_value, signature

_DIGEST_LETTERS = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows for one request, all with one address."""

    method: str
    path: str
    indices: Sequence[int]
    """Of the rows in their batch."""
    documents: Sequence[bytes]
    """The rows as JSON; of a deletion the only one is empty."""

    def halves(self) -> list[Chunk]:
        """Return two chunks with half of the rows each."""
        middle = len(self.indices) // 2
        return [
            Chunk(self.method, self.path, self.indices[part], self.documents[part])
            for part in (slice(None, middle), slice(middle, None))
        ]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Its headers may be secrets, so they are not shown."""

    method: str
    path: str
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Requests:
    """Makes the requests of a connector."""

    def __init__(self, settings: HttpSettings, connector: str) -> None:
        self._settings = settings
        self._connector = connector
        self._is_single = settings.format == RECORD

    def chunks(self, batch: Batch, failed: list[FailedRow]) -> Iterator[Chunk]:
        """Return the rows of a batch in chunks, in their order; add rows that make no document to `failed`."""
        indices: list[int] = []
        documents: list[bytes] = []
        size, place = 0, ("", "")
        for index, row in enumerate(batch.rows):
            try:
                found = self._place(row)
                document = self._document(row)
            except NotADocumentError as error:
                failed.append(FailedRow(index, "document", error))
                continue
            except RowError as error:
                failed.append(FailedRow(index, error.reason, error))
                continue
            is_full = size + len(document) > self._settings.max_bytes
            if indices and (self._is_single or is_full or found != place):
                yield Chunk(*place, indices, documents)
                indices, documents, size = [], [], 0
            indices.append(index)
            documents.append(document)
            # With the comma or line break behind it.
            size, place = size + len(document) + 1, found
        if indices:
            yield Chunk(*place, indices, documents)

    def request(self, chunk: Chunk, batch: Batch, now: datetime) -> Request:
        """Return the request of a chunk of a batch at the time `now` (UTC)."""
        body = b"" if chunk.method == "DELETE" else self._body(chunk.documents)
        headers = dict(self._settings.headers)
        key = self._idempotency_key(chunk, batch, body)
        if self._settings.idempotency_header:
            headers[self._settings.idempotency_header] = key
        if self._settings.signing_key:
            headers |= signature(self._settings.signing_key, key, now, body)
        return Request(chunk.method, chunk.path, headers, body)

    def _idempotency_key(self, chunk: Chunk, batch: Batch, body: bytes) -> str:
        """Return a key that is the same whenever these rows are sent to this address, also after a restart."""
        first, last = batch.rows[chunk.indices[0]].offset, batch.rows[chunk.indices[-1]].offset
        told = hashlib.sha256(f"{self._connector}\n{chunk.method} {chunk.path}\n".encode() + body)
        return header_value(f"{batch.topic}-{batch.partition}-{first}-{last}-{told.hexdigest()[:_DIGEST_LETTERS]}")

    def _body(self, documents: Sequence[bytes]) -> bytes:
        if self._settings.format == JSON_ARRAY:
            rows = b"[%b]" % b",".join(documents)
        elif self._settings.format == NDJSON:
            rows = b"".join(b"%b\n" % document for document in documents)
        else:
            (rows,) = documents
        return self._settings.before_rows + rows + self._settings.after_rows

    def _place(self, row: Row) -> tuple[str, str]:
        address = self._settings.address
        path = address.path
        if address.names_target:
            path = path.replace(TARGET, _segment("target", row.target))
        if address.names_id:
            path = path.replace(ID, _segment("id", row.id))
        return ("DELETE" if row.values is None else self._settings.method), path

    def _document(self, row: Row) -> bytes:
        if row.values is None:
            return b""
        document = to_json(row.values)
        if len(document) > self._settings.max_bytes:
            raise RowError("too_large", f"the row has {len(document)} bytes, a body at most {self._settings.max_bytes}")
        return document


def _segment(name: str, text: str) -> str:
    """Return a text as one segment of a path (RFC 3986, 3.3). Raises RowError for one that stands for another place."""
    if text in ("", ".", ".."):
        raise RowError("target", f"the {name} {text!r} names no place below the address")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise RowError("target", f"the {name} is not Unicode") from error
