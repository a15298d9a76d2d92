"""Silences over the console's REST API: who, what, how long, and that the same call again changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from console_in_memory import NOW, World, world_of
from pydantic import SecretStr

from isotherm.console.devices.alerts import Alert
from isotherm.console.devices.silences import Silence, silence_of
from isotherm.console.errors import UnavailableError
from isotherm.console.settings import AuthSettings
from isotherm.kcql.dates import utc

HOUR_MS = 3_600_000
ALERT = "dév/1/above/temperature/17"
BODY: dict[str, Any] = {
    "rules": ["silent"],
    "groups": {"region": ["north"]},
    "duration_ms": HOUR_MS,
    "comment": "works",
}


def put(world: World, silence_id: str = "s1", **body: Any) -> Any:
    return world.http.put(f"/isotherm/silences/{silence_id}", json=BODY | body)


def test_a_silence_is_one_record_and_the_same_call_again_is_none() -> None:
    with world_of() as world:
        first, second = put(world), put(world)
        assert (
            first.json()
            == second.json()
            == {
                "silence_id": "s1",
                "kind": "silence",
                "state": "active",
                "alert_id": None,
                "devices": [],
                "rules": ["silent"],
                "groups": {"region": ["north"]},
                "starts_at": NOW,
                "ends_at": NOW + HOUR_MS,
                "comment": "works",
                "created_by": "anonymous",
                "created_at": NOW,
                "ended_by": None,
                "ended_at": None,
            }
        )
        ((topic, key, record),) = world.records
        assert (topic, key) == ("isotherm.silences", "s1")
        assert record["rules"] == ["silent"]
        put(world, comment="more works")
        assert [record["comment"] for _, _, record in world.records] == ["works", "more works"]


def test_the_same_call_a_moment_later_is_none_and_a_longer_one_keeps_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes tell at the end what was muted since the start, so an active silence must not begin later."""
    with world_of() as world:
        first = put(world).json()
        monkeypatch.setattr(world.silences, "_clock_ms", lambda: NOW + HOUR_MS // 2)
        assert put(world).json() == first
        assert len(world.records) == 1
        longer = put(world, duration_ms=2 * HOUR_MS).json()
        assert (longer["starts_at"], longer["ends_at"]) == (NOW, NOW + 2 * HOUR_MS)
        monkeypatch.setattr(world.silences, "_clock_ms", lambda: NOW + 3 * HOUR_MS)
        again = put(world).json()
        assert (again["starts_at"], again["created_at"]) == (NOW + 3 * HOUR_MS, NOW + 3 * HOUR_MS)


def test_a_comment_that_is_too_long_is_refused_and_not_cut() -> None:
    with world_of() as world:
        answer = world.http.put(f"/isotherm/acknowledgements/{ALERT}", json={"comment": "x" * 2_001})
        assert (answer.status_code, world.records) == (400, [])


def test_a_maintenance_window_begins_later() -> None:
    with world_of() as world:
        assert put(world, kind="maintenance", starts_at=NOW + HOUR_MS).json()["state"] == "pending"
        assert [one["silence_id"] for one in world.http.get("/isotherm/silences").json()] == ["s1"]


def test_a_silence_is_ended_once_and_then_listed_only_on_request() -> None:
    with world_of() as world:
        put(world)
        first = world.http.delete("/isotherm/silences/s1").json()
        assert (first["state"], first["ended_by"], first["ended_at"]) == ("ended", "anonymous", NOW)
        assert world.http.delete("/isotherm/silences/s1").json() == first
        assert len(world.records) == 2
        assert world.http.get("/isotherm/silences").json() == []
        assert world.http.get("/isotherm/silences?all=true").json() == [first]
        assert world.http.delete("/isotherm/silences/s2").status_code == 404


def test_an_alert_is_acknowledged_by_the_first_who_does_it() -> None:
    auth = AuthSettings(operator_passwords={"ada": SecretStr("a"), "bob": SecretStr("b")})
    with world_of(auth) as world:
        path = f"/isotherm/acknowledgements/{ALERT}"
        done = [world.http.put(path, json={"comment": who}, auth=(who, who[0])).json() for who in ("ada", "bob")]
        assert done[0] == done[1]
        assert (done[0]["created_by"], done[0]["alert_id"], done[0]["ends_at"]) == ("ada", ALERT, None)
        assert len(world.records) == 1
        ended = world.http.delete(f"/isotherm/silences/{done[0]['silence_id']}", auth=("bob", "b")).json()
        assert (ended["ended_by"], ended["state"]) == ("bob", "ended")
        again = world.http.put(path, json={}, auth=("bob", "b")).json()
        assert (again["created_by"], again["state"]) == ("bob", "active")


def test_a_reader_changes_nothing() -> None:
    with world_of(AuthSettings(reader_passwords={"eve": SecretStr("e")})) as world:
        assert world.http.put("/isotherm/silences/s1", json=BODY, auth=("eve", "e")).status_code == 403
        assert world.http.delete("/isotherm/silences/s1", auth=("eve", "e")).status_code == 403
        assert world.http.get("/isotherm/silences", auth=("eve", "e")).status_code == 200
        assert world.records == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"rules": [], "groups": {}}, "the pattern * is all"),
        ({"rules": [""]}, "1 to 500 letters"),
        ({"rules": ["x"] * 1_001}, "at most 1000 patterns"),
        ({"groups": {"room": ["kitchen"]}}, "'room' is not allowed; expected one of home, region, model"),
        ({"kind": "holiday"}, "kind"),
        ({"duration_ms": None}, "give ends_at or duration_ms"),
        ({"ends_at": NOW + 1}, "give ends_at or duration_ms"),
        ({"duration_ms": None, "ends_at": NOW}, "after now"),
        ({"starts_at": NOW - 2 * HOUR_MS}, "after now"),
        ({"duration_ms": 367 * 24 * HOUR_MS}, "within 366"),
        ({"starts_at": NOW + 31 * 24 * HOUR_MS}, "within 30 days"),
        ({"comment": "x" * 2_001}, "2000 letters"),
        ({"until": 5}, "until"),
    ],
)
def test_what_cannot_be_a_silence_is_refused_with_the_reason(body: dict[str, Any], text: str) -> None:
    with world_of() as world:
        answer = put(world, **body)
        assert (answer.status_code, world.records) == (400, [])
        assert text in answer.json()["message"]


def test_an_id_of_an_acknowledgement_is_no_id_of_a_silence() -> None:
    with world_of() as world:
        assert put(world, "acknowledgement-1").status_code == 400


def test_what_kafka_does_not_store_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise UnavailableError("Kafka is away")

    with world_of() as world:
        monkeypatch.setattr(world.silences, "_store", type("Away", (), {"put": staticmethod(away)}))
        assert put(world).status_code == 503
        assert world.http.get("/isotherm/silences").json() == []


def test_a_record_is_read_as_it_was_written() -> None:
    with world_of() as world:
        put(world, starts_at=NOW + 5)
        ((_, _, record),) = world.records
        times = {name: utc(record[name]) for name in ("starts_at", "ends_at", "created_at")}
        stored = world.silences.silences.get("s1")
        assert silence_of(record | times) == stored


def test_a_silence_covers_what_every_list_names() -> None:
    silence = Silence("s", "silence", None, ("dev-*",), (), {"region": ("north",)}, 0, 1, "", "u", 0)
    alert = Alert("a", "dev-1", "above", "warning", "opened", 0, 0, None, None, None, None, None)
    assert silence.covers(alert, {"region": "north"})
    assert not silence.covers(alert, {"region": None})
    assert not silence.covers(alert._replace(device_id="x"), {"region": "north"})
    named = Silence("s", "silence", None, ("dev[1]",), (), {}, 0, 1, "", "u", 0)
    assert named.covers(alert._replace(device_id="dev[1]"), {})


def open_alert(device_id: str, **fields: Any) -> Alert:
    alert = Alert(f"{device_id}/above/m/1", device_id, "above", "warning", "opened", 0, 0, None, "m", 1.0, 2.0, "hot")
    return alert._replace(**fields)


def test_the_page_acknowledges_silences_and_ends() -> None:
    with world_of() as world:
        for device_id in ("dev-1", "other"):
            world.alerts.update(open_alert(device_id))
        assert world.http.post("/ui/alerts/acknowledge", data={"alert": "dev-1/above/m/1"}).status_code == 303
        form = {"device": "oth*", "minutes": "30", "comment": "<b>works</b>"}
        assert world.http.post("/ui/alerts/silence", data=form).status_code == 303
        page = world.http.get("/ui/alerts").text
        assert "acknowledged by anonymous" in page
        assert "silenced by anonymous" in page
        assert "&lt;b&gt;works" in page
        assert 'action="/ui/alerts/acknowledge"' not in page
        (silence_id,) = [key for _, key, record in world.records if record["kind"] == "silence"]
        assert world.http.post("/ui/alerts/unsilence", data={"silence": silence_id}).status_code == 303
        page = world.http.get("/ui/alerts").text
        assert "silenced by" not in page
        assert 'action="/ui/alerts/acknowledge"' in page


@pytest.mark.parametrize(
    ("path", "form", "status"),
    [
        ("acknowledge", {}, 400),
        ("silence", {"minutes": "30"}, 400),
        ("silence", {"minutes": "31", "rule": "x"}, 400),
        ("silence", {"minutes": "30", "rule": "x", "start": "soon"}, 400),
        ("unsilence", {"silence": "nothing"}, 404),
    ],
)
def test_the_page_says_what_is_wrong_with_a_form(path: str, form: dict[str, str], status: int) -> None:
    with world_of() as world:
        assert world.http.post(f"/ui/alerts/{path}", data=form).status_code == status
        assert world.records == []


def test_a_window_that_is_planned_is_shown_and_silences_nothing_yet() -> None:
    with world_of() as world:
        world.alerts.update(open_alert("dev-1"))
        start = f"@{NOW + HOUR_MS}"
        world.http.post("/ui/alerts/silence", data={"rule": "*", "minutes": "120", "start": start})
        page = world.http.get("/ui/alerts").text
        assert "maintenance" in page
        assert "pending" in page
        assert "silenced by" not in page


def test_a_silence_of_a_region_is_shown_at_the_alerts_of_its_devices() -> None:
    with world_of() as world:
        world.alerts.update(open_alert("dev-1"))
        world.http.post("/ui/alerts/silence", data={"region": "north", "minutes": "30"})
        assert "silenced by" not in world.http.get("/ui/alerts").text
