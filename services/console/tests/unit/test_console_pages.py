"""The web console's pages, over a cluster in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from console_in_memory import CONFIG, KLASS, World, world_of

from isotherm.console.dead_letters.queue import RecordPosition


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def test_the_pages_show_the_cluster_without_secrets(world: World) -> None:
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


def test_the_restart_of_a_task_needs_a_confirmation(world: World) -> None:
    world.create()
    world.say("a", 0, "FAILED", trace="x")
    path = "/ui/connectors/a/tasks/0/restart"
    assert f'<a class="button" href="{path}">' in world.http.get("/ui/connectors/a").text
    before = len(world.memory.records)
    asked = world.http.get(path)
    assert (asked.status_code, len(world.memory.records)) == (200, before)
    assert "Restart task 0 of a?" in asked.text
    assert f'<form method="post" action="{path}"' in asked.text
    assert world.http.post(path).headers["location"] == "/ui/connectors/a"
    assert len(world.memory.records) == before + 1
    assert world.http.get("/ui/connectors/a/tasks/7/restart").status_code == 404


@pytest.mark.parametrize("wrapped", [False, True], ids=["flat", "as Connect takes it"])
def test_the_editor_saves_the_json_that_it_checked(world: World, wrapped: bool) -> None:
    text = json.dumps({"name": "a", "config": CONFIG} if wrapped else CONFIG)
    assert world.http.post("/isotherm/check", json={"text": text, "name": "a"}).json()["problems"] == []
    assert world.http.post("/ui/new", data={"name": "a", "text": text}).status_code == 303
    changed = json.dumps(CONFIG | {"print.mode": "some", "print.password": "******"})
    assert world.http.post("/ui/connectors/a/edit", data={"text": changed}).status_code == 303
    found = world.control.find("a")
    assert found is not None
    assert found.config == CONFIG | {"name": "a", "print.mode": "some"}
    refused = world.http.post("/ui/connectors/a/edit", data={"text": '{"connector.class": '})
    assert (refused.status_code, "Not saved" in refused.text) == (400, True)


def rows(page: str) -> list[tuple[bool, list[str]]]:
    """The rows of the reconciliation report: whether each is marked, and its cells."""
    table = page[page.index('id="reconciliation"') :].partition("</table>")[0].partition("<tbody>")[2]
    found = re.findall(r'<tr( class="bad")?>(.*?)</tr>', table, re.DOTALL)
    return [(bool(marked), re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", cells)) for marked, cells in found]


def test_the_page_of_a_connector_shows_the_reconciliation_report(world: World) -> None:
    world.create(config=CONFIG | {"tasks.max": "3"})
    assert 'id="reconciliation"' not in world.http.get("/ui/connectors/a").text
    world.say("a", 0, counts={"read": 1_010, "written": 1_000, "dead_lettered": 7, "filtered": 2, "skipped": 1})
    world.say("a", 1, counts={"commits": 3})
    page = world.http.get("/ui/connectors/a").text
    assert "+ dead-lettered" in page
    reconciled = ["1,010", "1,000", "7", "2", "1", "yes"]
    assert rows(page) == [(False, ["Task 0", *reconciled]), (False, ["Total", *reconciled])]
    world.say("a", 2, counts={"read": 20, "written": 12, "open": 5})
    assert rows(world.http.get("/ui/connectors/a").text) == [
        (False, ["Task 0", "1,010", "1,000", "7", "2", "1", "0", "yes"]),
        (True, ["Task 2", "20", "12", "0", "0", "0", "5", "no: 3 without an outcome"]),
        (True, ["Total", "1,030", "1,012", "7", "2", "1", "5", "no: 3 without an outcome"]),
    ]
    world.say("a", 2, counts={"read": 1, "written": 2})
    assert rows(world.http.get("/ui/connectors/a").text)[1] == (
        True,
        ["Task 2", "1", "2", "0", "0", "0", "no: 1 outcomes too many"],
    )


def test_the_pages_handle_dead_letter_records(world: World) -> None:
    assert "a.dead-letters" in world.http.get("/ui/dead-letter-queues").text
    assert "BadError" in world.http.get("/ui/dead-letter-queues/a.dead-letters").text
    assert "eyJuIjoxfQ==" in world.http.get("/ui/dead-letter-queues/a.dead-letters/0/3").text
    path = "/ui/dead-letter-queues/a.dead-letters"
    assert world.http.post(path, data={"verb": "replay", "which": "chosen"}).status_code == 400
    done = world.http.post(path, data={"verb": "discard", "which": "chosen", "record": ["0/3", "0/4"]})
    assert (done.status_code, done.headers["location"]) == (303, f"{path}?done=1%20discarded")
    asked = world.http.post(path, data={"verb": "replay", "which": "all"})
    assert "Replay all open records of a.dead-letters?" in asked.text
    assert len(world.queues.asked) == 1, "nothing is done before somebody has said yes"
    said_yes = dict(re.findall(r'<input type="hidden" name="(.*?)" value="(.*?)">', asked.text))
    assert world.http.post(path, data=said_yes).headers["location"] == f"{path}?done=2%20replayed"
    assert world.queues.asked == [
        ("discard", "a.dead-letters", {RecordPosition(0, 3), RecordPosition(0, 4)}),
        ("replay", "a.dead-letters", None),
    ]


def test_the_pages_plan_a_replay(world: World) -> None:
    world.create()
    planned = world.http.post("/ui/connectors/a/replay", data={"to": "2", "plan": "yes"})
    assert "<h2>Plan</h2>" in planned.text
    assert "must be in the STOPPED state" in world.http.post("/ui/connectors/a/replay", data={"to": "2"}).text


def test_pages_have_no_inline_script_or_style_and_load_nothing_from_other_sites(world: World) -> None:
    world.create()
    world.topics.put("t", b"1")
    listed = (
        "/ui/",
        "/ui/new",
        "/ui/connectors/a",
        "/ui/dead-letter-queues",
        "/ui/nowhere",
        "/ui/topics",
        "/ui/topics/t",
    )
    for path in (*listed, "/ui/topics/t/0/0", "/ui/devices", "/ui/devices/a", "/ui/alerts"):
        text = world.http.get(path).text
        assert "//" not in text.replace("http://www.w3.org", ""), path
        assert " style=" not in text
        assert " onclick=" not in text
        assert text.count("<script") == 1
    assert world.http.get("/ui/static/console.css").status_code == 200
    assert world.http.get("/ui/static/console.js").status_code == 200
    assert world.http.get("/ui/static/../settings.py").status_code == 404
