"""An MQTT client's publishes are found by client, time and packet identifier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from console_in_memory import World, world_of
from traced_pipeline import BEGIN, READINGS, Pipeline, place_of

DEAD = "mqtt-proxy.dead-letters"


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def asked(world: World, status: int = 200, **of: Any) -> Any:
    answer = world.http.get("/isotherm/publishes", params=of)
    assert answer.status_code == status, answer.text
    return answer.json()


def filled(world: World) -> dict[str, str]:
    """Publishes of two clients, one a second, whose packet identifiers begin anew; places by client and number."""
    pipeline, places = Pipeline(world), {}
    pipeline.records[DEAD] = []
    for number in range(300):
        for client in ("gateway", "other"):
            headers = [("mqtt.client_id", client.encode()), ("mqtt.topic", b"t"), ("mqtt.qos", b"1")]
            headers.append(("mqtt.packet_id", str(number % 100 + 1).encode()))
            at_ms = BEGIN + 1_000 * number
            if number % 50 == 49:
                reason = ("__connect.errors.exception.message", b"no JSON")
                record = pipeline.append_raw(DEAD, client.encode(), b"{", *headers, reason, at_ms=at_ms)
            else:
                record = pipeline.append_raw(READINGS, f"d{number % 7}".encode(), b"\0", *headers, at_ms=at_ms)
            places[f"{client}/{number}"] = place_of(record)
    # What the aggregator refuses has the headers of its record.
    copied = [("mqtt.client_id", b"gateway"), ("mqtt.packet_id", b"1"), ("__connect.errors.partition", b"0")]
    pipeline.records["aggregator.dead-letters"] = []
    pipeline.append_raw("aggregator.dead-letters", b"d0", b"\0", *copied, at_ms=BEGIN)
    pipeline.finish()
    return places


def place(of: dict[str, Any]) -> str:
    return "{topic}/{partition}/{offset}".format(**of["record"])


def test_a_packet_is_found_by_its_identifier_and_time(world: World) -> None:
    places = filled(world)
    for number in range(300):
        answer = asked(world, client="gateway", at=f"@{BEGIN + 1_000 * number + 300}", packet=number % 100 + 1)
        (found,) = answer["publishes"]
        assert place(found) == places[f"gateway/{number}"]
        assert found["packet_id"] == str(number % 100 + 1)
        assert found["refused"] == ("no JSON" if number % 50 == 49 else "")
        assert found["device_id"] == ("gateway" if number % 50 == 49 else f"d{number % 7}")
        assert answer["notes"] == []


def test_without_a_packet_the_nearest_come_first(world: World) -> None:
    places = filled(world)
    answer = asked(world, client="other", at=f"@{BEGIN + 100_200}", within_ms=2_000)
    assert [place(one) for one in answer["publishes"]] == [places[f"other/{number}"] for number in (100, 101, 99, 102)]


@pytest.mark.parametrize(
    "of", [{"client": "nobody"}, {"client": "gateway", "packet": 65_535}, {"client": "gateway", "at": "@0"}]
)
def test_what_is_not_there_is_not_found(world: World, of: dict[str, Any]) -> None:
    filled(world)
    assert asked(world, **{"at": f"@{BEGIN}", **of}) == {"publishes": [], "notes": []}


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        ({"client": "gateway", "at": "yesterday"}, "at"),
        ({"client": "gateway"}, "at"),
        ({"client": "", "at": "@0"}, "client"),
        ({"client": "gateway", "at": "@0", "packet": 0}, "packet"),
        ({"client": "gateway", "at": "@0", "within_ms": 600_001}, "within_ms"),
    ],
)
def test_what_cannot_be_asked_is_said(world: World, of: dict[str, Any], wrong: str) -> None:
    assert f"{wrong}:" in asked(world, 400, **of)["message"]


def test_the_page_leads_from_a_packet_to_the_trace(world: World) -> None:
    places = filled(world)
    page = world.http.get("/ui/publishes", params={"client": "gateway", "at": f"@{BEGIN + 100}", "packet": "1"})
    assert page.status_code == 200
    place = places["gateway/0"]
    assert f'href="/ui/topics/{place}"' in page.text
    assert f'href="/ui/devices/d0/trace?record={place}"' in page.text
    dead = world.http.get("/ui/publishes", params={"client": "gateway", "at": f"@{BEGIN + 49_000}", "packet": "50"})
    assert "dead letter: no JSON" in dead.text
    assert "No publish of this client" in world.http.get("/ui/publishes", params={"client": "x", "at": "@5"}).text
    assert 'href="/ui/publishes"' in world.http.get("/ui/devices").text


@pytest.mark.parametrize(
    ("of", "status"),
    [({}, 200), ({"client": "c"}, 400), ({"client": "c", "at": "@1", "packet": "x"}, 400), ({"client": "<b>"}, 400)],
)
def test_the_page_says_what_is_wrong(world: World, of: dict[str, str], status: int) -> None:
    page = world.http.get("/ui/publishes", params=of)
    assert page.status_code == status
    assert ('role="alert"' in page.text) == (status == 400)
    assert "<b>" not in page.text
