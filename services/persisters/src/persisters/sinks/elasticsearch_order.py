"""Writes of Elasticsearch documents whose ids come again: each only in place of the document that was looked at.

The server compares sequence numbers (Elasticsearch's "Optimistic concurrency control"), so that a bulk request that it
executes late, when a newer one is through already, changes nothing. See docs/adr/0047.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from elasticsearch import ApiError, Elasticsearch

from persisters.ownership import Ownership
from persisters.sink import Rejected, Row, Unavailable
from persisters.sinks.bulk_answers import rejected_item
from persisters.sinks.elasticsearch_client import NotAllowedError, ask
from persisters.sinks.order import Effect, Kind
from servicekit import logs

_log = logs.logger(__name__)

_ROUNDS = 10
"""Attempts at a document that others change as well."""
_CONFLICT = 409
_BULK_ANSWER = "errors,items.*.status,items.*.error"
_LOOK_ANSWER = "docs._id,docs._seq_no,docs._primary_term,docs.found,docs.error.type"
_SPLIT = frozenset((400, 413))
_NO_DOCUMENT = "document_missing_exception"
_TOLD_BY_WRITE = frozenset(("index_not_found_exception", "index_closed_exception", "cluster_block_exception"))
"""Errors of a look that the write meets as well, and answers with what they mean for its rows."""
_UNREADABLE = frozenset(("security_exception", "illegal_argument_exception"))
"""No right to read, or an alias of several indices."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A document as it was looked at: its sequence number and primary term."""

    number: int
    term: int


ABSENT = None
_Found = Seen | None
_Pending = dict[str, list[Effect]]


class OrderedWriter:
    """Applies effects to documents; for several threads."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client
        self._mostly_new: dict[str, bool] = {}
        """By index, whether most documents of the last write were not there: then it pays not to look first."""
        self._unreadable: set[str] = set()
        """Indices that cannot be looked at (no right to read, an alias of several): written as they come."""

    def write(
        self, index: str, effects: Mapping[str, Sequence[Effect]], rows: Sequence[Row], ownership: Ownership
    ) -> list[Rejected]:
        """Apply the effects of each id in their order; what the server refused of them.

        Raises Unavailable, SinkConfigError, OwnershipLostError.
        """
        waiting: _Pending = {id_: list(theirs) for id_, theirs in effects.items()}
        rejected: list[Rejected] = []
        # A document that is there cannot be created, but it can be deleted: that one has to be looked at.
        deletes = any(theirs[0].kind is Kind.DELETE for theirs in waiting.values())
        is_blind = self._mostly_new.get(index, True) and not deletes
        seen = {} if is_blind else self._look(index, list(waiting))
        changed = self._apply(index, waiting, seen, rows, rejected, ownership)
        known = len(changed) if is_blind else sum(found is not ABSENT for found in seen.values())
        self._mostly_new[index] = 2 * known <= len(effects)
        attempts = 0
        while waiting and attempts < _ROUNDS:
            before = _rows_of(waiting)
            self._apply(index, waiting, self._look(index, list(waiting)), rows, rejected, ownership)
            attempts = attempts + 1 if _rows_of(waiting) == before else 0
        return rejected + [_changed_by_others(theirs[0], index) for theirs in waiting.values()]

    def _apply(
        self,
        index: str,
        waiting: _Pending,
        seen: Mapping[str, _Found],
        rows: Sequence[Row],
        rejected: list[Rejected],
        ownership: Ownership,
    ) -> list[str]:
        """One effect of each id that waits; those that are through leave `waiting`. Returns the ids that changed."""
        is_blind = index in self._unreadable
        asked = []
        for id_, effects in list(waiting.items()):
            if effects[0].kind is Kind.DELETE and id_ in seen and seen[id_] is ABSENT and not is_blind:
                _through(waiting, id_)
            else:
                asked.append((id_, _operation(id_, effects[0], seen.get(id_), is_blind=is_blind)))
        changed = []
        # Behind the look: whoever lost the partition before it may have seen a newer owner's documents.
        ownership.check()
        for (id_, _), outcome in zip(asked, self._send(index, asked, ownership), strict=True):
            effect = waiting[id_][0]
            if _is_conflict(outcome):
                changed.append(id_)
                continue
            wrong = rejected_item(effect.rows[0], rows[effect.rows[0]], outcome)
            if wrong is not None and not wrong.transient and effect.parts:
                # One of the rows is to blame: each goes by itself.
                waiting[id_][:1] = effect.parts
                changed.append(id_)
                continue
            if wrong is not None:
                rejected.append(wrong)
            if wrong is not None and wrong.transient:
                # What is behind it is offered again with it.
                del waiting[id_]
            else:
                _through(waiting, id_)
        return changed

    def _send(self, index: str, asked: Sequence[tuple[str, bytes]], ownership: Ownership) -> list[Mapping[str, Any]]:
        if not asked:
            return []
        body: Any = b"".join(operation for _, operation in asked)
        try:
            answer = ask(lambda: self._client.bulk(index=index, operations=body, filter_path=_BULK_ANSWER))
        except ApiError as error:
            if error.status_code not in _SPLIT:
                raise
            if len(asked) == 1:
                refusal = {"type": str(error.error), "reason": str(error)}
                return [{"status": error.status_code, "error": refusal}]
            middle = len(asked) // 2
            first = self._send(index, asked[:middle], ownership)
            ownership.check()
            return first + self._send(index, asked[middle:], ownership)
        if not answer["errors"]:
            return [{"status": 200}] * len(asked)
        return [next(iter(item.values())) for item in answer["items"]]

    def _look(self, index: str, ids: Sequence[str]) -> dict[str, _Found]:
        if index in self._unreadable:
            return {}
        try:
            answer = ask(lambda: self._client.mget(index=index, ids=list(ids), source=False, filter_path=_LOOK_ANSWER))
        except NotAllowedError as error:
            return self._give_up_looking(index, str(error))
        found: dict[str, _Found] = {}
        for id_, document in zip(ids, answer["docs"], strict=True):
            kind = document.get("error", {}).get("type")
            if kind in _UNREADABLE:
                return self._give_up_looking(index, kind)
            if kind is not None and kind not in _TOLD_BY_WRITE:
                raise Unavailable(f"Elasticsearch: index {index}: {kind}")
            is_there = document.get("found", False)
            found[id_] = Seen(document["_seq_no"], document["_primary_term"]) if is_there else ABSENT
        return found

    def _give_up_looking(self, index: str, reason: str) -> dict[str, _Found]:
        self._unreadable.add(index)
        _log.warning(
            "documents cannot be looked at before they are replaced: a request that the server executes late may "
            "replace a newer document; give the user the right to read, and name one index",
            index=index,
            reason=reason,
        )
        return {}


def _operation(id_: str, effect: Effect, seen: _Found, *, is_blind: bool) -> bytes:
    place = b'"_id":' + orjson.dumps(id_)
    if seen is not None:
        place += b',"if_seq_no":%d,"if_primary_term":%d' % (seen.number, seen.term)
    if effect.kind is Kind.DELETE:
        return b'{"delete":{%b}}\n' % place
    if effect.pipeline is not None:
        place += b',"pipeline":%b' % orjson.dumps(effect.pipeline)
    if effect.kind is Kind.MERGE and is_blind:
        return b'{"update":{%b,"retry_on_conflict":3}}\n{"doc_as_upsert":true,"doc":%b}\n' % (place, effect.document)
    if effect.kind is Kind.MERGE and seen is not None:
        return b'{"update":{%b}}\n{"doc":%b}\n' % (place, effect.document)
    action = b"index" if seen is not None or is_blind else b"create"
    return b'{"%b":{%b}}\n%b\n' % (action, place, effect.document)


def _is_conflict(outcome: Mapping[str, Any]) -> bool:
    """Whether the document was not what it was taken for."""
    return int(outcome["status"]) == _CONFLICT or outcome.get("error", {}).get("type") == _NO_DOCUMENT


def _rows_of(waiting: _Pending) -> int:
    return sum(len(effect.rows) for effects in waiting.values() for effect in effects)


def _through(waiting: _Pending, id_: str) -> None:
    del waiting[id_][0]
    if not waiting[id_]:
        del waiting[id_]


def _changed_by_others(effect: Effect, index: str) -> Rejected:
    error = RuntimeError(f"index {index}: the document is being changed by others again and again")
    return Rejected(effect.rows[0], "conflict", error, transient=True)
