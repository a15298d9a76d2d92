"""What goes beyond Kafka Connect's REST API, over a fleet in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from console_in_memory import CONFIG, KLASS, World, world_of

from console.letters import Where


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def test_counts_and_lag_of_each_task(world: World) -> None:
    world.create()
    world.say("a", 0, counts={"written": 5}, lag={"t-0": 2})
    found = world.http.get("/isotherm/connectors/a").json()
    assert (found["lag"], found["tasks"][0]["counts"]) == (2, {"written": 5})
    assert [one["name"] for one in world.http.get("/isotherm/connectors").json()] == ["a"]
    assert world.http.get("/isotherm/workers").json()[0]["classes"] == [KLASS]
    assert world.http.get("/connectors/a/topics").json() == {"a": {"topics": ["t"]}}


def test_dead_letters_are_listed_replayed_and_discarded(world: World) -> None:
    box = "/isotherm/dead-letters/a.dead-letters"
    world.create(config=CONFIG | {"errors.deadletterqueue.topic.name": "mine"})
    assert [one["topic"] for one in world.http.get("/isotherm/dead-letters").json()] == ["a.dead-letters", "mine"]
    listed = world.http.get(box).json()
    assert [one["offset"] for one in listed] == [3, 4]
    assert (listed[0]["value"], listed[0]["format"], listed[0]["value_base64"]) == ({"n": 1}, "json", "eyJuIjoxfQ==")
    assert (listed[0]["exception"], listed[0]["headers"], listed[0]["is_replayable"]) == (
        "x.BadError",
        {"own": "1"},
        True,
    )
    assert [one["offset"] for one in world.http.get(f"{box}?after=0/3").json()] == [4]
    assert world.http.get(f"{box}/0/9").status_code == 404
    assert world.http.post(f"{box}/replay", json={"all": True}).json() == {"done": 2, "left": 0}
    world.http.post(f"{box}/discard", json={"letters": [{"partition": 0, "offset": 4}]})
    assert world.boxes.asked == [
        ("replay", "a.dead-letters", None),
        ("discard", "a.dead-letters", {Where(0, 4)}),
    ]
    both = {"all": True, "letters": [{"partition": 0, "offset": 1}]}
    for wrong in ("{}", json.dumps(both), '{"letters": [{"partition": -1, "offset": 1}]}'):
        refused = world.http.post(f"{box}/replay", content=wrong, headers={"content-type": "application/json"})
        assert refused.status_code == 400


def test_replay_needs_a_stopped_sink(world: World) -> None:
    world.create()
    path = "/isotherm/connectors/a/replay"
    assert world.http.post(path, json={"to": "earliest"}).status_code == 409
    planned = world.http.post(path, json={"to": "2", "partition": 0, "dry_run": True})
    assert planned.json() == [{"topic": "t", "partition": 0, "before": 7, "after": 2, "records_to_read": 8}]
    world.http.put("/connectors/a/stop")
    assert world.http.post(path, json={"to": "earliest"}).status_code == 200
    assert world.http.post(path, json={"to": "tomorrow"}).status_code == 400
    assert world.http.post(path, json={"to": "earliest", "topic": "u"}).status_code == 400


def test_kcql_is_explained_or_refused_with_a_caret(world: World) -> None:
    good = world.http.post("/isotherm/kcql/explain", json={"kcql": "INSERT INTO a SELECT * FROM t"}).json()
    assert (len(good["statements"]), good["error"]) == (1, None)
    assert "^" in world.http.post("/isotherm/kcql/explain", json={"kcql": "INSERT INTO a SELCT"}).json()["error"]


def test_the_additions_have_an_openapi_document(world: World) -> None:
    paths = world.http.get("/isotherm/openapi.json").json()["paths"]
    assert {"/connectors/{name}/replay", "/dead-letters/{topic}/discard", "/workers"} <= paths.keys()


def test_what_is_written_is_checked_with_a_caret_under_the_place(world: World) -> None:
    text = "".join(f"{key}={value}\n" for key, value in CONFIG.items())
    fine = world.http.post("/isotherm/check", json={"text": text, "name": "a"}).json()
    assert fine == {"problems": [], "notices": []}
    wrong = text.replace("SELECT *", "SELCT *") + "print.mod=all\n"
    found = world.http.post("/isotherm/check", json={"text": wrong, "name": "a"}).json()
    assert "^^^^^" in found["problems"][0]
    assert "did you mean print.mode?" in found["notices"][0]
    assert world.http.post("/isotherm/check", json={"text": "what"}).json()["problems"]
