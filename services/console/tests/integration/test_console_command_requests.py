"""Commands over REST on real servers: in the topic as they were issued, and answered as soon as an outcome is there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest
from confluent_kafka import Message
from console_world import WAIT_S, Console, World, until

from isotherm.cli import records
from isotherm.connector.commands.records import (
    ACCEPTED,
    ANSWERED,
    COMMAND_SCHEMA,
    COMMANDS,
    DELIVERED,
    OUTCOME_SCHEMA,
    OUTCOMES,
    CommandOutcome,
    DeviceCommand,
    Progress,
)
from isotherm.console.records.partitions import partition_of
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

BODY = {"name": "setpoint", "payload": '{"celsius":21.5}', "content_type": "application/json", "expects_answer": True}


class Settling:
    """Writes outcomes as the settling process does: in transactions."""

    def __init__(self, world: World) -> None:
        self._encode = SchemaRegistry(world.registry).encoder(OUTCOMES, OUTCOME_SCHEMA)
        self._producer = clients.producer(world.kafka, "test", transactional_id=f"test-{uuid.uuid4().hex}")
        self._producer.init_transactions(WAIT_S)

    def settle(self, *outcomes: CommandOutcome, is_aborted: bool = False) -> None:
        """Write outcomes in one transaction."""
        self._producer.begin_transaction()
        for one in outcomes:
            self._producer.produce(OUTCOMES, key=one.device_id, value=self._encode(one.record()))
        assert self._producer.flush(WAIT_S) == 0
        if is_aborted:
            self._producer.abort_transaction(WAIT_S)
        else:
            self._producer.commit_transaction(WAIT_S)


@pytest.fixture(scope="module")
def settling(world: World) -> Settling:
    return Settling(world)


@pytest.fixture
def device() -> str:
    return f"dev/{uuid.uuid4().hex[:8]}"


def path_of(device: str, *more: str) -> str:
    return "/".join(["/isotherm/devices", device.replace("/", "%2F"), "commands", *more])


def outcome_of(found: dict[str, Any], word: str, **more: Any) -> CommandOutcome:
    """An outcome of an issued command, as REST tells of it."""
    issued_ms = found["issued_at"]
    return CommandOutcome(
        found["device_id"],
        found["command_id"],
        word,
        found["name"],
        found["issued_by"],
        issued_ms,
        found["deadline"],
        issued_ms + 300,
        accepted_ms=issued_ms + 4,
        **more,
    )


def answered(found: dict[str, Any], content: bytes = b'{"ok":true}') -> CommandOutcome:
    progress = Progress("mqtt-proxy", found["issued_at"] + 20, found["issued_at"] + 50)
    return outcome_of(found, ANSWERED, progress=progress, answered_ms=found["issued_at"] + 250, answer=content)


def stored(world: World, device: str) -> Iterator[Message]:
    with closing(records.read(world.kafka, COMMANDS)) as found:
        for message in found:
            if message.key() == device.encode():
                yield message


def test_a_command_is_in_the_topic_when_it_is_answered(world: World, console: Console, device: str) -> None:
    answer = console.http.post(path_of(device), json=BODY | {"timeout_ms": 5_000, "qos": 2})
    assert answer.status_code == 202, answer.text
    found = answer.json()
    (message,) = stored(world, device)
    decode = Decoder(SchemaRegistry(world.registry), COMMAND_SCHEMA)
    issued_ms = found["issued_at"]
    assert DeviceCommand.of(decode(message.value() or b"").record) == DeviceCommand(
        device,
        found["command_id"],
        "setpoint",
        b'{"celsius":21.5}',
        "application/json",
        "anonymous",
        issued_ms,
        issued_ms + 5_000,
        2,
        True,
    )
    partitions = world.admin.list_topics(COMMANDS).topics[COMMANDS].partitions
    assert message.partition() == partition_of(device.encode(), len(partitions)), "where its steps are, too"
    assert answer.headers["location"] == path_of(device, found["command_id"])
    assert console.http.get(answer.headers["location"]).json() == found
    # The call again, as of a client that got no answer, is no second record.
    again = console.http.post(path_of(device), json=BODY | {"command_id": found["command_id"], "qos": 2})
    assert again.json() == found
    assert len(list(stored(world, device))) == 1


@pytest.mark.parametrize("is_issued_before", [True, False], ids=["GET", "POST"])
def test_an_outcome_wakes_the_request_that_waits_for_it(
    console: Console, settling: Settling, device: str, is_issued_before: bool
) -> None:
    waiting = {"wait_ms": 60_000}
    with ThreadPoolExecutor(1) as others:
        if is_issued_before:
            issued = console.http.post(path_of(device), json=BODY).json()
            asked = others.submit(console.http.get, path_of(device, issued["command_id"]), params=waiting)
        else:
            asked = others.submit(console.http.post, path_of(device), params=waiting, json=BODY)
            (issued,) = until_listed(console, device, lambda found: len(found) == 1)
        settling.settle(outcome_of(issued, ACCEPTED))
        settling.settle(outcome_of(issued, DELIVERED), is_aborted=True)
        settling.settle(answered(issued))
        found = asked.result(WAIT_S)
    assert found.status_code == 200, found.text
    assert (found.json()["outcome"], found.json()["answer"]) == ("answered", '{"ok":true}')
    assert [one["outcome"] for one in found.json()["outcomes"]] == ["accepted", "answered"], "none that was aborted"


def until_listed(console: Console, device: str, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """The device's commands, once there are enough."""
    found: list[Any] = []

    def are_there() -> bool:
        found[:] = console.http.get(path_of(device)).json()["commands"]
        return enough(found)

    until("the commands are listed", are_there, console.log)
    return found


def test_a_console_that_starts_shows_earlier_commands_and_outcomes(
    world: World, console: Console, settling: Settling, device: str
) -> None:
    issued = [console.http.post(path_of(device), json=BODY | {"command_id": str(n)}).json() for n in range(3)]
    settling.settle(outcome_of(issued[0], ACCEPTED), outcome_of(issued[1], ACCEPTED), answered(issued[0], b"\xff"))
    expected = until_listed(console, device, lambda found: sum(one["outcome"] is not None for one in found) == 2)
    other = world.console()
    assert until_listed(other, device, lambda found: found == expected)
    assert {one["command_id"]: one["outcome"] for one in expected} == {"2": None, "1": "accepted", "0": "answered"}
    until("all is read", lambda: other.http.get(path_of(device)).json()["problem"] is None, other.log)
    assert other.http.get(path_of(device, "nobody")).status_code == 404
    page = other.http.get(f"/ui/devices/{device.replace('/', '%2F')}")
    assert (">answered</span>" in page.text, ">issued</span>" in page.text) == (True, True)


def test_a_console_reads_no_further_back_than_it_is_told(world: World, settling: Settling, device: str) -> None:
    young = world.console("search.commands_ms=0")
    old = world.console("search.max_device_commands=1")
    first = old.http.post(path_of(device), json=BODY).json()
    until_listed(young, device, lambda found: len(found) == 1)
    other = world.console("search.commands_ms=0")
    second = old.http.post(path_of(device), json=BODY).json()
    settling.settle(answered(second))
    (found,) = until_listed(other, device, lambda found: bool(found) and found[0]["is_final"])
    assert found["command_id"] == second["command_id"]
    (kept,) = until_listed(old, device, lambda found: bool(found) and found[0]["is_final"])
    assert kept["command_id"] == second["command_id"] != first["command_id"], "one of a device at most"


def test_a_console_that_stops_answers_who_waits(world: World, device: str) -> None:
    console = world.console()
    with ThreadPoolExecutor(1) as others:
        asked = others.submit(console.http.post, path_of(device), params={"wait_ms": 60_000}, json=BODY)
        until_listed(console, device, lambda found: len(found) == 1)
        assert console.stop() == 0
        found: httpx.Response = asked.result(WAIT_S)
    assert (found.status_code, found.json()["is_final"]) == (202, False)


def test_a_record_that_is_no_command_is_passed(world: World, console: Console, settling: Settling, device: str) -> None:
    producer = clients.producer(world.kafka, "test")
    for topic in (COMMANDS, OUTCOMES):
        producer.produce(topic, key=device, value=b"poison")
        producer.produce(topic, key=device, value=None)
    assert producer.flush(WAIT_S) == 0
    found = console.http.post(path_of(device), json=BODY).json()
    settling.settle(answered(found))
    until_listed(console, device, lambda found: bool(found) and found[0]["is_final"])
    listed = console.http.get(f"/isotherm/topics/{COMMANDS}/records", params={"text": "setpoint", "limit": 1})
    (shown,) = listed.json()["records"]
    assert shown["value"]["payload"] == "******", "a reader may browse topics"
