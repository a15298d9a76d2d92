"""Writes documents whose ids occur again: each write replaces only the version of the document that was read before.

The server compares sequence numbers (Elasticsearch's "Optimistic concurrency control"), so a bulk request that it
executes late, after a newer one, changes nothing. See docs/adr/0047.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.row import FailedRow, Row
from isotherm.persisters.api.sink import Unavailable
from isotherm.persisters.sinks.elasticsearch.bulk_responses import failed_item
from isotherm.persisters.sinks.elasticsearch.search_server import NotAllowedError, RequestRefusedError, SearchServer
from isotherm.persisters.sinks.repeated_ids import Effect, EffectKind
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_ROUNDS = 10
"""Attempts at a document that others change as well."""
_CONFLICT = 409
_BULK_RESPONSE = "errors,items.*.status,items.*.error"
_READ_RESPONSE = "docs._id,docs._seq_no,docs._primary_term,docs.found,docs.error.type"
_SPLIT = frozenset((400, 413))
_NO_DOCUMENT = "document_missing_exception"
_SHOWN_BY_WRITE = frozenset(("index_not_found_exception", "index_closed_exception", "cluster_block_exception"))
"""Errors of a read that the write meets as well; its answer says what they mean for the rows."""
_UNREADABLE = frozenset(("security_exception", "illegal_argument_exception"))
"""No right to read, or an alias of several indices."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The version of a document that was read: its sequence number and primary term."""

    number: int
    term: int


ABSENT = None
_Found = Seen | None


class DocumentRef(NamedTuple):
    """What names a document: its index, its id and, if it has one, its routing value."""

    index_name: str
    id: str
    routing: str | None = None


_Pending = dict[DocumentRef, list[Effect]]


class OrderedWriter:
    """Applies effects to documents; safe for several threads."""

    def __init__(self, server: SearchServer) -> None:
        self._server = server
        self._mostly_new: dict[str, bool] = {}
        """By index, whether most documents of the last write were new: then reading them first does not pay off."""
        self._unreadable: set[str] = set()
        """Indices that cannot be read (no right to read, an alias of several): written without comparing versions."""

    def write(
        self, effects: Mapping[DocumentRef, Sequence[Effect]], rows: Sequence[Row], ownership: Ownership
    ) -> list[FailedRow]:
        """Apply the effects of each document in their order; return the rows that the server refused.

        Raises Unavailable, SinkConfigError, OwnershipLostError.
        """
        waiting: _Pending = {document: list(theirs) for document, theirs in effects.items()}
        failed: list[FailedRow] = []
        # A document that exists cannot be created, but it can be deleted: a delete needs the version that is read
        # first.
        seen = self._read(
            [
                document
                for document, theirs in waiting.items()
                if theirs[0].kind is EffectKind.DELETE or not self._mostly_new.get(document.index_name, True)
            ]
        )
        changed = self._apply(waiting, seen, rows, failed, ownership)
        self._note_known(effects, {document for document, found in seen.items() if found is not ABSENT} | changed)
        attempts = 0
        while waiting and attempts < _ROUNDS:
            before = _remaining(waiting)
            self._apply(waiting, self._read(list(waiting)), rows, failed, ownership)
            attempts = attempts + 1 if _remaining(waiting) == before else 0
        return failed + [_changed_by_others(theirs[0], document.index_name) for document, theirs in waiting.items()]

    def _note_known(self, effects: Mapping[DocumentRef, Sequence[Effect]], known: Collection[DocumentRef]) -> None:
        """Note for the next write whether reading first pays off."""
        there = Counter(document.index_name for document in known)
        for index, number in Counter(document.index_name for document in effects).items():
            self._mostly_new[index] = 2 * there[index] <= number

    def _apply(
        self,
        waiting: _Pending,
        seen: Mapping[DocumentRef, _Found],
        rows: Sequence[Row],
        failed: list[FailedRow],
        ownership: Ownership,
    ) -> set[DocumentRef]:
        """Send one effect of each waiting document; remove from `waiting` what is done.

        Returns the documents whose version was not the expected one.
        """
        asked: list[DocumentRef] = []
        for document, effects in list(waiting.items()):
            if effects[0].kind is EffectKind.DELETE and document in seen and seen[document] is ABSENT:
                _finish(waiting, document)
            else:
                asked.append(document)
        changed = set()
        # After the read: a task that lost the partition before it may have read a newer owner's documents.
        ownership.check()
        address = _common_index(asked)
        operations = [
            _operation(
                document,
                waiting[document][0],
                seen.get(document),
                address,
                is_blind=document.index_name in self._unreadable,
            )
            for document in asked
        ]
        for document, outcome in zip(asked, self._send(address, operations, ownership), strict=True):
            effect = waiting[document][0]
            if _is_conflict(outcome):
                changed.add(document)
                continue
            wrong = failed_item(effect.rows[0], rows[effect.rows[0]], outcome)
            if wrong is not None and not wrong.transient and effect.parts:
                # One of the rows is to blame: send each half by itself.
                waiting[document][:1] = effect.halves()
                continue
            if wrong is not None:
                failed.append(wrong)
            if wrong is not None and wrong.transient:
                # The effects after it are written again together with it.
                del waiting[document]
            else:
                _finish(waiting, document)
        return changed

    def _send(self, address: str | None, operations: Sequence[bytes], ownership: Ownership) -> list[Mapping[str, Any]]:
        if not operations:
            return []
        try:
            answer = self._server.bulk(index=address, operations=b"".join(operations), filter_path=_BULK_RESPONSE)
        except RequestRefusedError as refused:
            if refused.status not in _SPLIT:
                raise
            if len(operations) == 1:
                return [{"status": refused.status, "error": {"type": refused.kind, "reason": str(refused)}}]
            middle = len(operations) // 2
            first = self._send(address, operations[:middle], ownership)
            ownership.check()
            return first + self._send(address, operations[middle:], ownership)
        if not answer["errors"]:
            return [{"status": 200}] * len(operations)
        return [next(iter(item.values())) for item in answer["items"]]

    def _read(self, documents: Sequence[DocumentRef]) -> dict[DocumentRef, _Found]:
        """Return the current versions of the documents, without those of indices that cannot be read."""
        documents = [document for document in documents if document.index_name not in self._unreadable]
        if not documents:
            return {}
        address = _common_index(documents)
        try:
            answer = self._server.versions(index=address, asked=_asked(documents, address), filter_path=_READ_RESPONSE)
        except NotAllowedError as error:
            for index in {document.index_name for document in documents}:
                self._give_up_reading(index, str(error))
            return {}
        found: dict[DocumentRef, _Found] = {}
        for document, response in zip(documents, answer["docs"], strict=True):
            kind = response.get("error", {}).get("type")
            if kind in _UNREADABLE:
                self._give_up_reading(document.index_name, kind)
                continue
            if kind is not None and kind not in _SHOWN_BY_WRITE:
                raise Unavailable(f"{self._server.product}: index {document.index_name}: {kind}")
            exists = response.get("found", False)
            found[document] = Seen(response["_seq_no"], response["_primary_term"]) if exists else ABSENT
        return found

    def _give_up_reading(self, index: str, reason: str) -> None:
        if index in self._unreadable:
            return
        self._unreadable.add(index)
        _log.warning(
            "documents cannot be read before they are replaced: a request that the server executes late may replace a "
            "newer document; give the user the right to read, and name one index",
            index=index,
            reason=reason,
        )


def _common_index(documents: Sequence[DocumentRef]) -> str | None:
    """Return the index of all documents, to write once in the request's address; None if there are several."""
    indices = {document.index_name for document in documents}
    return indices.pop() if len(indices) == 1 else None


def _asked(documents: Sequence[DocumentRef], address: str | None) -> dict[str, Any]:
    """Return the body of a request for documents; the short form if they need no more than their ids."""
    if address is not None and all(document.routing is None for document in documents):
        return {"ids": [document.id for document in documents]}
    return {
        "docs": [
            {
                "_id": id_,
                **({"_index": index} if index != address else {}),
                **({"routing": routing} if routing is not None else {}),
            }
            for index, id_, routing in documents
        ]
    }


def _operation(document: DocumentRef, effect: Effect, seen: _Found, address: str | None, *, is_blind: bool) -> bytes:
    metadata = b'"_id":' + orjson.dumps(document.id)
    if document.index_name != address:
        metadata += b',"_index":%b' % orjson.dumps(document.index_name)
    if document.routing is not None:
        metadata += b',"routing":%b' % orjson.dumps(document.routing)
    if seen is not None:
        metadata += b',"if_seq_no":%d,"if_primary_term":%d' % (seen.number, seen.term)
    if effect.kind is EffectKind.DELETE:
        return b'{"delete":{%b}}\n' % metadata
    if effect.pipeline is not None:
        metadata += b',"pipeline":%b' % orjson.dumps(effect.pipeline)
    if effect.kind is EffectKind.MERGE and is_blind:
        return b'{"update":{%b,"retry_on_conflict":3}}\n{"doc_as_upsert":true,"doc":%b}\n' % (metadata, effect.document)
    if effect.kind is EffectKind.MERGE and seen is not None:
        return b'{"update":{%b}}\n{"doc":%b}\n' % (metadata, effect.document)
    action = b"index" if seen is not None or is_blind else b"create"
    return b'{"%b":{%b}}\n%b\n' % (action, metadata, effect.document)


def _is_conflict(outcome: Mapping[str, Any]) -> bool:
    """Whether the document did not have the expected version."""
    return int(outcome["status"]) == _CONFLICT or outcome.get("error", {}).get("type") == _NO_DOCUMENT


def _remaining(waiting: _Pending) -> tuple[int, int]:
    """Return how much is left: attempts continue while rows are done or effects are split."""
    effects = [effect for theirs in waiting.values() for effect in theirs]
    return sum(len(effect.rows) for effect in effects), len(effects)


def _finish(waiting: _Pending, document: DocumentRef) -> None:
    del waiting[document][0]
    if not waiting[document]:
        del waiting[document]


def _changed_by_others(effect: Effect, index: str) -> FailedRow:
    error = RuntimeError(f"index {index}: other writers keep changing the document")
    return FailedRow(effect.rows[0], "conflict", error, transient=True)
