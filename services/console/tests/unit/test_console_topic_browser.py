"""The topic browser: decoded, filtered, paged and masked records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from console_in_memory import CONFIG, KLASS, NOW, World, world_of
from pydantic import SecretStr

import isotherm.schemas
from isotherm.console.settings import AuthSettings

READINGS, CONNECTORS, STATUS = "thermostat.data", "isotherm.connectors", "isotherm.status"
SECRET = "hunter22"


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def reading(world: World, value: float) -> bytes:
    example = isotherm.schemas.examples(READINGS)[0].value
    return world.schemas.encoded(READINGS, "SensorReading", 1, {**example, "value": value})


def connector(world: World, klass: str, config: dict[str, str]) -> bytes:
    example = isotherm.schemas.examples(CONNECTORS)[0].value
    changed = {**example, "name": "a", "connector_class": klass, "config": config}
    return world.schemas.encoded(CONNECTORS, "ConnectorConfig", 2, changed)


def records(world: World, topic: str, **asked: Any) -> list[dict[str, Any]]:
    found = world.http.get(f"/isotherm/topics/{topic}/records", params=asked)
    assert found.status_code == 200, found.text
    listed: list[dict[str, Any]] = found.json()["records"]
    return listed


def test_topics_say_who_writes_and_reads_them(world: World) -> None:
    world.topics.put(READINGS, b"1", b"2")
    world.topics.put("t", b"1")
    world.create()
    world.say("aggregator", 0)
    listed = {one["name"]: one for one in world.http.get("/isotherm/topics").json()}
    assert listed["t"] == {
        "name": "t",
        "partitions": 1,
        "max_records": 1,
        "record": None,
        "written_by": [],
        "read_by": ["a"],
    }
    assert (listed[READINGS]["record"], listed[READINGS]["read_by"]) == ("SensorReading", ["aggregator"])
    assert "mqtt-proxy" in listed[READINGS]["written_by"], "as declared, while it does not speak"
    page = world.http.get("/ui/topics").text
    assert f'href="/ui/topics/{READINGS}"' in page
    assert "SensorReading" in page


def test_records_are_decoded_and_undecodable_ones_are_shown_raw_with_the_reason(world: World) -> None:
    world.topics.put(READINGS, reading(world, 21.5), b"poison", b"\x00\x00\x00\x00\x07xyz", None)
    gone, unknown, poison, good = records(world, READINGS)
    assert (good["value"]["value"], good["format"], good["error"], good["value_base64"]) == (21.5, "avro", None, None)
    assert (poison["value"], poison["format"], poison["value_base64"]) == ("poison", "text", "cG9pc29u")
    assert "SensorReading" in poison["error"]
    assert (unknown["format"], unknown["error"]) == ("binary", "the registry has no schema with id 7")
    assert (gone["value"], gone["format"], gone["error"]) == (None, "null", None)
    page = world.http.get(f"/ui/topics/{READINGS}").text
    assert "the registry has no schema with id 7" in page
    assert "not a SensorReading" in page
    detail = world.http.get(f"/ui/topics/{READINGS}/0/1").text
    assert "cG9pc29u" in detail
    assert '"value": 21.5' in world.http.get(f"/ui/topics/{READINGS}/0/0").text
    assert world.http.get(f"/ui/topics/{READINGS}/0/9").status_code == 404
    assert world.http.get(f"/ui/topics/{READINGS}/0/x").status_code == 404
    assert world.http.get("/ui/topics/nothing").status_code == 404


def test_pages_go_back_and_forth(world: World) -> None:
    world.topics.put("t", *(json.dumps({"n": n}).encode() for n in range(120)))
    page = world.http.get("/ui/topics/t").text
    assert ("0/119" in page, "0/70" in page, "0/69" in page) == (True, True, False)
    assert "Newer" not in page
    older = re.search(r'href="(\?before=[^"]*)"', page)
    assert older is not None
    second = world.http.get(f"/ui/topics/t{older[1]}").text
    assert ("0/69" in second, "0/20" in second, "0/70" in second) == (True, True, False)
    newer = re.search(r'href="(\?after=[^"]*)"', second)
    assert newer is not None
    assert "0/119" in world.http.get(f"/ui/topics/t{newer[1]}").text


def test_records_are_found_by_text_time_offset_and_partition(world: World) -> None:
    world.topics.put("t", *(json.dumps({"n": n, "Name": "Kitchen"}).encode() for n in range(9)), key=b"Device-1")

    def offsets(**asked: Any) -> list[int]:
        return [one["offset"] for one in records(world, "t", **asked)]

    assert offsets(text='"n":4') == [4]
    assert offsets(text="kitchen", limit=2) == offsets(text="device-1", limit=2) == [8, 7]
    assert offsets(text="cellar") == []
    assert offsets(**{"from": "3", "limit": 2}) == [4, 3]
    assert offsets(**{"from": f"@{NOW - 2_000}"}) == [8, 7]
    assert offsets(**{"from": "earliest", "partition": 0, "limit": 1}) == [0]
    assert offsets(before="0:2") == [1, 0]
    for path in ("t/records?from=tomorrow", "t/records?before=x", "t/records?limit=0"):
        assert world.http.get(f"/isotherm/topics/{path}").status_code == 400
    assert world.http.get("/isotherm/topics/t/records?partition=1").status_code == 404
    refused = world.http.get("/ui/topics/t", params={"since": "tomorrow", "text": "<b>"})
    assert refused.status_code == 400
    assert "is not a position" in refused.text
    assert "&lt;b&gt;" in refused.text, "what was asked for is not lost, and harms nothing"


@pytest.mark.parametrize("klass", [KLASS, "isotherm.NobodyKnowsConnector"])
def test_a_connectors_secrets_are_neither_shown_nor_found(world: World, klass: str) -> None:
    url = {"print.url": f"http://user:{SECRET}@host"}
    world.topics.put(CONNECTORS, connector(world, klass, {**CONFIG, **url, "my.token": SECRET, "name": "a"}))
    (shown,) = records(world, CONNECTORS)
    assert shown["value"]["config"]["print.password"] == shown["value"]["config"]["my.token"] == "******"
    assert shown["value"]["config"]["name"] == "a"
    assert SECRET not in world.http.get(f"/ui/topics/{CONNECTORS}").text
    assert SECRET not in world.http.get(f"/ui/topics/{CONNECTORS}/0/0").text
    assert records(world, CONNECTORS, text=SECRET) == []
    assert len(records(world, CONNECTORS, text="print.password")) == 1


def test_every_value_of_an_unknown_class_is_masked(world: World) -> None:
    world.topics.put(CONNECTORS, connector(world, "x.Y", {"name": "a", "thing": SECRET, "kept": "${env:A}"}))
    (shown,) = records(world, CONNECTORS)
    assert shown["value"]["config"] == {"name": "a", "thing": "******", "kept": "${env:A}"}


def test_a_value_that_cannot_be_masked_is_withheld(world: World) -> None:
    other = world.schemas.encoded(READINGS, "SensorReading", 1, isotherm.schemas.examples(READINGS)[0].value)
    good = connector(world, KLASS, CONFIG)
    world.topics.put(CONNECTORS, SECRET.encode(), json.dumps({"config": {"a": SECRET}}).encode(), good[:-9], other)
    for shown in records(world, CONNECTORS):
        assert (shown["value"], shown["format"], shown["value_base64"]) == (None, "withheld", None)
        assert "may hold secrets" in shown["error"]
    assert records(world, CONNECTORS, text=SECRET) == []
    for path in ("", "/0/0", "/0/1", "/0/2"):
        assert SECRET not in world.http.get(f"/ui/topics/{CONNECTORS}{path}").text


@pytest.mark.parametrize(
    ("topic", "record", "field"),
    [
        ("device.commands", "DeviceCommand", "payload"),
        ("isotherm.commands.open", "OpenCommand", "payload"),
        ("isotherm.commands.steps", "CommandStep", "answer"),
        ("device.command-outcomes", "CommandOutcome", "answer"),
    ],
)
def test_what_devices_are_told_and_answer_is_masked(world: World, topic: str, record: str, field: str) -> None:
    value = dict(isotherm.schemas.examples(topic)[0].value)
    contents = (SECRET.encode(), b"")
    told, silent = (world.schemas.encoded(topic, record, 1, {**value, field: content}) for content in contents)
    world.topics.put(topic, told, silent, SECRET.encode(), told[:-3], None)
    nothing, broken, poison, empty, full = records(world, topic)
    assert full["value"][field] == "******"
    assert full["value"]["command_id"] == value["command_id"]
    assert empty["value"][field] == ""
    assert {one["format"] for one in (broken, poison)} == {"withheld"}
    assert nothing["format"] == "null"
    assert records(world, topic, text=SECRET) == []
    for path in ("", *(f"/0/{n}" for n in range(5))):
        assert SECRET not in world.http.get(f"/ui/topics/{topic}{path}").text


def test_a_trace_on_the_status_topic_is_masked_too(world: World) -> None:
    world.create()
    example = isotherm.schemas.examples(STATUS)[0].value
    said = {**example, "connector": "a", "trace": f"login with {SECRET} failed"}
    world.topics.put(STATUS, world.schemas.encoded(STATUS, "TaskStatus", 2, said))
    (shown,) = records(world, STATUS)
    assert shown["value"]["trace"] == "login with ****** failed"


def test_a_reader_may_look_at_topics_devices_and_alerts_and_nobody_else_may() -> None:
    auth = AuthSettings(reader_tokens={"grafana": SecretStr("two")})
    with world_of(auth) as world:
        world.topics.put("t", b"1")
        for path in ("/ui/topics/t", "/ui/alerts", "/isotherm/topics/t/records", "/isotherm/devices"):
            assert world.http.get(path).status_code == 401
            assert world.http.get(path, headers={"authorization": "Bearer two"}).status_code == 200
