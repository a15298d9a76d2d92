"""Devices that POST: Kafka has every reading that was answered 2.04, and every error has its code."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest
import pytest_asyncio
from aiocoap import GET, POST, PUT, Context, Message  # type: ignore[import-untyped]  # no types there
from coap_world import (
    BOTH,
    LIBCOAP_CLIENT,
    LIBCOAP_DTLS_CLIENT,
    READINGS,
    TIMEOUT_S,
    World,
    opened,
    readings_in,
    stop,
)

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

DEVICES = "`devices/*`"


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Any]:
    context = await Context.create_client_context(transports=["udp6"])
    yield context
    await context.shutdown()


def body(number: int) -> bytes:
    return json.dumps({"sensorId": f"S{number}", "temperature": number / 10, "timestamp": 1486997194029}).encode()


def response_code(said: bytes) -> str | None:
    """Return the code of the last response in the log of libcoap's client."""
    codes = re.findall(rb" c:([245]\.\d\d) ", said)
    return codes[-1].decode() if codes else None


def libcoap_post(world: World, path: str, payload: bytes) -> str | None:
    """Return the code of the answer to libcoap's client."""
    uri = f"coap://127.0.0.1:{world.port}/{path}"
    command = [LIBCOAP_CLIENT, "-m", "post", "-t", "50", "-e", payload.decode(), "-v", "7", "-B", "20", uri]
    said = subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True)
    return response_code(said.stdout + said.stderr)


async def ask(client: Any, world: World, path: str, payload: bytes = b"", code: Any = POST, **options: Any) -> Any:
    uri = f"coap://127.0.0.1:{world.port}/{path}"
    return await client.request(Message(code=code, uri=uri, payload=payload, **options)).response


async def test_a_post_answered_2_04_is_stored_as_a_message_and_a_reading(world: World, client: Any) -> None:
    reader = world.reader("coap_sensor_topic", "thermostat.data")
    ingest = world.listening(BOTH.format(DEVICES))
    assert libcoap_post(world, "devices/1", body(0)) == "2.04"
    large = json.dumps([json.loads(body(number)) for number in range(1, 60)]).encode()
    cbor = cbor2.dumps({"sensorId": "C", "temperature": 1.5})
    answers = [
        await ask(client, world, "devices/1", large, content_format=50),
        await ask(client, world, "devices/2?a=b", cbor, PUT, content_format=60),
    ]
    assert [answer.code.dotted for answer in answers] == ["2.04", "2.04"]
    assert stop(ingest) == 0
    records = reader.rest()

    assert len(large) > 2_000
    assert Counter(device for device, _, _ in readings_in(records)) == Counter([*(f"S{n}" for n in range(60)), "C"])
    messages = [r for r in records if r.topic == "coap_sensor_topic"]
    assert [(m.value["code"], m.value["uri_path"], m.value["uri_query"]) for m in messages] == [
        ("0.02", "devices/1", ""),
        ("0.02", "devices/1", ""),
        ("0.03", "devices/2", "a=b"),
    ]
    assert messages[1].value["payload"] == large.decode()
    assert messages[0].value["type"] == "CON"
    assert messages[0].value["is_notification"] is False
    assert messages[0].value["source"].startswith("127.0.0.1:")


async def test_every_error_has_its_code_and_stores_nothing(world: World, client: Any) -> None:
    reader = world.reader("thermostat.data")
    ingest = world.listening(READINGS.format(DEVICES), rate_limit="8:60")
    answers = [
        await ask(client, world, ".well-known/core", code=GET),
        await ask(client, world, "elsewhere", body(1)),
        await ask(client, world, "devices/1", code=GET),
        await ask(client, world, "devices/1", body(1), content_format=41),
        await ask(client, world, "devices/1", b"no reading"),
        await ask(client, world, "devices/1", b'[{"temperature":1},{"temperature":"x"}]', content_format=50),
        await ask(client, world, "devices/1", b" " * 300_000),
        await ask(client, world, "devices/1", body(1)),
        await ask(client, world, "devices/1", body(2)),
    ]
    codes = [answer.code.dotted for answer in answers]
    assert codes == ["2.05", "4.04", "4.05", "4.15", "4.00", "4.00", "4.13", "2.04", "4.29"]
    assert b"</devices>" in answers[0].payload
    assert b"item 1 of 2" in answers[5].payload
    assert answers[6].opt.size1 == 256 * 1024
    assert 0 < answers[8].opt.max_age <= 8
    assert world.metric("requests_total", code="4.00") == 2
    assert stop(ingest) == 0
    assert [device for device, _, _ in readings_in(reader.rest())] == ["S1"]


async def test_during_a_kafka_outage_the_answer_is_5_03_and_every_2_04_is_stored(world: World, client: Any) -> None:
    reader = world.reader("thermostat.data")
    ingest = world.listening(READINGS.format(DEVICES), timeout_ms="2000")
    codes = {1: (await ask(client, world, "devices/1", body(1))).code.dotted}
    world.kafka.pause()
    try:
        for number in range(2, 6):
            answer = await ask(client, world, "devices/1", body(number))
            codes[number] = answer.code.dotted
            assert answer.opt.max_age == 5
    finally:
        world.kafka.resume()
    number = 6
    while codes[number - 1] != "2.04":
        codes[number] = (await ask(client, world, "devices/1", body(number))).code.dotted
        number += 1
    assert stop(ingest) == 0

    assert codes[1] == "2.04"
    assert {codes[n] for n in range(2, 6)} == {"5.03"}
    acknowledged = {f"S{n}" for n, code in codes.items() if code == "2.04"}
    reader.until(lambda seen: acknowledged <= {device for device, _, _ in readings_in(seen)})


def test_a_duplicate_request_is_stored_once_also_while_its_answer_is_pending(world: World) -> None:
    reader = world.reader("thermostat.data")
    ingest = world.listening(READINGS.format("devices/1"))
    # CON POST, message id 0x1234, token 0x01, Uri-Path devices/1, Content-Format 50.
    request = bytes.fromhex("41021234 01") + b"\xb7devices\x011" + b"\x11\x32" + b"\xff" + body(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        device.connect(("127.0.0.1", world.port))
        device.settimeout(TIMEOUT_S)
        world.kafka.pause()
        try:
            device.send(request)
            # An empty acknowledgement, because the answer takes longer. A duplicate gets only another acknowledgement.
            assert device.recv(2048) == bytes.fromhex("60001234")
            device.send(request)
            assert device.recv(2048) == bytes.fromhex("60001234")
        finally:
            world.kafka.resume()
        answer = device.recv(2048)
        assert (answer[1], answer[4:5]) == (0x44, b"\x01")
        device.send(b"\x60\x00" + answer[2:4])
        device.send(request)
        assert device.recv(2048) == bytes.fromhex("60001234")
    assert stop(ingest) == 0
    assert len(readings_in(reader.rest())) == 1


def dtls_post(world: World, identity: str, key: str, *more: str, payload: bytes, path: str = "devices/1") -> str | None:
    """Return the code of the answer to libcoap's client over DTLS; None without a session."""
    uri = f"coaps://127.0.0.1:{world.port}/{path}"
    command = [LIBCOAP_DTLS_CLIENT, "-m", "post", "-t", "50", "-u", identity, "-k", key, "-v", "7", "-B", "20", *more]
    said = subprocess.run([*command, "-e", payload.decode(), uri], timeout=TIMEOUT_S, capture_output=True, check=False)
    return response_code(said.stdout + said.stderr)


def test_over_dtls_the_key_identifies_the_device_and_other_clients_get_no_session(world: World) -> None:
    reader = world.reader("coap_sensor_topic", "thermostat.data")
    keys = "device-1:secret, device-2:another"
    kcql = BOTH.format(DEVICES).replace("sensorId AS device_id, ", "")
    ingest = world.listening(kcql, "coaps", psk=keys, rate_limit="3:600")
    payload = b'{"temperature": 21.5, "timestamp": 1486997194029}'
    large = json.dumps([{"temperature": number / 10} for number in range(200)]).encode()
    assert dtls_post(world, "device-1", "secret", payload=payload) == "2.04"
    assert dtls_post(world, "device-2", "another", "-p", str(world.free_port()), payload=large) == "2.04"
    for identity, key in [("device-1", "another"), ("nobody", "secret"), ("x" * 60, "secret")]:
        assert dtls_post(world, identity, key, "-B", "5", payload=payload) is None
    assert dtls_post(world, "device-1", "secret", payload=b"no reading") == "4.00"
    assert dtls_post(world, "device-1", "secret", payload=payload) == "2.04"
    assert world.metric("dtls_peers", state="session") <= 6
    # The limit belongs to the identity, whatever port it uses.
    assert dtls_post(world, "device-1", "secret", payload=payload) == "4.29"
    assert stop(ingest) == 0
    records = reader.rest()

    assert Counter(device for device, _, _ in readings_in(records)) == {"device-1": 2, "device-2": 200}
    assert {r.key for r in records if r.topic == "coap_sensor_topic"} == {"device-1", "device-2"}
    assert all(r.headers["coap.identity"] == r.key for r in records)
    log = (world.folder / "ingest.log").read_text()
    assert "secret" not in log
    assert "Traceback" not in log


def test_a_device_writes_only_in_its_own_name_and_to_permitted_paths(world: World) -> None:
    reader = world.reader("thermostat.data")
    ingest = world.listening(
        READINGS.format(DEVICES),
        "coaps",
        psk="device-1:hex:00ff7465787400, 1:second",
        acl="device-1: devices/1; *: devices/%u",
        identity="user",
    )

    def post(identity: str, key: str, path: str, sensor: str) -> str | None:
        payload = json.dumps({"sensorId": sensor, "temperature": 1}).encode()
        return dtls_post(world, identity, key, payload=payload, path=path)

    assert post("1", "second", "devices/1", "1") == "2.04"
    assert post("1", "second", "devices/1", "victim") == "4.03"
    assert post("1", "second", "devices/2", "1") == "4.03"
    assert post("1", "second", "devices/device-1", "1") == "4.03"
    assert stop(ingest) == 0
    assert [(r.key, r.headers["coap.identity"]) for r in reader.rest()] == [("1", "1")]


def test_a_listener_without_dtls_needs_a_loopback_address_or_allow_anonymous(world: World) -> None:
    uri = f"coap://0.0.0.0:{world.port}"
    with pytest.raises(AssertionError, match="set allow_anonymous=true"):
        world.ingest(READINGS.format(DEVICES), uri="", keys={"connect.coap.listen": uri})
