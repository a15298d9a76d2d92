"""The AsyncAPI document and its page are valid and up to date, and the validation can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import isotherm.schemas
from isotherm.contracts import asyncapi
from isotherm.contracts.paths import DOCS

REMAKE = "out of date: run `make contracts-update`"


def test_the_committed_document_and_page_are_of_today() -> None:
    assert (DOCS / "asyncapi.json").read_text(encoding="utf-8") == asyncapi.text(), REMAKE
    assert (DOCS / "topics.md").read_text(encoding="utf-8") == asyncapi.page(), REMAKE


def test_the_document_is_valid_and_tells_of_every_topic() -> None:
    assert asyncapi.problems(asyncapi.text()) == []
    written = {topic.name for topic in isotherm.schemas.topics() if topic.record is not None}
    assert {channel["address"] for channel in asyncapi.document()["channels"].values()} == written
    operations = asyncapi.document()["operations"]
    assert operations["aggregator-reads-thermostat-data"]["action"] == "receive"
    assert not any("x-planned" in one for one in operations.values())


def test_what_is_only_planned_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    late = next(one for one in isotherm.schemas.topics() if one.name == "thermostat.late")
    planned = replace(late, planned_readers=frozenset({"console"}))
    monkeypatch.setattr(isotherm.schemas, "topics", lambda: [planned])
    operations = asyncapi.document()["operations"]
    assert operations["console-reads-thermostat-late"]["x-planned"] is True
    assert "x-planned" not in operations["demo-reads-thermostat-late"]
    assert "console v1 (planned)" in asyncapi.page()


def test_the_page_tells_of_every_field() -> None:
    page = asyncapi.page()
    for record in isotherm.schemas.records():
        schema = isotherm.schemas.schema(record, isotherm.schemas.versions(record)[-1])
        assert all(f"| {field['name']} |" in page for field in schema["fields"])


_WRITES = "mqtt-proxy-writes-thermostat-data"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda doc: doc["operations"][_WRITES].update(action="publish"), "action"),
        (lambda doc: doc["info"].pop("version"), "info.version"),
        (lambda doc: doc["channels"]["alerts"]["bindings"]["kafka"].update(partitions="many"), "partitions"),
        (lambda doc: doc["channels"]["alerts"].update(adress="alerts"), "adress"),
        (
            lambda doc: doc["operations"][_WRITES]["channel"].update({"$ref": "#/channels/x"}),
            "#/channels/x leads nowhere",
        ),
        (lambda doc: doc["components"]["messages"].pop("alerts-v1"), "#/components/messages/alerts-v1 leads nowhere"),
        (
            lambda doc: doc["components"]["messages"]["alerts-v1"]["payload"]["schema"].update(type="recrod"),
            "alerts-v1: no Avro schema",
        ),
    ],
)
def test_a_wrong_document_is_refused(change: Callable[[dict[str, Any]], object], says: str) -> None:
    document = json.loads(asyncapi.text())
    change(document)
    assert any(says in problem for problem in asyncapi.problems(json.dumps(document)))
