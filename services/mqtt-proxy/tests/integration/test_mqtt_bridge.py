"""The bridge between a real Mosquitto and a real Kafka: every message reaches Kafka, whichever process is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import attested_records
import pytest
from mosquitto_broker import PASSWORD, USER, Broker
from mqtt_world import Proxy, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytest_plugins = ("mqtt_fixtures",)
pytestmark = [pytest.mark.integration, pytest.mark.faults]

RECEIVE_MAXIMUM = 50


@pytest.fixture
def bridge(
    kafka: Kafka, registry: Registry, mosquitto: Broker, tmp_path: Path, free_port: Callable[[], int]
) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        made.configure(
            role="bridge",
            allow_anonymous="false",
            bridge__port=mosquitto.tls_port,
            bridge__cafile=mosquitto.cafile,
            bridge__username=USER,
            bridge__password=PASSWORD,
            bridge__client_id=f"bridge-{made.device}",
            bridge__group=made.device,
            bridge__receive_maximum=RECEIVE_MAXIMUM,
        )
        yield made


def numbered(bridge: Proxy, numbers: range) -> list[str]:
    """Payloads of readings."""
    return [
        json.dumps({"id": bridge.device, "t": 20.0, "sequence": n, "event_time": 1767225600000 + n}) for n in numbers
    ]


def stored(bridge: Proxy) -> dict[int, int]:
    """How often each number is in Kafka."""
    return {number: count for (_, number), count in bridge.topics.identities(bridge.device).items()}


def acknowledged(bridge: Proxy) -> float:
    return bridge.metric('messages_acknowledged_total{qos="1"}')


def test_the_broker_is_killed_while_kafka_is_away(bridge: Proxy, mosquitto: Broker, kafka: Kafka) -> None:
    bridge.start()
    mosquitto.publish(bridge.device, numbered(bridge, range(100)))
    wait_until("the bridge works", lambda: acknowledged(bridge) == 100)
    kafka.pause()
    try:
        mosquitto.publish(bridge.device, numbered(bridge, range(100, 400)))
        received = 'messages_received_total{qos="1"}'
        wait_until("the window is used up", lambda: bridge.metric(received) == 100 + RECEIVE_MAXIMUM)
        assert acknowledged(bridge) == 100, "nothing is acknowledged that Kafka has not"
        mosquitto.save()
        mosquitto.kill()
        wait_until("the loss is seen", lambda: bridge.metric("connections_closed_total") == 1)
        assert bridge.metric("connections ") == 0
        mosquitto.start()
    finally:
        kafka.resume()
    wait_until("everything arrives", lambda: set(stored(bridge)) == set(range(400)))
    wait_until("and is acknowledged", lambda: bridge.is_ready() and acknowledged(bridge) == 400)
    assert bridge.signal(signal.SIGTERM) == 0


def test_the_bridge_is_killed_and_messages_wait_for_it(bridge: Proxy, mosquitto: Broker) -> None:
    bridge.start()
    mosquitto.publish(bridge.device, numbered(bridge, range(200)))
    wait_until("the load flows", lambda: acknowledged(bridge) >= 1)
    bridge.kill()
    mosquitto.publish(bridge.device, numbered(bridge, range(200, 300)))
    bridge.start()
    wait_until("everything arrives", lambda: set(stored(bridge)) == set(range(300)))
    mosquitto.kill()
    wait_until("readiness is honest", lambda: not bridge.is_ready())
    mosquitto.start()
    wait_until("subscribed again", bridge.is_ready)
    mosquitto.publish(bridge.device, numbered(bridge, range(300, 310)))
    wait_until("also after a broker that forgot the session", lambda: set(stored(bridge)) == set(range(310)))


def test_several_processes_share_the_messages_and_invalid_ones_are_dead_letters(
    bridge: Proxy, mosquitto: Broker
) -> None:
    bridge.start(processes=2)
    mosquitto.publish(bridge.device, ["{broken", *numbered(bridge, range(200))])
    wait_until("all are acknowledged", lambda: acknowledged(bridge) == 201)
    assert stored(bridge) == dict.fromkeys(range(200), 1)
    assert bridge.metric("connections ") == 2
    topic = f"devices/{bridge.device}/temperature"
    records = bridge.topics.raw("mqtt-proxy.dead-letters")
    (letter,) = (headers for _, value, headers in records if value == b"{broken" and headers["mqtt.topic"] == topic)
    assert letter["__connect.errors.topic"] == topic
    assert bridge.signal(signal.SIGTERM) == 0
    kafka, device = bridge.topics.kafka, bridge.device.encode()
    mine = attested_records.stored(kafka, "thermostat.data", lambda key: key == device)
    told = attested_records.attested(kafka, bridge.topics.registry, "mqtt-proxy", "thermostat.data")
    assert {place: told[place] for place in mine} == dict.fromkeys(mine, 1), "each is attested once"


def test_a_wrong_password_is_said_and_tried_again(bridge: Proxy, mosquitto: Broker) -> None:
    bridge.launch(bridge__password="battery-staple")
    wait_until("the reason is shown", lambda: "Not authorized" in bridge.problems().get("broker", ""))
    assert "battery-staple" not in bridge.log()
    assert bridge.signal(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"routes": "", "topic_regex_list": "temperature:.*"}, "bridge.filters: empty"),
        ({"bridge__cafile": "/nowhere.pem"}, "bridge.cafile, bridge.certfile, bridge.keyfile:"),
        ({"bridge__group": "a/b"}, "bridge.group"),
    ],
)
def test_bad_settings_stop_the_start(bridge: Proxy, settings: dict[str, object], says: str) -> None:
    bridge.launch(**settings)
    assert bridge.wait() == 2
    assert says in bridge.log()
