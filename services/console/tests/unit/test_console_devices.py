"""Devices and alerts: bounded in memory, and shown on the pages and over REST."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from console_in_memory import NOW, MemoryReader, World, world_of

import isotherm.schemas
from isotherm.console.devices.alerts import Alert, Alerts, alert_of
from isotherm.console.devices.device_states import DeviceRecordCache
from isotherm.console.devices.windows import TOPIC as WINDOWS
from isotherm.console.records.record import Record

DEVICE = "kitchen/|1"


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def alert(device: str = DEVICE, state: str = "opened", at_ms: int = NOW, **more: Any) -> Alert:
    example = isotherm.schemas.examples("alerts")[0].value
    closed_at = at_ms + 5_000 if state == "closed" else None
    return alert_of(
        {
            **example,
            "alert_id": f"{device}/above/temperature/{at_ms}",
            "device_id": device,
            "state": state,
            "opened_at": at_ms,
            "updated_at": closed_at or at_ms,
            "closed_at": closed_at,
            **more,
        }
    )


def state(world: World, device: str = DEVICE, value: float = 21.5) -> bytes:
    example = isotherm.schemas.examples("devices.latest")[0].value
    latest = {"temperature": {**example["latest"]["temperature"], "value": value}}
    changed = {**example, "device_id": device, "last_seen": NOW - 9_000, "latest": latest, "open_alerts": ["an-alert"]}
    return world.schemas.encoded("devices.latest", "DeviceState", 1, changed)


def windows(world: World, count: int, *, poison: bool = False) -> None:
    """A window each minute, of this device and of another one."""
    found: list[Record] = []
    for n in range(count):
        for device in (DEVICE, "other"):
            start_ms = NOW - (count - n) * 60_000
            value = {
                **isotherm.schemas.examples(WINDOWS)[0].value,
                "device_id": device,
                "window_start": start_ms,
                "window_end": start_ms + 60_000,
                "mean": 20.0 + n,
            }
            encoded = world.schemas.encoded(WINDOWS, "TemperatureAggregate", 1, value)
            key = f"{device.replace('|', '%7C')}|temperature|{start_ms}|{start_ms + 60_000}".encode()
            found.append(Record(WINDOWS, 0, len(found), start_ms + 60_000, key, encoded, []))
    if poison:
        found.append(Record(WINDOWS, 0, len(found), NOW, b"kitchen/%7C1|x", b"poison", []))
    world.topics.topics[WINDOWS] = MemoryReader(found)


def test_the_longest_silent_devices_are_dropped_first() -> None:
    states = DeviceRecordCache(2)
    for device in ("a", "b", "a", "c"):
        states.update(device, device.encode())
    assert [one.device_id for one in states.find("", "", 9)] == ["a", "c"]
    assert (len(states), states.is_full, states.get("b")) == (2, True, None)
    states.update("a", None)
    assert [one.value for one in states.find("C", "", 9)] == [b"c"]
    assert states.find("", "c", 9) == []


def test_a_repeated_state_does_not_reopen_a_closed_alert() -> None:
    alerts = Alerts(10)
    for said in ("opened", "opened", "closed", "opened", "closed"):
        alerts.update(alert(state=said))
    assert alerts.open() == []
    assert [one.closed_at_ms for one in alerts.closed()] == [NOW + 5_000]


def test_open_alerts_are_sorted_and_the_oldest_are_dropped() -> None:
    alerts = Alerts(3)
    for n, severity in enumerate(("info", "warning", "critical", "info", "odd")):
        alerts.update(alert(device=f"d{n}", at_ms=NOW + n, severity=severity))
    assert [one.severity for one in alerts.open()] == ["odd", "critical", "info"]
    assert alerts.is_full
    assert [one.device_id for one in alerts.open("D3")] == ["d3"]
    for n in range(5):
        alerts.update(alert(device=f"e{n}", state="closed", at_ms=NOW + n))
    assert [one.device_id for one in alerts.closed()] == ["e4", "e3", "e2"]


def test_devices_are_found_and_paged(world: World) -> None:
    for n in range(60):
        world.latest.update(f"dev-{n:02}", state(world, f"dev-{n:02}"))
    page = world.http.get("/ui/devices").text
    assert ("dev-00" in page, "dev-49" in page, "dev-50" in page) == (True, True, False)
    assert "temperature 21.5 Cel" in page
    following = re.search(r'href="(\?[^"]*after=[^"]*)"', page)
    assert following is not None
    assert "dev-59" in world.http.get("/ui/devices" + following[1].replace("&amp;", "&")).text
    assert "dev-17" in world.http.get("/ui/devices?text=EV-17").text
    assert "No device" in world.http.get("/ui/devices?text=nothing").text
    listed = world.http.get("/isotherm/devices?after=dev-57").json()
    assert [one["device_id"] for one in listed["devices"]] == ["dev-58", "dev-59"]
    assert listed["devices"][0]["latest"]["temperature"]["value"] == 21.5


def provisioned(world: World, device: str, **known: Any) -> bytes:
    nothing = dict.fromkeys(("home", "room", "region", "model"))
    return world.schemas.encoded("devices", "Device", 1, {"device_id": device, "thresholds": {}, **nothing, **known})


def test_a_provisioned_device_is_known_before_it_reports(world: World) -> None:
    world.latest.update("b", state(world, "b"))
    world.latest.update("d", state(world, "d"))
    for device in ("a", "b", "c", "e"):
        world.provisioned.update(device, provisioned(world, device, home=f"home-{device}", model="<T1>"))

    listed = world.http.get("/isotherm/devices").json()["devices"]
    assert [(one["device_id"], one["reported"], one["provisioned"] is not None) for one in listed] == [
        ("a", False, True),
        ("b", True, True),
        ("c", False, True),
        ("d", True, False),
        ("e", False, True),
    ]
    first, second = listed[:2]
    assert first["provisioned"] == {"home": "home-a", "room": None, "region": None, "model": "<T1>"}
    assert (first["last_seen"], first["updated_at"], first["latest"], first["error"]) == (None, None, {}, None)
    assert (second["last_seen"], second["provisioned"]["home"]) == (NOW - 9_000, "home-b")
    assert [one["device_id"] for one in world.http.get("/isotherm/devices?after=a&limit=2").json()["devices"]] == [
        "b",
        "c",
    ]
    page = world.http.get("/ui/devices").text
    assert "5 devices are known, 3 of them have never reported" in page
    assert page.count("<td>never reported</td>") == 3
    assert "home-a, &lt;T1&gt;" in page
    one = world.http.get("/ui/devices/a")
    assert (one.status_code, "The device is provisioned and has never reported." in one.text) == (200, True)
    assert "home home-a" in one.text
    assert "never reported" not in world.http.get("/ui/devices/b").text
    assert world.http.get("/isotherm/devices/c").json()["reported"] is False

    world.provisioned.update("a", None)
    world.latest.update("c", state(world, "c"))
    assert world.http.get("/ui/devices/a").status_code == 404
    assert world.http.get("/isotherm/devices/c").json()["reported"] is True


def test_undecodable_metadata_is_reported_beside_the_values(world: World) -> None:
    world.provisioned.update("a", b"poison")
    world.provisioned.update(DEVICE, b"poison")
    world.latest.update(DEVICE, state(world))

    told = world.http.get(f"/isotherm/devices/{DEVICE}").json()
    assert (told["latest"]["temperature"]["value"], "expected 0" in told["error"]) == (21.5, True)
    assert (world.http.get("/isotherm/devices/a").json()["reported"]) is False
    assert "expected 0" in world.http.get("/ui/devices/a").text


def test_a_device_shows_values_windows_and_alerts(world: World) -> None:
    world.latest.update(DEVICE, state(world))
    world.alerts.update(alert(at_ms=NOW - 1_000, message="it is <hot>"))
    world.alerts.update(alert(state="closed", at_ms=NOW - 99_000))
    world.alerts.update(alert(device=DEVICE + "2"))
    windows(world, 90, poison=True)
    answer = world.http.get("/ui/devices/kitchen%2F%7C1")
    assert answer.status_code == 200
    for expected in ("<h1>kitchen/|1</h1>", "21.5", "it is &lt;hot&gt;", "Closed alerts", 'class="band"', "<desc"):
        assert expected in answer.text
    assert "1 records of this device could not be decoded" in answer.text
    assert answer.text.count("/|12") == 0, "another device's alert is not its own"
    found = world.http.get(f"/isotherm/devices/{DEVICE}/windows").json()
    means = [one["mean"] for one in found["metrics"]["temperature"]]
    assert means == [20.0 + n for n in range(29, 90)], "an hour of them, by time"
    assert (found["unreadable"], found["is_cut"], found["published_to"]) == (1, False, NOW)
    earlier = f"/isotherm/devices/{DEVICE}/windows?until=@{found['published_from']}"
    older = world.http.get(earlier).json()["metrics"]["temperature"]
    assert [one["mean"] for one in older] == [20.0 + n for n in range(29)]
    told = world.http.get(f"/isotherm/devices/{DEVICE}").json()
    assert (told["latest"]["temperature"]["value"], told["open_alerts"], told["error"]) == (21.5, ["an-alert"], None)
    said = world.http.get(f"/isotherm/devices/{DEVICE}/alerts").json()["alerts"]
    assert [one["state"] for one in said] == ["opened", "closed"]


def test_invalid_parameters_of_a_device_are_refused_with_the_reason(world: World) -> None:
    windows(world, 2)
    for asked, reason in (({"minutes": "7"}, "is not allowed; expected one of"), ({"until": "soon"}, "is not a time")):
        refused = world.http.get("/ui/devices/other", params=asked)
        assert reason in refused.text
    assert world.http.get("/ui/devices/nobody").status_code == 404
    assert world.http.get("/isotherm/devices/nobody").status_code == 404
    assert world.http.get("/isotherm/devices/other/windows?until=soon").status_code == 400


def test_an_undecodable_state_is_reported(world: World) -> None:
    world.latest.update("broken", b"poison")
    assert "expected 0" in world.http.get("/ui/devices").text
    assert "expected 0" in world.http.get("/ui/devices/broken").text
    assert "expected 0" in world.http.get("/isotherm/devices/broken").json()["error"]


def test_alerts_are_listed_open_ones_first(world: World) -> None:
    world.alerts.update(alert(device="b", severity="info"))
    world.alerts.update(alert(device="a/b", severity="critical", value=None, threshold=None, metric=None))
    world.alerts.update(alert(device="c", state="closed"))
    page = world.http.get("/ui/alerts").text
    assert (
        page.index("a%2Fb") < page.index("/ui/devices/b") < page.index("Recently closed") < page.index("/ui/devices/c")
    )
    assert "/ui/devices/c" not in world.http.get("/ui/alerts?text=a/").text
    listed = world.http.get("/isotherm/alerts").json()["alerts"]
    assert [one["device_id"] for one in listed] == ["a/b", "b"]
    closed = world.http.get("/isotherm/alerts?state=closed").json()["alerts"]
    assert [(one["device_id"], one["closed_at"]) for one in closed] == [("c", NOW + 5_000)]
    assert world.http.get("/isotherm/alerts?state=odd").status_code == 400


def test_missing_data_is_reported(world: World) -> None:
    world.condition.not_ready("topics", "alerts: not read yet")
    for path in ("/ui/alerts", "/ui/devices", "/ui/devices/a"):
        assert "alerts: not read yet" in world.http.get(path).text
    assert world.http.get("/isotherm/alerts").json()["problem"] == "alerts: not read yet"
