"""Commands over the console's REST API and the page of a device: issued once, waited for, shown to who may see them."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from console_in_memory import NOW, World, world_of
from pydantic import SecretStr

from isotherm.connector.commands.records import (
    ACCEPTED,
    ANSWERED,
    COMMANDS,
    DELIVERED,
    REFUSED,
    SAME_ID_MS,
    CommandOutcome,
    DeviceCommand,
    Progress,
)
from isotherm.console.devices.command_log import CommandLog
from isotherm.console.devices.command_waits import OutcomeWaits
from isotherm.console.errors import UnavailableError
from isotherm.console.settings import AuthSettings

PATH = "/isotherm/devices/dev-1/commands"
BODY = {"name": "setpoint", "payload": '{"celsius":21}', "content_type": "application/json"}
PATIENCE_S = 60.0


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def outcome(word: str, **more: Any) -> CommandOutcome:
    made = CommandOutcome("dev-1", "id-1", word, "setpoint", "anonymous", NOW, NOW + 60_000, NOW + 40)
    return made._replace(accepted_ms=NOW + 4, **more)


def answered(content: bytes = b"ok") -> CommandOutcome:
    progress = Progress("mqtt-proxy", NOW + 10, NOW + 20)
    return outcome(ANSWERED, progress=progress, answered_ms=NOW + 30, answer=content, answer_content_type="text/plain")


def test_a_command_is_a_record_of_the_topic_with_who_issued_it(world: World) -> None:
    answer = world.http.post(PATH, json=BODY | {"timeout_ms": 5_000, "qos": 2, "expects_answer": True})
    assert (answer.status_code, answer.headers["location"]) == (202, f"{PATH}/id-1")
    issued = DeviceCommand(
        "dev-1", "id-1", "setpoint", b'{"celsius":21}', "application/json", "anonymous", NOW, NOW + 5_000, 2, True
    )
    assert world.records == [(COMMANDS, "dev-1", issued.record())]
    found = answer.json()
    assert (found["command_id"], found["deadline"], found["outcome"]) == ("id-1", NOW + 5_000, None)
    assert world.http.get(answer.headers["location"]).json() == found, "its place answers from now on"
    assert world.http.get(PATH).json() == {"commands": [found], "problem": None}


def test_defaults_and_a_binary_payload(world: World) -> None:
    found = world.http.post(PATH, json={"name": "reboot"}).json()
    record = world.records[0][2]
    assert (record["payload"], record["content_type"], record["deadline"]) == (b"", None, NOW + 60_000)
    assert (record["qos"], record["expects_answer"]) == (1, False)
    assert (found["payload"], found["payload_bytes"]) == ("", 0)
    encoded = base64.b64encode(b"\xff\x00").decode()
    found = world.http.post(PATH, json={"name": "x", "payload_base64": encoded, "command_id": "2"}).json()
    assert world.records[1][2]["payload"] == b"\xff\x00"
    assert (found["payload"], found["payload_base64"], found["payload_bytes"]) == (None, encoded, 2)


def test_a_command_with_its_outcomes_and_the_times_of_its_steps(world: World) -> None:
    world.http.post(PATH, json=BODY)
    world.commands.log.take_outcome(outcome(ACCEPTED)._replace(updated_ms=NOW + 4))
    open_ = world.http.get(f"{PATH}/id-1").json()
    assert (open_["outcome"], open_["is_final"], open_["accepted_at"]) == ("accepted", False, NOW + 4)
    world.commands.log.take_outcome(answered())
    found = world.http.get(f"{PATH}/id-1").json()
    assert found == {
        "device_id": "dev-1",
        "command_id": "id-1",
        "name": "setpoint",
        "issued_by": "anonymous",
        "issued_at": NOW,
        "deadline": NOW + 60_000,
        "outcome": "answered",
        "is_final": True,
        "reason": None,
        "accepted_at": NOW + 4,
        "service": "mqtt-proxy",
        "sent_at": NOW + 10,
        "acknowledged_at": NOW + 20,
        "answered_at": NOW + 30,
        "updated_at": NOW + 40,
        "outcomes": [
            {"outcome": "accepted", "updated_at": NOW + 4, "reason": None},
            {"outcome": "answered", "updated_at": NOW + 40, "reason": None},
        ],
        "qos": 1,
        "expects_answer": False,
        "content_type": "application/json",
        "payload_bytes": 14,
        "payload": '{"celsius":21}',
        "payload_base64": None,
        "answer_content_type": "text/plain",
        "answer_bytes": 2,
        "answer": "ok",
        "answer_base64": None,
    }
    assert world.http.get(PATH).json()["commands"] == [found]


def test_the_newest_command_comes_first(world: World) -> None:
    for n in range(3):
        command = DeviceCommand("dev-1", str(n), "x", b"", None, "ada", NOW + n, NOW + 60_000)
        world.commands.log.take_command(command)
    found = world.http.get(PATH, params={"limit": 2}).json()["commands"]
    assert [one["command_id"] for one in found] == ["2", "1"]
    assert world.http.get("/isotherm/devices/dev-2/commands").json()["commands"] == []


def test_the_same_call_again_issues_nothing(world: World) -> None:
    first = world.http.post(PATH, json=BODY | {"command_id": "mine"})
    again = world.http.post(PATH, json=BODY | {"command_id": "mine", "timeout_ms": 1_000})
    assert (first.status_code, again.status_code, first.json()) == (202, 202, again.json())
    other = world.http.post(PATH, json=BODY | {"command_id": "mine", "payload": "other"})
    assert (other.status_code, "another command with the id mine" in other.json()["message"]) == (409, True)
    assert len(world.records) == 1


def test_an_id_can_be_used_again_an_hour_after_its_end(world: World) -> None:
    early = outcome(DELIVERED)._replace(issued_ms=NOW - 2 * SAME_ID_MS, updated_ms=NOW - SAME_ID_MS)
    world.commands.log.take_outcome(early)
    found = world.http.post(PATH, json=BODY | {"command_id": "id-1"})
    assert (found.status_code, found.json()["issued_at"], len(world.records)) == (202, NOW, 1)


def test_a_command_that_has_its_outcome_needs_no_wait(world: World) -> None:
    world.commands.log.take_command(
        DeviceCommand("dev-1", "id-1", "setpoint", b"", None, "anonymous", NOW, NOW + 60_000)
    )
    world.commands.log.take_outcome(answered())
    found = world.http.post(PATH, params={"wait_ms": 60_000}, json={"name": "setpoint", "command_id": "id-1"})
    assert (found.status_code, found.json()["outcome"], world.records) == (200, "answered", [])


def wait_for(world: World, method: str, path: str, **more: Any) -> Any:
    """The answer to a request that waits, to which an outcome comes when it does."""
    with ThreadPoolExecutor(1) as others:
        asked = others.submit(world.http.request, method, path, params={"wait_ms": 60_000}, **more)
        is_waiting = threading.Event()
        while not len(world.commands.waits):
            assert not asked.done(), asked.result().text
            is_waiting.wait(0.01)
        world.commands.log.take_outcome(outcome(ACCEPTED))
        assert not asked.done(), "it is not final"
        world.commands.log.take_outcome(answered())
        found = asked.result(PATIENCE_S)
    assert len(world.commands.waits) == 0
    return found


def test_an_outcome_wakes_the_request_that_issues(world: World) -> None:
    found = wait_for(world, "POST", PATH, json=BODY)
    assert (found.status_code, found.json()["outcome"], found.json()["answer"]) == (200, "answered", "ok")


def test_an_outcome_wakes_a_request_for_the_command(world: World) -> None:
    world.http.post(PATH, json=BODY)
    found = wait_for(world, "GET", f"{PATH}/id-1")
    assert (found.status_code, found.json()["is_final"]) == (200, True)


def test_a_wait_ends_with_its_time(world: World) -> None:
    found = world.http.post(PATH, params={"wait_ms": 1}, json=BODY)
    assert (found.status_code, found.json()["is_final"]) == (202, False)


def test_a_console_that_stops_lets_nobody_wait(world: World) -> None:
    with ThreadPoolExecutor(1) as others:
        asked = others.submit(world.http.post, PATH, params={"wait_ms": 60_000}, json=BODY)
        is_waiting = threading.Event()
        while not len(world.commands.waits):
            is_waiting.wait(0.01)
        world.commands.waits.close()
        assert asked.result(PATIENCE_S).status_code == 202
    assert world.http.get(f"{PATH}/id-1", params={"wait_ms": 60_000}).status_code == 200


def test_the_number_of_requests_that_wait_is_bounded() -> None:
    log = CommandLog(max_commands=10, max_device_commands=10, max_bytes=10)
    waits = OutcomeWaits(log, max_waits=2)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(2):
                group.create_task(waits.wait(("dev-1", str(n)), 60_000))
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError, match="2 requests wait"):
                await waits.wait(("dev-1", "id-1"), 60_000)
            waits.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert len(waits) == 0


def test_a_command_is_issued_even_if_too_many_requests_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.commands.waits, "_max_waits", 0)
    waiting = {"wait_ms": 60_000}
    assert world.http.post(PATH, params=waiting, json=BODY).status_code == 202
    assert len(world.records) == 1
    assert world.http.get(f"{PATH}/id-1", params=waiting).status_code == 503
    assert world.http.get(f"{PATH}/id-1").status_code == 200


def test_a_caller_that_goes_away_waits_no_more(world: World) -> None:
    async def run() -> None:
        is_gone, sent = asyncio.Event(), []
        parts: list[dict[str, Any]] = [{"type": "http.request", "body": json.dumps(BODY).encode()}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop(0)
            await is_gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            sent.append(message["type"])

        scope = {
            "type": "http",
            "method": "POST",
            "path": PATH,
            "query_string": b"wait_ms=60000",
            "headers": [(b"host", b"127.0.0.1:8083"), (b"content-type", b"application/json")],
        }
        asked = asyncio.ensure_future(world.http.app(scope, receive, send))
        while not len(world.commands.waits):
            assert not asked.done()
            await asyncio.sleep(0.01)
        is_gone.set()
        await asked
        assert (sent[0], len(world.commands.waits)) == ("http.response.start", 0)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "body.name"),
        ({"name": ""}, "name is not allowed"),
        ({"name": "a/b"}, "name is not allowed"),
        ({"name": "a+"}, "name is not allowed"),
        ({"name": "#"}, "name is not allowed"),
        ({"name": "a\0"}, "name is not allowed"),
        ({"name": "\ud800"}, "not JSON"),
        ({"name": "ä" * 129}, "name is not allowed"),
        ({"name": "a", "payload": "x", "payload_base64": "eA=="}, "one of them"),
        ({"name": "a", "payload": "\ud800"}, "not JSON"),
        ({"name": "a", "payload_base64": "?"}, "payload_base64 is not base64"),
        ({"name": "a", "payload_base64": "ä"}, "payload_base64 is not base64"),
        ({"name": "a", "payload": "x" * 524_289}, "the payload has 524289 bytes"),
        ({"name": "a", "content_type": ""}, "content_type is not allowed"),
        ({"name": "a", "content_type": "a\nb"}, "content_type is not allowed"),
        ({"name": "a", "timeout_ms": 0}, "body.timeout_ms"),
        ({"name": "a", "timeout_ms": 604_800_001}, "body.timeout_ms"),
        ({"name": "a", "qos": 3}, "body.qos"),
        ({"name": "a", "command_id": ""}, "command_id is not allowed"),
        ({"name": "a", "command_id": "a/b"}, "command_id is not allowed"),
        ({"name": "a", "command_id": "x" * 129}, "command_id is not allowed"),
        ({"name": "a", "topic": "x"}, "body.topic"),
    ],
)
def test_what_cannot_be_issued_is_named(world: World, body: Mapping[str, Any], why: str) -> None:
    answer = world.http.post(PATH, content=json.dumps(body), headers={"content-type": "application/json"})
    assert (answer.status_code, why in answer.json()["message"]) == (400, True), answer.text
    assert world.records == []


def test_a_wait_is_bounded(world: World) -> None:
    for wait_ms in (-1, 60_001):
        assert world.http.post(PATH, params={"wait_ms": wait_ms}, json=BODY).status_code == 400
    assert world.records == []
    assert world.http.post(PATH, data=BODY).status_code == 415, "a form of another page could send that"


def test_what_kafka_did_not_acknowledge_can_be_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(*_given: object) -> None:
        raise UnavailableError("Kafka did not acknowledge the change in 10 s: timed out")

    with monkeypatch.context() as patched:
        patched.setattr(world, "put", put)
        answer = world.http.post(PATH, json=BODY)
    assert answer.status_code == 503
    assert "repeat it with the id id-1" in answer.json()["message"]
    assert world.http.get(f"{PATH}/id-1").status_code == 404
    assert world.http.post(PATH, json=BODY | {"command_id": "id-1"}).status_code == 202


def test_an_unknown_command_is_404_once_all_is_read(world: World) -> None:
    assert world.http.get(f"{PATH}/nobody").status_code == 404
    world.condition.not_ready("topics", "not read to the end yet")
    answer = world.http.get(f"{PATH}/nobody")
    assert (answer.status_code, answer.json()["message"]) == (503, "not read to the end yet")
    assert world.http.get(PATH).json()["problem"] == "not read to the end yet"
    assert world.http.post(PATH, json=BODY).status_code == 202, "nothing has to be read for that"


OPERATOR, READER = ("ada", "o-pass"), ("bob", "r-pass")
AUTH = AuthSettings(
    operator_passwords={OPERATOR[0]: SecretStr(OPERATOR[1])}, reader_passwords={READER[0]: SecretStr(READER[1])}
)


def test_a_reader_issues_nothing_and_sees_no_content() -> None:
    with world_of(AUTH) as world:
        assert world.http.post(PATH, auth=READER, json=BODY).status_code == 403
        assert world.http.post("/ui/devices/dev-1/commands", auth=READER, data=BODY).status_code == 403
        assert world.records == []
        assert world.http.post(PATH, json=BODY, auth=OPERATOR).json()["issued_by"] == "ada"
        world.commands.log.take_outcome(answered(b"\xffsecret"))
        for path in (PATH, f"{PATH}/id-1"):
            shown = world.http.get(path, auth=READER)
            assert "celsius" not in shown.text
            found = shown.json().get("commands", [shown.json()])[0]
            hidden = {name: found[name] for name in ("payload", "payload_base64", "answer", "answer_base64")}
            assert set(hidden.values()) == {None}
            assert (found["outcome"], found["payload_bytes"], found["answer_bytes"]) == ("answered", 14, 7)
        seen = world.http.get(f"{PATH}/id-1", auth=OPERATOR).json()
        assert (seen["payload"], seen["answer_base64"]) == (
            '{"celsius":21}',
            base64.b64encode(b"\xffsecret").decode(),
        )
        pages = {user: world.http.get("/ui/devices/dev-1", auth=user).text for user in (READER, OPERATOR)}
        assert ("celsius" in pages[READER], "celsius" in pages[OPERATOR]) == (False, True)
        assert ("secret" in pages[READER], "secret" in pages[OPERATOR]) == (False, True)


def test_a_device_s_id_may_have_slashes(world: World) -> None:
    answer = world.http.post("/isotherm/devices/a%2Fb/commands", json=BODY)
    assert (answer.headers["location"], world.records[0][1]) == ("/isotherm/devices/a%2Fb/commands/id-1", "a/b")
    assert world.http.get(answer.headers["location"]).json()["device_id"] == "a/b"


def test_the_page_of_a_device_issues_a_command_and_shows_its_outcome(world: World) -> None:
    page = world.http.get("/ui/devices/dev-1")
    assert (page.status_code, 'action="/ui/devices/dev-1/commands"' in page.text) == (404, True)
    form = {"name": "setpoint", "payload": "a\r\nb", "content_type": "", "timeout": "60", "qos": "1"}
    done = world.http.post("/ui/devices/dev-1/commands", data=form | {"expects_answer": "yes"})
    assert (done.status_code, done.headers["location"]) == (303, "/ui/devices/dev-1#commands")
    record = world.records[0][2]
    assert (record["payload"], record["content_type"], record["expects_answer"]) == (b"a\nb", None, True)
    page = world.http.get("/ui/devices/dev-1")
    assert (page.status_code, ">issued</span>" in page.text, "data-live" in page.text) == (200, True, True)
    world.commands.log.take_outcome(outcome(REFUSED, reason="it <is> busy"))
    shown = world.http.get("/ui/devices/dev-1").text
    assert ">refused</span>" in shown
    assert "it &lt;is&gt; busy" in shown
    assert "data-live" not in shown, "nothing changes any more"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"timeout": "soon"}, "time-out &#39;soon&#39; is not allowed"),
        ({"timeout": "9" * 5_000}, "is not allowed"),
        ({"timeout": "604801"}, "timeout_ms 604801000 is not allowed"),
        ({"timeout": "0"}, "timeout_ms 0 is not allowed"),
        ({"qos": "4"}, "qos &#39;4&#39; is not allowed"),
        ({"name": "a/b"}, "name is not allowed"),
    ],
)
def test_a_form_that_is_wrong_issues_nothing(world: World, changed: Mapping[str, str], why: str) -> None:
    form = {"name": "setpoint", "payload": "", "timeout": "60", "qos": "1", **changed}
    answer = world.http.post("/ui/devices/dev-1/commands", data=form)
    assert (answer.status_code, why in answer.text) == (400, True)
    assert world.records == []
