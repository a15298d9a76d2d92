"""The server and the bridge as connectors: paused, resumed and restarted from Kafka, with nothing lost."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from control_world import Control
from mosquitto_broker import PASSWORD, USER, Broker
from mqtt_devices import PUBCOMP, PUBREC, DeviceGroup, Wire
from mqtt_world import Proxy, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytest_plugins = ("mqtt_fixtures",)
pytestmark = pytest.mark.integration

ORDINAL = 7
ADMINISTRATIVE = 'connections_closed_total{reason="administrative action"}'


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        made.configure(ordinal=ORDINAL)
        yield made


@contextmanager
def connector(proxy: Proxy, name: str) -> Iterator[Control]:
    """The service `name` as the console sees it; at the end its desired state is deleted."""
    control = Control(proxy.topics.kafka.bootstrap_servers, proxy.topics.registry.url)
    control.create(name, "", {"connector.class": ""}, mode="standalone")
    try:
        yield control
    finally:
        control.delete(name)


def until_halted(proxy: Proxy, control: Control, name: str, processes: int, state: str) -> None:
    """Wait until every process reports that it is halted, in its metrics and on the status topic."""
    wait_until("it is halted", lambda: proxy.is_ready() and proxy.metric("halted") == processes)
    tasks = range(ORDINAL, ORDINAL + processes)
    wait_until("the status says so", lambda: all(_state(control, name, task) == state for task in tasks))


def _state(control: Control, name: str, task: int) -> str | None:
    said = control.status(name, task)
    return None if said is None else said.state


def test_a_paused_server_accepts_nothing_and_loses_nothing(proxy: Proxy) -> None:
    with connector(proxy, "mqtt-proxy") as control:
        proxy.start(processes=2)
        before, meanwhile = groups(proxy, "before"), []
        old = Wire(proxy, proxy.device)
        try:
            old.publish(proxy.device, 1.5, 1)
            old.expect(PUBREC, 1)
            wait_until("the load flows", lambda: all(group.progress() > 0.1 for group in before))
            control.change("mqtt-proxy", target_state="PAUSED")
            until_halted(proxy, control, "mqtt-proxy", 2, "PAUSED")
            assert old.is_closed_by_the_proxy()
            assert proxy.metric(ADMINISTRATIVE) >= 1
            stored = proxy.topics.identities(proxy.device)
            assert {identity for group in before for identity in group.acknowledged} <= set(stored)

            meanwhile = groups(proxy, "meanwhile")
            assert [Wire(proxy, "late", version=version).reason for version in (4, 5)] == [3, 0x88]
            proxy.kill()
            proxy.launch()
            until_halted(proxy, control, "mqtt-proxy", 2, "PAUSED")
            assert [Wire(proxy, "late", version=version).reason for version in (4, 5)] == [3, 0x88]
            wait_until("devices try", lambda: proxy.metric('connection_attempts_total{outcome="server unav') > 20)
            assert proxy.topics.identities(proxy.device) == stored, "nothing arrives while it is paused"

            control.change("mqtt-proxy", target_state="STARTED")
            wait_until("it goes on", lambda: proxy.metric("halted") == 0)
            new = Wire(proxy, proxy.device)
            assert new.session_present
            new.release(1)
            new.expect(PUBCOMP, 1)
            wait_until("the load flows again", lambda: all(group.progress() > 0.1 for group in meanwhile))
            control.change("mqtt-proxy", restart_count=1)
            assert new.is_closed_by_the_proxy()
            for group in (*before, *meanwhile):
                group.finish()
        finally:
            for group in (*before, *meanwhile):
                group.abandon()
        stored = proxy.topics.identities(f"{proxy.device}-")
        for at_least_once, exactly_once in (before, meanwhile):
            assert at_least_once.published <= set(stored)
            assert {identity: stored[identity] for identity in exactly_once.published} == Counter(
                exactly_once.published
            )
        assert proxy.topics.values(proxy.device).count(1.5) == 1
        assert proxy.signal(signal.SIGTERM) == 0


def groups(proxy: Proxy, name: str) -> list[DeviceGroup]:
    """Devices at QoS 1, and at QoS 2."""
    return [DeviceGroup(proxy, f"{proxy.device}-{name}-{qos}", devices=5, messages=200, qos=qos) for qos in (1, 2)]


def test_a_paused_bridge_leaves_its_messages_at_the_broker(proxy: Proxy, mosquitto: Broker) -> None:
    name = "mqtt-proxy-bridge"
    proxy.configure(
        role="bridge",
        bridge__port=mosquitto.port,
        bridge__username=USER,
        bridge__password=PASSWORD,
        bridge__client_id=f"bridge-{proxy.device}",
        bridge__group=proxy.device,
    )

    def send(numbers: range) -> None:
        times = {n: 1767225600000 + n for n in numbers}
        readings = [{"id": proxy.device, "t": 20.0, "sequence": n, "event_time": at} for n, at in times.items()]
        mosquitto.publish(proxy.device, [json.dumps(reading) for reading in readings])

    def stored() -> dict[int, int]:
        return {number: count for (_, number), count in proxy.topics.identities(proxy.device).items()}

    with connector(proxy, name) as control:
        proxy.start()
        send(range(100))
        wait_until("the bridge works", lambda: stored() == dict.fromkeys(range(100), 1))
        control.change(name, target_state="PAUSED")
        until_halted(proxy, control, name, 1, "PAUSED")
        assert proxy.metric("connections ") == 0
        send(range(100, 200))
        proxy.kill()
        proxy.launch()
        control.change(name, target_state="STOPPED")
        until_halted(proxy, control, name, 1, "STOPPED")
        assert stored() == dict.fromkeys(range(100), 1), "nothing arrives while it is paused"

        control.change(name, target_state="STARTED")
        wait_until("everything arrives once", lambda: stored() == dict.fromkeys(range(200), 1))
        control.change(name, restart_count=1)
        wait_until("a new connection", lambda: proxy.metric('connection_attempts_total{outcome="accepted"}') == 2)
        send(range(200, 300))
        wait_until("everything arrives", lambda: set(stored()) == set(range(300)))
        assert proxy.signal(signal.SIGTERM) == 0
