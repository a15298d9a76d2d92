"""The web console's pages, over a fleet in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_in_memory import CONFIG, KLASS, World, world_of

from console.letters import Where


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def test_the_pages_show_the_fleet_without_secrets(world: World) -> None:
    world.create()
    world.say("a", 0, "FAILED", trace="wrong: <hunter22>", counts={"read": 5}, lag={"t-0": 1_200})
    for service in ("aggregator", "isotherm-alerts"):
        world.say(service, 0)
    overview = world.http.get("/ui/")
    assert overview.status_code == 200
    for expected in (
        "<svg",
        "lag 1,200",
        "aggregator",
        "FAILED",
        'href="/ui/topics/thermostat.data"',
        "devices.latest",
    ):
        assert expected in overview.text
    page = world.http.get("/ui/connectors/a").text
    assert "wrong: &lt;******&gt;" in page
    assert "hunter22" not in page
    assert "Edit" in page
    assert "Edit" not in world.http.get("/ui/connectors/aggregator").text


def test_the_pages_create_change_and_delete_a_connector(world: World) -> None:
    text = "".join(f"{key}={value}\n" for key, value in CONFIG.items())
    assert KLASS in world.http.get("/ui/new").text
    assert "print.kcql=" in world.http.get("/ui/new", params={"klass": KLASS}).text
    refused = world.http.post("/ui/new", data={"name": "a", "text": text + "tasks.max=many\n"})
    assert refused.status_code == 400
    assert "&#39;many&#39; is not allowed" in refused.text
    assert "tasks.max=many" in refused.text, "what was written is not lost"
    assert world.http.post("/ui/new", data={"name": "a", "text": text}).headers["location"] == "/ui/connectors/a"
    edited = world.http.get("/ui/connectors/a/edit").text
    assert "print.password=******" in edited
    changed = text.replace("hunter22", "******") + "print.mode=some\n"
    assert world.http.post("/ui/connectors/a/edit", data={"text": changed}).status_code == 303
    found = world.control.find("a")
    assert found is not None
    assert (found.config["print.password"], found.config["print.mode"]) == ("hunter22", "some")
    for action in ("pause", "resume", "stop", "restart", "restart-failed", "delete"):
        assert 'method="post"' in world.http.get(f"/ui/connectors/a/{action}").text
        assert world.http.post(f"/ui/connectors/a/{action}").status_code == 303
    assert world.http.get("/ui/connectors/a").status_code == 404


def test_the_pages_work_dead_letters_off(world: World) -> None:
    assert "a.dead-letters" in world.http.get("/ui/dead-letters").text
    assert "BadError" in world.http.get("/ui/dead-letters/a.dead-letters").text
    assert "eyJuIjoxfQ==" in world.http.get("/ui/dead-letters/a.dead-letters/0/3").text
    path = "/ui/dead-letters/a.dead-letters"
    assert world.http.post(path, data={"verb": "replay", "which": "chosen"}).status_code == 400
    done = world.http.post(path, data={"verb": "discard", "which": "chosen", "letter": ["0/3", "0/4"]})
    assert (done.status_code, done.headers["location"]) == (303, f"{path}?done=1%20discarded")
    world.http.post(path, data={"verb": "replay", "which": "all"})
    assert world.boxes.asked == [
        ("discard", "a.dead-letters", {Where(0, 3), Where(0, 4)}),
        ("replay", "a.dead-letters", None),
    ]


def test_the_pages_plan_a_replay(world: World) -> None:
    world.create()
    planned = world.http.post("/ui/connectors/a/replay", data={"to": "2", "plan": "yes"})
    assert "Would be set" in planned.text
    assert "must be in the STOPPED state" in world.http.post("/ui/connectors/a/replay", data={"to": "2"}).text


def test_pages_have_no_script_or_style_of_their_own_and_load_nothing_from_elsewhere(world: World) -> None:
    world.create()
    world.topics.put("t", b"1")
    listed = ("/ui/", "/ui/new", "/ui/connectors/a", "/ui/dead-letters", "/ui/nowhere", "/ui/topics", "/ui/topics/t")
    for path in (*listed, "/ui/topics/t/0/0", "/ui/devices", "/ui/devices/a", "/ui/alerts"):
        text = world.http.get(path).text
        assert "//" not in text.replace("http://www.w3.org", ""), path
        assert " style=" not in text
        assert " onclick=" not in text
        assert text.count("<script") == 1
    assert world.http.get("/ui/static/console.css").status_code == 200
    assert world.http.get("/ui/static/console.js").status_code == 200
    assert world.http.get("/ui/static/../settings.py").status_code == 404
