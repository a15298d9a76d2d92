"""The server attests every record that it has acknowledged, where it is in Kafka and once; killed, never more."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attested_records import Placed, attested, stored
from mqtt_devices import Wire, publish_packet
from mqtt_world import Proxy, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

READINGS = "thermostat.data"
PUBLISHES = 300


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        # Only a page of a while ago, and the last one.
        made.configure(name=made.device, attestations__interval_ms=100)
        yield made


def publish(proxy: Proxy, device: str, first: int) -> None:
    """Publish at every QoS, some batches and some that become dead letters, and wait for the answers."""
    wire = Wire(proxy, f"{device}-{first}")
    topic = f"devices/{device}/temperature"
    for number in range(first, first + PUBLISHES):
        qos = number % 3
        payload = b'{"t": %d, "sequence": %d}' % (number, number)
        if number % 10 == 9:
            payload = b"[" + b", ".join([payload] * 3) + b"]"
        elif number % 25 == 7:
            payload = b"{broken"
        packet_id = number - first + 1
        wire.send(publish_packet(topic, payload, packet_id, qos=qos))
        if qos:
            wire.packet()
        if qos == 2:
            wire.release(packet_id)
            wire.packet()
    wire.close()


def found(proxy: Proxy) -> tuple[Placed, Placed]:
    """The records of this test's devices that are attested, and those that are in the topic."""
    kafka, prefix = proxy.topics.kafka, proxy.device.encode()
    mine = stored(kafka, READINGS, lambda key: key.startswith(prefix))
    told = attested(kafka, proxy.topics.registry, "mqtt-proxy", READINGS)
    return Counter({place: times for place, times in told.items() if place in mine}), mine


@pytest.mark.parametrize("code", ["compiled", "pure"])
def test_what_is_acknowledged_is_attested_once(proxy: Proxy, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1" if code == "pure" else "")
    proxy.start()
    for number in range(3):
        publish(proxy, f"{proxy.device}-{number}", PUBLISHES * number)
    assert proxy.signal(signal.SIGTERM) == 0
    told, mine = found(proxy)
    assert len(mine) > 3 * PUBLISHES
    assert told == mine
    assert set(told.values()) == {1}


def test_what_a_killed_server_has_attested_is_there(proxy: Proxy) -> None:
    """Other servers of other tests write the topic, too; only this one's pages speak of this one's records."""
    for number in range(3):
        proxy.start()
        publish(proxy, f"{proxy.device}-{number}", PUBLISHES * number)
        wait_until("something is attested", lambda: bool(found(proxy)[0]))
        proxy.kill()
    told = attested(proxy.topics.kafka, proxy.topics.registry, "mqtt-proxy", READINGS)
    everything = stored(proxy.topics.kafka, READINGS, lambda _key: True)
    assert len(told) > PUBLISHES
    assert told <= everything
