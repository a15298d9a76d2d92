"""Documents whose ids come again: requests per batch, refused rows, and which row wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson
import pytest

from isotherm import kcql
from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.sinks.elasticsearch.ordered_writer import DocumentRef, OrderedWriter
from isotherm.persisters.sinks.elasticsearch.product import Product
from isotherm.persisters.sinks.elasticsearch.search_server import SearchServer
from isotherm.persisters.sinks.repeated_ids import Effect, EffectKind, fold

(STATEMENT,) = kcql.parse("INSERT INTO _value.room SELECT * FROM t PK id")
PLAN = compile_plan(STATEMENT, None, "-")


class Server:
    """What Elasticsearch's bulk and multi-get APIs do with documents; `bad` in one is refused, `busy` indices are."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
        self.requests: list[str] = []
        self.busy: set[str] = set()
        self._number = 0

    product = Product.ELASTICSEARCH

    def bulk(self, *, index: str | None, operations: bytes, filter_path: str) -> dict[str, Any]:
        assert filter_path
        self.requests.append("bulk")
        lines = [orjson.loads(line) for line in operations.splitlines()]
        items = []
        while lines:
            ((action, place),) = lines.pop(0).items()
            document = None if action == "delete" else lines.pop(0)
            items.append({action: self._done(action, (place.get("_index", index), place["_id"]), place, document)})
        return {"errors": any("error" in next(iter(item.values())) for item in items), "items": items}

    def _done(self, action: str, key: tuple[str, str], place: dict[str, Any], document: Any) -> dict[str, Any]:
        number, before = self.documents.get(key, (None, {}))
        if key[0] in self.busy:
            return {"status": 429, "error": {"type": "es_rejected_execution_exception"}}
        if (action == "create" and number is not None) or place.get("if_seq_no", number) != number:
            return {"status": 409, "error": {"type": "version_conflict_engine_exception"}}
        changed = document["doc"] if action == "update" else document
        if "bad" in (changed or {}):
            return {"status": 400, "error": {"type": "document_parsing_exception"}}
        self._number += 1
        self.documents.pop(key, None)
        if changed is not None:
            self.documents[key] = self._number, {**before, **changed} if action == "update" else changed
        return {"status": 200}

    def versions(self, *, index: str | None, asked: Mapping[str, Any], filter_path: str) -> dict[str, Any]:
        assert filter_path
        self.requests.append("mget")
        found = []
        keys = [(index or "", id_) for id_ in asked.get("ids", ())]
        for key in keys or [(one.get("_index", index), one["_id"]) for one in asked["docs"]]:
            number = self.documents.get(key, (None,))[0]
            there = {} if number is None else {"_seq_no": number, "_primary_term": 1}
            found.append({"_id": key[1], "found": number is not None, **there})
        return {"docs": found}


def written(
    writer: OrderedWriter, documents: Sequence[tuple[str, str, dict[str, Any]]], kind: EffectKind = EffectKind.PUT
) -> list[tuple[int, bool]]:
    """The refused rows, and whether each refusal is transient."""
    rows = [Row(number, index, id_, {}, 0, None, PLAN) for number, (index, id_, _) in enumerate(documents)]
    effects = [
        (DocumentRef(index, id_), Effect(kind, orjson.dumps(document), None, [number]))
        for number, (index, id_, document) in enumerate(documents)
    ]
    rejected = writer.write(fold(effects), rows, Ownership())
    return [(one.index, one.transient) for one in rejected]


def writer_of(server: Server) -> OrderedWriter:
    return OrderedWriter(cast(SearchServer, server))


def test_a_batch_of_many_indices_takes_no_request_for_each() -> None:
    server = Server()
    writer = writer_of(server)
    for turn in range(3):
        server.requests.clear()
        assert written(writer, [(f"room-{number}", "a", {"n": turn}) for number in range(200)]) == []
        assert server.requests == [["bulk"], ["bulk", "mget", "bulk"], ["mget", "bulk"]][turn]
    assert {document["n"] for _, document in server.documents.values()} == {2}
    assert len(server.documents) == 200


@pytest.mark.parametrize("kind", [EffectKind.PUT, EffectKind.MERGE])
@pytest.mark.parametrize("bad", [0, 500, 999])
def test_one_row_of_many_with_one_id_is_found_in_few_requests(kind: EffectKind, bad: int) -> None:
    server = Server()
    documents = [("i", "a", {"n": number, f"f{number}": 1}) for number in range(1_000)]
    documents[bad][2]["bad"] = True
    refused = written(writer_of(server), documents, kind)
    # A row that another one replaces right behind it is not sent.
    assert refused == ([] if kind is EffectKind.PUT and bad < 999 else [(bad, False)])
    (document,) = (document for _, document in server.documents.values())
    assert document["n"] == (998 if bad == 999 else 999)
    assert len(document) == (1_000 if kind is EffectKind.MERGE else 2)
    assert len(server.requests) <= 50


def test_a_busy_index_holds_up_no_other() -> None:
    server = Server()
    server.busy.add("b")
    assert written(writer_of(server), [("a", "x", {"n": 1}), ("b", "x", {"n": 1}), ("a", "x", {"n": 2})]) == [(1, True)]
    assert [(key, document["n"]) for key, (_, document) in server.documents.items()] == [(("a", "x"), 2)]
