"""The proxy with third-party clients, and what a Kafka consumer then reads."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gmqtt
import paho.mqtt.client as paho
import pytest
from mqtt_devices import PUBACK, PUBREC, Wire, publish_packet, text
from mqtt_world import WAIT_S, Proxy, mosquitto_pub, opened, wait_until
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def test_mosquitto_pub_at_every_qos_in_both_versions(proxy: Proxy) -> None:
    proxy.start()
    sent: list[tuple[float, str]] = []
    for version in ("mqttv311", "mqttv5"):
        for qos in (0, 1, 2):
            mosquitto_pub(
                proxy, f"devices/{proxy.device}/temperature", json.dumps({"t": len(sent)}), qos, "-V", version
            )
            sent.append((float(len(sent)), str(qos)))
    wait_until("QoS 0 is stored too", lambda: proxy.metric("readings_stored_total") == len(sent))
    found = proxy.topics.readings("thermostat.data", proxy.device)
    assert [(reading["value"], headers["mqtt.qos"]) for reading, headers in found] == sent
    reading, headers = found[0]
    assert (reading["device_id"], reading["metric"], reading["unit"]) == (proxy.device, "temperature", "Cel")
    assert headers["mqtt.topic"] == f"devices/{proxy.device}/temperature"
    wait_until("the status is told", lambda: any(status["state"] == "RUNNING" for status in states(proxy)))
    assert proxy.signal(signal.SIGTERM) == 0
    last = states(proxy)[-1]
    assert (last["state"], last["trace"]) == ("UNASSIGNED", None)
    assert (last["counts"]["messages_received"], last["counts"]["connections"]) == (len(sent), 0)
    assert proxy.device not in str(last), "nothing of a client"


def states(proxy: Proxy) -> list[dict[str, Any]]:
    """The states that the proxy's process published on the status topic, in order."""
    said = [status for status, _ in proxy.topics.readings("isotherm.status", "mqtt-proxy/7/")]
    return [status for status in said if status["worker"].endswith(f":{proxy.pid}")]


def test_the_documents_regex_list_at_qos_2(proxy: Proxy) -> None:
    proxy.start(routes="", topic_regex_list="temperature:.*temperature, brightness:.*brightness")
    mosquitto_pub(proxy, "home/temperature", "21.25", 2, "-i", proxy.device)
    mosquitto_pub(proxy, "home/brightness", '{"value": 310, "room": "hall"}', 2, "-i", proxy.device)
    ((temperature, _),) = proxy.topics.readings("temperature", proxy.device)
    ((brightness, _),) = proxy.topics.readings("brightness", proxy.device)
    assert (temperature["metric"], temperature["value"], temperature["unit"]) == ("temperature", 21.25, "Cel")
    assert (brightness["metric"], brightness["value"], brightness["unit"]) == ("brightness", 310.0, "lx")
    assert brightness["attributes"] == {"room": "hall"}


def test_what_does_not_fit_is_a_dead_letter_and_acknowledged(proxy: Proxy) -> None:
    proxy.start()
    mosquitto_pub(proxy, f"devices/{proxy.device}/temperature", "{broken", 1, "-i", proxy.device)
    mosquitto_pub(proxy, f"devices/{proxy.device}/temperature", '{"t": "warm"}', 2, "-i", proxy.device)
    mosquitto_pub(proxy, "no/route", "21", 1, "-i", proxy.device)
    dead_letters = {
        v: headers for key, v, headers in proxy.topics.raw("mqtt-proxy.dead-letters") if key == proxy.device
    }
    assert set(dead_letters) == {b"{broken", b'{"t": "warm"}', b"21"}
    assert dead_letters[b"21"]["__connect.errors.exception.message"] == "no route matches the topic 'no/route'"
    assert dead_letters[b"{broken"]["__connect.errors.topic"] == f"devices/{proxy.device}/temperature"
    assert "value" in dead_letters[b'{"t": "warm"}']["__connect.errors.exception.message"]
    assert proxy.topics.readings("thermostat.data", proxy.device) == []
    assert proxy.metric("dead_letters_total") == 3


def test_what_does_not_fit_is_refused_when_told_and_the_client_can_be(proxy: Proxy) -> None:
    proxy.start(invalid_publish="refuse")
    five, device = Wire(proxy, proxy.device, version=5), proxy.device
    topic = f"devices/{device}/temperature"
    for qos, answer in ((1, PUBACK), (2, PUBREC)):
        five.send(publish_packet(topic, b"{broken", 1, qos=qos, version=5))
        five.expect_reason(answer, 1, 0x99)
        five.send(publish_packet("no/route", b"21", 1, qos=qos, version=5))
        five.expect_reason(answer, 1, 0x90)
        five.publish(device, qos, 1, qos=qos)
        five.expect(answer, 1)
    old = Wire(proxy, f"{device}-old")
    old.send(publish_packet(topic, b"{broken", 1, qos=1))
    old.expect(PUBACK, 1)
    assert proxy.topics.values(device) == [1.0, 2.0]
    assert [key for key, _, _ in proxy.topics.raw("mqtt-proxy.dead-letters", device)] == [f"{device}-old"]
    assert proxy.metric("invalid_publishes_refused_total") == 4


def test_mqtt5_client_with_user_properties(proxy: Proxy) -> None:
    proxy.start()
    connected: list[Any] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, proxy.device, protocol=MQTTProtocolVersion.MQTTv5)
    client.on_connect = lambda _client, _data, _flags, _reason, properties: connected.append(properties)
    client.connect("127.0.0.1", proxy.port)
    client.loop_start()
    try:
        wait_until("connected", lambda: bool(connected))
        for qos in (1, 2):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho leaves it untyped
            properties.UserProperty = [("room", f"r{qos}")]
            properties.ContentType = "application/json"
            sent = client.publish(f"devices/{proxy.device}/temperature", b'{"t": 1}', qos, properties=properties)
            sent.wait_for_publish(WAIT_S)
    finally:
        client.disconnect()
        client.loop_stop()
    assert connected[0].ReceiveMaximum == 1000
    assert connected[0].MaximumPacketSize == 65_536
    found = [headers for _, headers in proxy.topics.readings("thermostat.data", proxy.device)]
    assert [headers["mqtt.user.room"] for headers in found] == ["r1", "r2"]
    assert {headers["mqtt.content_type"] for headers in found} == {"application/json"}


def test_gmqtt_at_every_qos_with_mqtt5(proxy: Proxy) -> None:
    proxy.start()

    async def publish() -> None:
        client = gmqtt.Client(proxy.device, clean_session=False, session_expiry_interval=60)
        await client.connect("127.0.0.1", proxy.port, version=gmqtt.constants.MQTTv50)
        for qos in (0, 1, 2):
            client.publish(
                f"devices/{proxy.device}/temperature", {"t": qos}, qos=qos, user_property=[("room", f"r{qos}")]
            )
        await asyncio.to_thread(
            wait_until, "all is acknowledged", lambda: proxy.metric("messages_acknowledged_total") == 2
        )
        await client.disconnect()

    asyncio.run(publish())
    wait_until("QoS 0 is stored too", lambda: proxy.metric("readings_stored_total") == 3)
    found = proxy.topics.readings("thermostat.data", proxy.device)
    assert sorted((reading["value"], headers["mqtt.user.room"]) for reading, headers in found) == [
        (0.0, "r0"),
        (1.0, "r1"),
        (2.0, "r2"),
    ]
    assert Wire(proxy, proxy.device).session_present, "kept for as long as gmqtt asked"


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_the_will_of_a_mosquitto_pub_that_is_killed(proxy: Proxy, version: str) -> None:
    proxy.start()
    topic = f"devices/{proxy.device}/temperature"
    will = ["--will-topic", topic, "--will-payload", '{"t": -1}', "--will-qos", "2"]
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(proxy.port), "-V", version, "-t", topic, "-q", "1", "-l"]
    with subprocess.Popen([*command, *will], stdin=subprocess.PIPE) as device:
        assert device.stdin is not None
        device.stdin.write(b'{"t": 20}\n')
        device.stdin.flush()
        wait_until("it published", lambda: proxy.metric("messages_acknowledged_total") == 1)
        device.kill()
    wait_until("the will is stored", lambda: proxy.metric("readings_stored_total") == 2)
    assert proxy.topics.values(proxy.device) == [20.0, -1.0]


def test_subscribing_is_refused_and_sessions_are_answered_as_stored(proxy: Proxy) -> None:
    proxy.start()
    first = Wire(proxy, proxy.device)
    assert not first.session_present
    first.send(b"\x82\x06\0\1\0\1#\0" + b"\xa2\x05\0\2\0\1#" + b"\xc0\0")
    assert first.receive(5 + 4 + 2) == b"\x90\x03\0\1\x80" + b"\xb0\2\0\2" + b"\xd0\0"
    second = Wire(proxy, proxy.device)
    assert second.session_present
    assert first.is_closed_by_the_proxy(), "taken over"
    proxy.kill()
    proxy.start()
    assert Wire(proxy, proxy.device).session_present, "also after kill -9"
    assert not Wire(proxy, proxy.device, clean=True).session_present
    assert not Wire(proxy, proxy.device).session_present, "a clean session wiped it"


def test_a_will_is_published_unless_the_device_says_goodbye(proxy: Proxy) -> None:
    proxy.start()
    polite, lost = (
        Wire(proxy, name, will=text(f"devices/{name}/temperature".encode()) + text(b'{"t": -1}'))
        for name in (f"{proxy.device}-polite", f"{proxy.device}-lost")
    )
    polite.send(b"\xe0\0")
    assert polite.is_closed_by_the_proxy()
    lost.close()
    wait_until("the will is stored", lambda: proxy.metric("wills_total") == 1 == proxy.metric("readings_stored_total"))
    ((reading, headers),) = proxy.topics.readings("thermostat.data", proxy.device)
    assert (reading["device_id"], reading["value"], headers["mqtt.qos"]) == (f"{proxy.device}-lost", -1.0, "1")
