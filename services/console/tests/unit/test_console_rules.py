"""Rules over the console's REST API and page: checked by the alerts service, stored with who asked, tried, removed."""

from __future__ import annotations

from typing import Any

import pytest
from console_in_memory import NOW, World, world_of
from pydantic import SecretStr

from isotherm.console.devices import rules as rules_module
from isotherm.console.devices.rules import AlertRule, record_of, rule_of
from isotherm.console.settings import AuthSettings
from isotherm.kcql.dates import utc

RULE: dict[str, Any] = {"kind": "above", "metric": "temperature", "threshold": 28}
PATH = "/isotherm/rules/temperature.above"


def put(world: World, **rule: Any) -> Any:
    return world.http.put(PATH, json={"rule": RULE | rule})


def test_a_rule_is_checked_and_stored_once() -> None:
    with world_of() as world:
        first, second = put(world), put(world)
        stored = {
            "rule_id": "temperature.above",
            "rule": RULE,
            "problem": None,
            "created_by": "anonymous",
            "created_at": NOW,
            "updated_by": "anonymous",
            "updated_at": NOW,
        }
        assert first.json() == second.json() == world.http.get(PATH).json() == stored
        assert world.http.get("/isotherm/rules").json() == [stored]
        # The request and its answer are forgotten; the rule stays.
        assert [(topic, key, record and record["role"]) for topic, key, record in world.records] == [
            ("isotherm.rules", "trial/1", "trial"),
            ("isotherm.rules", "trial/1", None),
            ("isotherm.rules", "outcome/trial/1", None),
            ("isotherm.rules", "temperature.above", "rule"),
        ]


def test_a_rule_that_the_alerts_service_refuses_is_not_stored() -> None:
    with world_of() as world:
        put(world)
        world.rule_answer = {"problem": "threshold = 'x': must be a number"}
        answer = put(world, threshold="x")
        assert (answer.status_code, answer.json()["message"]) == (400, "threshold = 'x': must be a number")
        assert world.http.get(PATH).json()["rule"] == RULE


def test_without_the_alerts_service_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "_CHECK_S", 0.01)
    with world_of() as world:
        world.rule_answer = None
        answer = put(world)
        assert answer.status_code == 503
        assert "does not answer" in answer.json()["message"]
        assert world.http.get("/isotherm/rules").json() == []


def test_a_rule_is_tried_and_nothing_stays() -> None:
    with world_of() as world:
        world.rule_answer = {"fired": 12, "devices": 3, "readings": 4_000, "from_ms": NOW - 9, "until_ms": NOW}
        answer = world.http.post("/isotherm/rule-trials", json={"rule": RULE, "hours": 2})
        assert answer.json() == {
            "fired": 12,
            "devices": 3,
            "readings": 4_000,
            "from": NOW - 9,
            "until": NOW,
            "is_complete": True,
        }
        assert world.records[0][2]["hours"] == 2
        assert [record for _, _, record in world.records[1:]] == [None, None]


def test_a_removed_rule_is_a_tombstone() -> None:
    with world_of() as world:
        put(world)
        assert world.http.delete(PATH).status_code == 204
        assert [key for _, key, record in world.records if record is None][-2:] == [
            "temperature.above",
            "outcome/temperature.above",
        ]
        assert (world.http.get(PATH).status_code, world.http.delete(PATH).status_code) == (404, 404)


@pytest.mark.parametrize(
    ("method", "path", "body", "why"),
    [
        ("PUT", "/isotherm/rules/other", {"rule": RULE}, "make 'temperature.above'"),
        ("PUT", PATH, {"rule": RULE | {"name": "x" * 70_000}}, "more than 65536"),
        ("PUT", PATH, {"rule": []}, "dictionary"),
        ("POST", "/isotherm/rule-trials", {"rule": RULE, "hours": 169}, "1 to 168"),
    ],
)
def test_what_cannot_be_asked_is_named(method: str, path: str, body: Any, why: str) -> None:
    with world_of() as world:
        answer = world.http.request(method, path, json=body)
        assert (answer.status_code, why in answer.json()["message"]) == (400, True)
        assert world.records == []


def test_a_reader_changes_and_tries_no_rule() -> None:
    auth = AuthSettings(reader_tokens={"ann": SecretStr("reader-token-1")})
    with world_of(auth) as world:
        headers = {"Authorization": "Bearer reader-token-1"}
        assert world.http.get("/isotherm/rules", headers=headers).status_code == 200
        for method, path in (("PUT", PATH), ("DELETE", PATH), ("POST", "/isotherm/rule-trials")):
            assert world.http.request(method, path, json={"rule": RULE}, headers=headers).status_code == 403


def test_the_page_shows_why_a_rule_is_not_in_force() -> None:
    with world_of() as world:
        put(world)
        about = "outcome/temperature.above"
        outcome = AlertRule(about, "outcome", "", "alerts", NOW, "alerts", NOW, problem="<b>bad</b>")
        world.rules.rules.update(about, outcome)
        assert world.http.get(PATH).json()["problem"] == "<b>bad</b>"
        page = world.http.get("/ui/rules").text
        assert "temperature.above" in page
        assert "&lt;b&gt;bad&lt;/b&gt;" in page


def test_the_form_tries_stores_and_removes() -> None:
    with world_of() as world:
        text = '{"kind": "below", "metric": "t", "name": "cold", "threshold": 3}'
        world.rule_answer = {"fired": 7, "devices": 2, "readings": 50, "from_ms": NOW, "until_ms": NOW}
        assert "opened 7 alerts of 2 devices" in world.http.post("/ui/rules", data={"rule": text, "action": "try"}).text
        assert world.http.post("/ui/rules", data={"rule": text, "action": "store"}).status_code == 303
        assert [one.rule_id for one in world.rules.rules.listed()] == ["t.cold"]
        assert "cold" in world.http.get("/ui/rules?rule=t.cold").text
        bad = world.http.post("/ui/rules", data={"rule": "{", "action": "store"})
        assert (bad.status_code, "The rule is not JSON" in bad.text) == (400, True)
        assert world.http.post("/ui/rules/delete", data={"rule": "t.cold"}).status_code == 303
        assert world.rules.rules.listed() == []


def test_a_record_survives_its_form() -> None:
    rule = AlertRule("t.hot", "rule", "{}", "ann", NOW, "bob", NOW + 1, from_ms=NOW, until_ms=None)
    record = record_of(rule)
    times = {name: utc(record[name]) for name in ("created_at", "updated_at", "from")}
    assert rule_of(record | times) == rule
