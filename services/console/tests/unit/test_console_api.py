"""The calls under `/isotherm`, over a cluster in memory."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from console_in_memory import CONFIG, KLASS, NOW, World, world_of

from isotherm.console.dead_letters.queue import RecordPosition
from isotherm.console.dead_letters.record import MAX_BYTES, QueuedRecord


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


def test_dead_letter_records_are_listed_replayed_and_discarded(world: World) -> None:
    queue = "/isotherm/dead-letter-queues/a.dead-letters"
    world.create(config=CONFIG | {"errors.deadletterqueue.topic.name": "mine"})
    assert [one["topic"] for one in world.http.get("/isotherm/dead-letter-queues").json()] == ["a.dead-letters", "mine"]
    listed = world.http.get(f"{queue}/records").json()
    assert [one["offset"] for one in listed] == [3, 4]
    assert (listed[0]["value"], listed[0]["format"], listed[0]["is_cut"]) == ({"n": 1}, "json", False)
    assert world.http.get(f"{queue}/records/0/3").json() == listed[0] | {
        "value_base64": "eyJuIjoxfQ==",
        "key_base64": "aw==",
    }
    assert (listed[0]["exception"], listed[0]["headers"], listed[0]["is_replayable"]) == (
        "x.BadError",
        {"own": "1"},
        True,
    )
    assert [one["offset"] for one in world.http.get(f"{queue}/records?after=0/3").json()] == [4]
    assert world.http.get(f"{queue}/records/0/9").status_code == 404
    assert world.http.post(f"{queue}/replay", json={"all": True}).json() == {"done": 2, "not_replayable": 0}
    world.http.post(f"{queue}/discard", json={"records": [{"partition": 0, "offset": 4}]})
    assert world.queues.asked == [
        ("replay", "a.dead-letters", None),
        ("discard", "a.dead-letters", {RecordPosition(0, 4)}),
    ]
    both = {"all": True, "records": [{"partition": 0, "offset": 1}]}
    for wrong in ("{}", json.dumps(both), '{"records": [{"partition": -1, "offset": 1}]}'):
        refused = world.http.post(f"{queue}/replay", content=wrong, headers={"content-type": "application/json"})
        assert refused.status_code == 400


LARGE = 256 * 1024


def test_a_list_of_large_records_is_bounded_and_continues_where_it_ended(world: World) -> None:
    queue = "/isotherm/dead-letter-queues/a.dead-letters"
    headers: list[tuple[str, str | bytes | None]] = [
        ("__connect.errors.topic", b"t"),
        ("__connect.errors.exception.message", b"m" * LARGE),
        ("own", b"h" * LARGE),
    ]
    values = (b"\xff" * LARGE, b"t" * LARGE, b"[" + b"1," * LARGE + b"2]")
    world.queues.records = [
        QueuedRecord("a.dead-letters", 0, n, NOW, b"k" * LARGE, values[n % 3], headers) for n in range(300)
    ]
    seen: list[int] = []
    path: str | None = f"{queue}/records?limit=1000"
    while path is not None:
        answer = world.http.get(path)
        assert len(answer.content) < MAX_BYTES
        listed = answer.json()
        assert all(one["is_cut"] and len(one["value"]) < 3_000 and "value_base64" not in one for one in listed)
        seen += [one["offset"] for one in listed]
        path = f"{queue}/records{answer.links['next']['url']}" if answer.links else None
    assert seen == list(range(300))
    page = world.http.get("/ui/dead-letter-queues/a.dead-letters")
    assert len(page.content) < MAX_BYTES
    assert 'href="?after=0/' in page.text
    whole = world.http.get(f"{queue}/records/0/1").json()
    assert (len(whole["headers"]["own"]), len(whole["key"]), whole["is_cut"]) == (LARGE, LARGE, False)
    assert base64.b64decode(whole["value_base64"]) == values[1]


@pytest.mark.parametrize("number", [str(2**63), "9" * 5_000, "-1", "x"])
def test_invalid_positions_are_refused(world: World, number: str) -> None:
    queue = "dead-letter-queues/a.dead-letters"
    assert world.http.get(f"/isotherm/{queue}/records/0/{number}").status_code == 400
    assert world.http.get(f"/isotherm/{queue}/records?after=0/{number}").status_code == 400
    assert world.http.get(f"/ui/{queue}/0/{number}").status_code == 404
    assert world.http.get(f"/ui/{queue}?after=0/{number}").status_code == 400
    body = f'{{"records": [{{"partition": 0, "offset": {number}}}]}}'
    sent = world.http.post(f"/isotherm/{queue}/replay", content=body, headers={"content-type": "application/json"})
    assert sent.status_code == 400
    assert world.queues.asked == []


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
    assert {"/connectors/{name}/replay", "/dead-letter-queues/{topic}/discard", "/workers"} <= paths.keys()


def test_the_editor_s_text_is_validated_with_a_caret_under_the_error(world: World) -> None:
    text = "".join(f"{key}={value}\n" for key, value in CONFIG.items())
    fine = world.http.post("/isotherm/check", json={"text": text, "name": "a"}).json()
    assert fine == {"problems": [], "notices": []}
    wrong = text.replace("SELECT *", "SELCT *") + "print.mod=all\n"
    found = world.http.post("/isotherm/check", json={"text": wrong, "name": "a"}).json()
    assert "^^^^^" in found["problems"][0]
    assert "did you mean print.mode?" in found["notices"][0]
    assert world.http.post("/isotherm/check", json={"text": "what"}).json()["problems"]
