"""Writes of Elasticsearch documents whose ids come again: each only in place of the document that was looked at.

The server compares sequence numbers (Elasticsearch's "Optimistic concurrency control"), so that a bulk request that it
executes late, when a newer one is through already, changes nothing. See docs/adr/0047.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from elasticsearch import ApiError, Elasticsearch

from isotherm.persisters.consuming.ownership import Ownership
from isotherm.persisters.sinks.elasticsearch.bulk_responses import rejected_item
from isotherm.persisters.sinks.elasticsearch.client import NotAllowedError, ask
from isotherm.persisters.sinks.repeated_ids import Effect, Kind
from isotherm.persisters.sinks.sink import Rejected, Row, Unavailable
from isotherm.servicekit import logs

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
Place = tuple[str, str]
"""Index and id."""
_Pending = dict[Place, list[Effect]]


class OrderedWriter:
    """Applies effects to documents; for several threads."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client
        self._mostly_new: dict[str, bool] = {}
        """By index, whether most documents of the last write were not there: then it pays not to look first."""
        self._unreadable: set[str] = set()
        """Indices that cannot be looked at (no right to read, an alias of several): written as they come."""

    def write(
        self, effects: Mapping[Place, Sequence[Effect]], rows: Sequence[Row], ownership: Ownership
    ) -> list[Rejected]:
        """Apply the effects of each document in their order; what the server refused of them.

        Raises Unavailable, SinkConfigError, OwnershipLostError.
        """
        waiting: _Pending = {place: list(theirs) for place, theirs in effects.items()}
        rejected: list[Rejected] = []
        # A document that is there cannot be created, but it can be deleted: that one has to be looked at.
        seen = self._look(
            [
                place
                for place, theirs in waiting.items()
                if theirs[0].kind is Kind.DELETE or not self._mostly_new.get(place[0], True)
            ]
        )
        changed = self._apply(waiting, seen, rows, rejected, ownership)
        self._note_known(effects, {place for place, found in seen.items() if found is not ABSENT} | changed)
        attempts = 0
        while waiting and attempts < _ROUNDS:
            before = _work_in(waiting)
            self._apply(waiting, self._look(list(waiting)), rows, rejected, ownership)
            attempts = attempts + 1 if _work_in(waiting) == before else 0
        return rejected + [_changed_by_others(theirs[0], place[0]) for place, theirs in waiting.items()]

    def _note_known(self, effects: Mapping[Place, Sequence[Effect]], known: Collection[Place]) -> None:
        """Whether it pays to look first, the next time."""
        there = Counter(index for index, _ in known)
        for index, number in Counter(index for index, _ in effects).items():
            self._mostly_new[index] = 2 * there[index] <= number

    def _apply(
        self,
        waiting: _Pending,
        seen: Mapping[Place, _Found],
        rows: Sequence[Row],
        rejected: list[Rejected],
        ownership: Ownership,
    ) -> set[Place]:
        """One effect of each document that waits; those that are through leave `waiting`.

        Returns the documents that were not what they were taken for.
        """
        asked: list[Place] = []
        for place, effects in list(waiting.items()):
            if effects[0].kind is Kind.DELETE and place in seen and seen[place] is ABSENT:
                _through(waiting, place)
            else:
                asked.append(place)
        changed = set()
        # Behind the look: whoever lost the partition before it may have seen a newer owner's documents.
        ownership.check()
        address = _common_index(asked)
        operations = [
            _operation(place, waiting[place][0], seen.get(place), address, is_blind=place[0] in self._unreadable)
            for place in asked
        ]
        for place, outcome in zip(asked, self._send(address, operations, ownership), strict=True):
            effect = waiting[place][0]
            if _is_conflict(outcome):
                changed.add(place)
                continue
            wrong = rejected_item(effect.rows[0], rows[effect.rows[0]], outcome)
            if wrong is not None and not wrong.transient and effect.parts:
                # One of the rows is to blame: each half goes by itself.
                waiting[place][:1] = effect.halves()
                continue
            if wrong is not None:
                rejected.append(wrong)
            if wrong is not None and wrong.transient:
                # What is behind it is offered again with it.
                del waiting[place]
            else:
                _through(waiting, place)
        return changed

    def _send(self, address: str | None, operations: Sequence[bytes], ownership: Ownership) -> list[Mapping[str, Any]]:
        if not operations:
            return []
        body: Any = b"".join(operations)
        try:
            answer = ask(lambda: self._client.bulk(index=address, operations=body, filter_path=_BULK_ANSWER))
        except ApiError as error:
            if error.status_code not in _SPLIT:
                raise
            if len(operations) == 1:
                refusal = {"type": str(error.error), "reason": str(error)}
                return [{"status": error.status_code, "error": refusal}]
            middle = len(operations) // 2
            first = self._send(address, operations[:middle], ownership)
            ownership.check()
            return first + self._send(address, operations[middle:], ownership)
        if not answer["errors"]:
            return [{"status": 200}] * len(operations)
        return [next(iter(item.values())) for item in answer["items"]]

    def _look(self, places: Sequence[Place]) -> dict[Place, _Found]:
        """The documents as they are now; those of indices that cannot be looked at are left out."""
        places = [place for place in places if place[0] not in self._unreadable]
        if not places:
            return {}
        address = _common_index(places)
        what: dict[str, Any] = (
            {"docs": [{"_index": index, "_id": id_} for index, id_ in places]}
            if address is None
            else {"index": address, "ids": [id_ for _, id_ in places]}
        )
        try:
            answer = ask(lambda: self._client.mget(**what, source=False, filter_path=_LOOK_ANSWER))
        except NotAllowedError as error:
            for index in {index for index, _ in places}:
                self._give_up_looking(index, str(error))
            return {}
        found: dict[Place, _Found] = {}
        for place, document in zip(places, answer["docs"], strict=True):
            kind = document.get("error", {}).get("type")
            if kind in _UNREADABLE:
                self._give_up_looking(place[0], kind)
                continue
            if kind is not None and kind not in _TOLD_BY_WRITE:
                raise Unavailable(f"Elasticsearch: index {place[0]}: {kind}")
            is_there = document.get("found", False)
            found[place] = Seen(document["_seq_no"], document["_primary_term"]) if is_there else ABSENT
        return found

    def _give_up_looking(self, index: str, reason: str) -> None:
        if index in self._unreadable:
            return
        self._unreadable.add(index)
        _log.warning(
            "documents cannot be looked at before they are replaced: a request that the server executes late may "
            "replace a newer document; give the user the right to read, and name one index",
            index=index,
            reason=reason,
        )


def _common_index(places: Sequence[Place]) -> str | None:
    """The index of all of them, said once in the address; None where there are several."""
    indices = {index for index, _ in places}
    return indices.pop() if len(indices) == 1 else None


def _operation(where: Place, effect: Effect, seen: _Found, address: str | None, *, is_blind: bool) -> bytes:
    place = b'"_id":' + orjson.dumps(where[1])
    if where[0] != address:
        place += b',"_index":%b' % orjson.dumps(where[0])
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


def _work_in(waiting: _Pending) -> tuple[int, int]:
    """What is left: it goes on as long as rows are through, or fewer of them go together."""
    effects = [effect for theirs in waiting.values() for effect in theirs]
    return sum(len(effect.rows) for effect in effects), len(effects)


def _through(waiting: _Pending, place: Place) -> None:
    del waiting[place][0]
    if not waiting[place]:
        del waiting[place]


def _changed_by_others(effect: Effect, index: str) -> Rejected:
    error = RuntimeError(f"index {index}: the document is being changed by others again and again")
    return Rejected(effect.rows[0], "conflict", error, transient=True)
