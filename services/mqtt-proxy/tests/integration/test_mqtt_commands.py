"""Commands reach devices that subscribe, and Kafka has each step of their way."""

from __future__ import annotations

import asyncio
import queue
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import gmqtt
import paho.mqtt.client as paho
import pytest
from mqtt_commands import OpenTopic
from mqtt_devices import PUBACK, PUBREC, Wire, packet, publish_packet, text
from mqtt_world import WAIT_S, Proxy, opened, wait_until
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

ANSWER = b'{"metric": "t", "unit": "Cel", "value": 21.5}'
"""It would be a reading on another topic."""
SENDING, ACKNOWLEDGED, ANSWERED, REFUSED = "sending", "acknowledged", "answered", "refused"


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        made.configure(commands__enabled="true", commands__topic="devices/{device}/commands/{name}")
        yield made


def subscribe_packet(packet_id: int, *filters: str, qos: int = 1, version: int = 4) -> bytes:
    properties = b"\0" if version == 5 else b""
    body = b"".join(text(one.encode()) + bytes((qos,)) for one in filters)
    return packet(0x82, struct.pack(">H", packet_id) + properties + body)


def subscribed(proxy: Proxy, device: str, *, qos: int = 1, **more: Any) -> Wire:
    """A device that subscribes to its commands with MQTT 3.1.1, unless it keeps a session in which it did."""
    wire = Wire(proxy, device, **more)
    if not wire.session_present:
        wire.send(subscribe_packet(1, f"devices/{device}/commands/#", qos=qos))
        assert wire.packet() == (0x90, bytes((0, 1, qos)))
    return wire


def next_publish(wire: Wire) -> tuple[int, str, int, bytes]:
    """First byte, topic, packet identifier and payload of the next packet, a PUBLISH of MQTT 3.1.1."""
    first, body = wire.packet()
    assert first >> 4 == 3, (first, body)
    size = struct.unpack(">H", body[:2])[0]
    topic, rest = body[2 : 2 + size].decode(), body[2 + size :]
    if not first & 6:
        return first, topic, 0, rest
    return first, topic, struct.unpack(">H", rest[:2])[0], rest[2:]


def puback(packet_id: int) -> bytes:
    return packet(0x40, struct.pack(">H", packet_id))


def test_a_connected_device_gets_its_commands_in_order_and_their_steps_are_stored(proxy: Proxy) -> None:
    proxy.start()
    commands, device = OpenTopic(proxy.topics), proxy.device
    wire = subscribed(proxy, device)
    commands.open(f"{device}-other", "c0")
    commands.open(device, "c1", payload=b'{"t":21}')
    commands.open(device, "c2", payload=b'{"t":22}')
    topic = f"devices/{device}/commands/set"
    assert next_publish(wire) == (0x32, topic, 1, b'{"t":21}')
    assert next_publish(wire) == (0x32, topic, 2, b'{"t":22}')
    (first, second) = commands.wait_for_steps(device, [("c1", SENDING), ("c2", SENDING)])
    assert (first["service"], first["qos"], first["reason"]) == ("mqtt-proxy", 1, None)
    assert first["worker"].endswith(f":{proxy.pid}")
    assert first["worker"] == second["worker"]
    wire.send(puback(2) + puback(1))
    commands.wait_for_steps(device, [("c1", SENDING), ("c2", SENDING), ("c2", ACKNOWLEDGED), ("c1", ACKNOWLEDGED)])
    assert commands.steps(f"{device}-other") == [], "nobody has subscribed to it"
    assert proxy.metric("commands_sent_total") == proxy.metric("commands_acknowledged_total") == 2
    assert proxy.metric("command_devices") == 1


def test_a_device_that_connects_later_gets_what_is_open_then(proxy: Proxy) -> None:
    commands, device = OpenTopic(proxy.topics), proxy.device
    commands.open(device, "ended")
    commands.open(device, "stays", payload=b"stays")
    commands.open(device, "expired", left_ms=-1)
    commands.end(device, "ended")
    proxy.start()
    commands.open(device, "late", payload=b"late")
    wire = subscribed(proxy, device)
    assert [next_publish(wire)[3] for _ in range(2)] == [b"stays", b"late"]
    commands.wait_for_steps(device, [("stays", SENDING), ("late", SENDING)])


def test_a_command_at_qos_0_is_sent_once_whatever_happens(proxy: Proxy) -> None:
    proxy.start()
    commands, device = OpenTopic(proxy.topics), proxy.device
    wire = subscribed(proxy, device, qos=0)
    opened_ = commands.open(device, "c1", payload=b"once")
    assert next_publish(wire) == (0x30, f"devices/{device}/commands/set", 0, b"once")
    commands.wait_for_steps(device, [("c1", SENDING)])
    again = subscribed(proxy, device, qos=0)
    assert again.session_present
    again.send(b"\xc0\0")
    assert again.packet() == (0xD0, b"")
    assert opened_.command.qos == 1, "the subscription had less"
    assert proxy.metric("commands_sent_total") == 1


def test_after_sigkill_an_unacknowledged_command_comes_again_to_the_kept_session(proxy: Proxy) -> None:
    proxy.start()
    commands, device = OpenTopic(proxy.topics), proxy.device
    wire = subscribed(proxy, device)
    commands.open(device, "c1", payload=b"same")
    assert next_publish(wire) == (0x32, f"devices/{device}/commands/set", 1, b"same")
    proxy.kill()
    proxy.start()
    wire = subscribed(proxy, device)
    assert wire.session_present, "and with it its subscription"
    _, topic, packet_id, payload = next_publish(wire)
    assert (topic, payload) == (f"devices/{device}/commands/set", b"same")
    wire.send(puback(packet_id))
    commands.wait_for_steps(device, [("c1", SENDING), ("c1", SENDING), ("c1", ACKNOWLEDGED)])


def test_a_second_connection_takes_over_and_gets_the_same_packet_identifier(proxy: Proxy) -> None:
    proxy.start()
    commands, device = OpenTopic(proxy.topics), proxy.device
    first = subscribed(proxy, device)
    commands.open(device, "c1", payload=b"1")
    commands.open(device, "c2", payload=b"2")
    assert [next_publish(first)[2] for _ in range(2)] == [1, 2]
    first.send(puback(1))
    commands.wait_for_steps(device, [("c1", SENDING), ("c2", SENDING), ("c1", ACKNOWLEDGED)])
    second = subscribed(proxy, device)
    assert first.is_closed_by_the_proxy()
    assert next_publish(second) == (0x3A, f"devices/{device}/commands/set", 2, b"2"), "with DUP"
    second.send(puback(2))
    commands.wait_for_steps(device, [("c1", SENDING), ("c2", SENDING), ("c1", ACKNOWLEDGED), ("c2", ACKNOWLEDGED)])
    assert proxy.metric("commands_resent_total") == 1


def test_a_device_with_mqtt_5_refuses_by_a_reason_code(proxy: Proxy) -> None:
    proxy.start()
    commands, device = OpenTopic(proxy.topics), proxy.device
    wire = Wire(proxy, device, version=5, clean=True)
    wire.send(subscribe_packet(1, f"devices/{device}/commands/set", version=5))
    assert wire.packet() == (0x90, b"\0\1\0\1")
    commands.open(device, "c1")
    assert wire.packet()[0] == 0x32
    wire.send(packet(0x40, b"\0\1\x87"))
    steps = commands.wait_for_steps(device, [("c1", SENDING), ("c1", REFUSED)])
    assert steps[1]["reason"] == "the device refused it with reason code 0x87"


def test_what_may_not_be_subscribed_to_is_refused_with_its_code(proxy: Proxy) -> None:
    proxy.start()
    device = proxy.device
    filters = [
        f"devices/{device}/commands/+",
        "devices/+/commands/#",
        "#",
        f"$share/g/devices/{device}/commands/#",
        f"devices/{device}/temperature",
        f"devices/{device}/commands/set",
    ]
    five = Wire(proxy, device, version=5, clean=True)
    five.send(subscribe_packet(7, *filters, qos=2, version=5))
    assert five.packet() == (0x90, b"\0\7\0" + bytes((1, 0x87, 0x87, 0x9E, 0x87, 1)))
    old = Wire(proxy, f"{device}-old", clean=True)
    old.send(subscribe_packet(7, *filters, qos=0))
    assert old.packet() == (0x90, b"\0\7" + bytes((0, 0x80, 0x80, 0x80, 0x80, 0)))
    unsubscribe = struct.pack(">H", 8) + b"\0" + text(filters[0].encode()) + text(b"never/asked/for")
    five.send(packet(0xA2, unsubscribe))
    assert five.packet() == (0xB0, b"\0\x08\0\0\x11")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_answer_is_stored_before_it_is_acknowledged(proxy: Proxy, qos: int) -> None:
    proxy.start(routes="INSERT INTO thermostat.data SELECT * FROM #")
    commands, device = OpenTopic(proxy.topics), proxy.device
    wire = subscribed(proxy, device)
    commands.open(device, "c/1", payload=b"?", expects_answer=True)
    assert next_publish(wire)[3] == b"?"
    wire.send(publish_packet(f"devices/{device}/responses/c%2F1", ANSWER, 9, qos=qos))
    if qos:
        wire.expect(PUBREC if qos == 2 else PUBACK, 9)
    steps = commands.wait_for_steps(device, [("c/1", SENDING), ("c/1", ANSWERED)])
    assert (steps[1]["answer"], steps[1]["answer_content_type"], steps[1]["qos"]) == (ANSWER, None, qos)
    assert proxy.topics.readings("thermostat.data", device) == [], "no route takes it"
    assert proxy.metric("commands_answered_total") == 1


def test_with_paho_and_mqtt_5_a_command_is_a_request_and_is_answered(proxy: Proxy) -> None:
    proxy.start()
    commands, device = OpenTopic(proxy.topics), proxy.device
    got: queue.Queue[paho.MQTTMessage] = queue.Queue()
    ready = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, device, protocol=MQTTProtocolVersion.MQTTv5)

    def answer(_client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        asked = cast(Any, message.properties)
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho leaves it untyped
        properties.ContentType = "text/plain"
        properties.CorrelationData = asked.CorrelationData
        client.publish(asked.ResponseTopic, b"ok", 1, properties=properties)
        got.put(message)

    client.on_message = answer
    client.on_subscribe = lambda *_: ready.set()
    client.on_connect = cast(Any, lambda *_: client.subscribe(f"devices/{device}/commands/+", 2))
    client.connect("127.0.0.1", proxy.port)
    client.loop_start()
    try:
        assert ready.wait(WAIT_S)
        commands.open(device, "c1", payload=b'{"t":21}', expects_answer=True)
        message = got.get(timeout=WAIT_S)
        wait_until("the answer is stored", lambda: proxy.metric("commands_answered_total") == 1)
    finally:
        client.disconnect()
        client.loop_stop()
    assert (message.topic, message.payload, message.qos) == (f"devices/{device}/commands/set", b'{"t":21}', 1)
    asked = cast(Any, message.properties)
    assert (asked.ContentType, asked.CorrelationData) == ("application/json", b"c1")
    assert asked.ResponseTopic == f"devices/{device}/responses/c1"
    assert 0 < asked.MessageExpiryInterval <= 60
    found = {step["step"]: step for step in commands.steps(device)}
    assert found.keys() == {SENDING, ACKNOWLEDGED, ANSWERED}
    assert (found[ANSWERED]["answer"], found[ANSWERED]["answer_content_type"]) == (b"ok", "text/plain")


def test_with_gmqtt_a_kept_session_gets_what_was_opened_meanwhile(proxy: Proxy) -> None:
    proxy.start()
    commands, device = OpenTopic(proxy.topics), proxy.device
    got: list[tuple[str, bytes]] = []

    async def connect(clean: bool) -> gmqtt.Client:
        client = gmqtt.Client(device, clean_session=clean, session_expiry_interval=600)

        def take(_client: object, topic: str, payload: bytes, _qos: int, _properties: object) -> int:
            got.append((topic, payload))
            return 0

        client.on_message = take
        await client.connect("127.0.0.1", proxy.port, version=gmqtt.constants.MQTTv50)
        return client

    async def scenario() -> None:
        client = await connect(clean=True)
        client.subscribe(f"devices/{device}/commands/#", qos=1)
        await asyncio.to_thread(wait_until, "subscribed", lambda: proxy.metric("command_devices") == 1)
        await client.disconnect()
        await asyncio.to_thread(wait_until, "left", lambda: proxy.metric("command_devices") == 0)
        commands.open(device, "c1", payload=b"kept")
        client = await connect(clean=False)
        await asyncio.to_thread(wait_until, "it came", lambda: bool(got))
        await asyncio.to_thread(commands.wait_for_steps, device, [("c1", SENDING), ("c1", ACKNOWLEDGED)])
        await client.disconnect()

    asyncio.run(scenario())
    assert got == [(f"devices/{device}/commands/set", b"kept")]


def test_with_two_processes_the_subscription_moves_with_the_session(proxy: Proxy) -> None:
    proxy.start(processes=2)
    commands, device = OpenTopic(proxy.topics), proxy.device
    wire = subscribed(proxy, device)
    names = [f"c{number}" for number in range(8)]
    # The system spreads connections over the processes.
    for name in names:
        commands.open(device, name, payload=name.encode())
        payload = b""
        while payload != name.encode():
            # A process that has not heard yet that an earlier command has ended may send it again, as QoS 1 allows.
            _, _, packet_id, payload = next_publish(wire)
            assert payload.decode() in names[: names.index(name) + 1]
            wire.send(puback(packet_id))
        wait_for_acknowledgement(commands, device, name)
        commands.end(device, name)
        wire = subscribed(proxy, device)
        assert wire.session_present


def wait_for_acknowledgement(commands: OpenTopic, device: str, command_id: str) -> None:
    wait_until(f"{command_id} is acknowledged", lambda: command_id in acknowledged(commands, device))


def acknowledged(commands: OpenTopic, device: str) -> set[str]:
    return {step["command_id"] for step in steps_of(commands, device, ACKNOWLEDGED)}


@pytest.mark.faults
def test_while_kafka_is_away_nothing_new_is_sent_and_nothing_is_forgotten(proxy: Proxy, kafka: Kafka) -> None:
    proxy.start(delivery_timeout_ms=5_000)
    commands, device = OpenTopic(proxy.topics), proxy.device
    wire = subscribed(proxy, device, clean=True)
    commands.open(device, "c1", payload=b"1", left_ms=600_000)
    assert next_publish(wire)[2:] == (1, b"1")
    kafka.kill()
    wire.send(puback(1))
    wait_until("it says so", lambda: proxy.metric("commands_held_up") == 1)
    wait_until("the step waits", lambda: proxy.metric("command_steps_waiting") == 1)
    kafka.start()
    kafka.wait_ready()
    commands.open(device, "c2", payload=b"2", left_ms=600_000)
    assert next_publish(wire)[2:] == (2, b"2")
    wire.send(puback(2))
    wait_until("each is acknowledged", lambda: acknowledged(commands, device) == {"c1", "c2"})
    wait_until("nothing is held up", lambda: proxy.metric("commands_held_up") == 0)


def steps_of(commands: OpenTopic, device: str, step: str) -> list[dict[str, Any]]:
    return [one for one in commands.steps(device) if one["step"] == step]


def test_what_a_client_cannot_take_is_refused_for_it_and_what_nobody_can_read_is_counted(proxy: Proxy) -> None:
    proxy.start()
    commands, device = OpenTopic(proxy.topics), proxy.device
    wire = Wire(proxy, device, version=5, clean=True, properties=b"\x27\0\0\0\x64")
    wire.send(subscribe_packet(1, f"devices/{device}/commands/#", version=5))
    assert wire.packet() == (0x90, b"\0\1\0\1")
    commands.write_raw(f"{device}|bad", b"\0\0")
    commands.open(device, "c1", payload=bytes(100))
    steps = commands.wait_for_steps(device, [("c1", SENDING), ("c1", REFUSED)])
    assert steps[1]["reason"] == "it exceeds the client's Maximum Packet Size"
    assert proxy.metric("commands_unreadable_total") == 1
