"""Indices that refuse writes for a while: records wait for them and are neither skipped nor dead-lettered."""

from __future__ import annotations

from typing import Any

import pytest
from elasticsearch import Elasticsearch
from sink_world import Writing, documents

from isotherm.persisters.api.sink import Unavailable

pytest_plugins = ("elasticsearch_fixtures",)
pytestmark = pytest.mark.integration

SCHEMA: Any = {"type": "record", "name": "Thing", "fields": [{"name": "id", "type": "string"}]}
WIDER: Any = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "note", "type": "string", "default": ""}]}
ALL = "INSERT INTO {} SELECT * FROM t"
COUNT = 20


def writing(elasticsearch: Any, kcql: str, schema: Any = SCHEMA) -> Writing:
    return Writing("elasticsearch", schema, "t", {"url": elasticsearch.url, "kcql": kcql})


def things(into: Writing, name: str = "d", **more: str) -> list[Any]:
    return [into.prepare({"id": f"{name}{number}", **more}) for number in range(COUNT)]


@pytest.mark.parametrize("block", ["write", "read_only", "read_only_allow_delete"])
@pytest.mark.parametrize("clauses", ["", " PK id"])
def test_a_blocked_index_makes_rows_wait(
    elasticsearch: Any, client: Elasticsearch, index: str, block: str, clauses: str
) -> None:
    into = writing(elasticsearch, ALL.format(index) + clauses)
    assert into.write(*things(into, "before")) == []
    client.indices.put_settings(index=index, settings={f"index.blocks.{block}": True})
    rows = things(into)
    rejected = into.write(*rows)
    assert [(one.index, one.transient) for one in rejected] == [(number, True) for number in range(COUNT)]
    assert "blocked" in str(rejected[0].error)
    client.indices.put_settings(index=index, settings={f"index.blocks.{block}": None})
    assert into.write(*rows) == []
    assert len(documents(client, index)) == 2 * COUNT


def test_a_blocked_index_that_needs_a_field_is_waited_for(
    elasticsearch: Any, client: Elasticsearch, index: str
) -> None:
    into = writing(elasticsearch, ALL.format(index))
    assert into.write(*things(into)) == []
    client.indices.put_settings(index=index, settings={"index.blocks.read_only": True})
    wider = writing(elasticsearch, ALL.format(index), WIDER)
    rows = things(wider, note="x")
    with pytest.raises(Unavailable, match="blocked"):
        wider.write(*rows)
    client.indices.put_settings(index=index, settings={"index.blocks.read_only": None})
    assert wider.write(*rows) == []


def test_a_closed_index_makes_rows_wait(elasticsearch: Any, client: Elasticsearch, index: str) -> None:
    into = writing(elasticsearch, ALL.format(index))
    assert into.write(*things(into, "before")) == []
    client.indices.close(index=index)
    rows = things(into)
    rejected = into.write(*rows)
    assert [one.transient for one in rejected] == [True] * COUNT
    client.indices.open(index=index)
    client.cluster.health(index=index, wait_for_status="yellow")
    assert into.write(*rows) == []
