"""Several pods of one server behind a balancer: sessions move between them, pods are killed, frozen, restarted."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqtt_devices import PUBCOMP, PUBREC, DeviceGroup, Wire
from mqtt_pods import Pods, kill, opened_pods, send_signal
from mqtt_world import wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]


@pytest.fixture
def pods(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Pods]:
    with opened_pods(kafka, registry, tmp_path, free_port) as made:
        yield made


def test_a_half_open_connection_is_taken_over_from_another_pod(pods: Pods) -> None:
    pods.start(2)
    first, second = pods.pods
    device, expected = first.device, []
    for number in range(6):
        from_pod, to_pod = (first, second) if number % 2 == 0 else (second, first)
        expected += [number + 0.25, number + 0.5]
        old = Wire(from_pod, device)
        assert old.session_present == (number > 0)
        old.publish(device, number + 0.25, 1)
        old.expect(PUBREC, 1)
        old.publish(device, number + 0.5, 2)
        # The device's link breaks: it knows nothing of the second publish and does not say goodbye.
        new = Wire(to_pod, device)
        assert new.session_present
        for packet_id, value in ((1, 0.25), (2, 0.5)):
            new.publish(device, number + value, packet_id, dup=True)
            new.expect(PUBREC, packet_id)
        for packet_id in (1, 2):
            new.release(packet_id)
            new.expect(PUBCOMP, packet_id)
        new.close()
    assert first.topics.values(device) == expected
    for pod in pods.pods:
        assert pod.signal(signal.SIGTERM) == 0


def test_kills_restarts_and_a_pod_that_joins_store_each_reading_once(pods: Pods) -> None:
    shake(pods, steps=5, messages=400)


@pytest.mark.long
@pytest.mark.timeout(3 * 3_600)
def test_fifty_kills_and_fifty_restarts_store_each_reading_once(pods: Pods) -> None:
    shake(pods, steps=100, messages=10_000)


def shake(pods: Pods, *, steps: int, messages: int) -> None:
    """Kill or restart pods in turn under the load of devices that hop between them; a third pod joins halfway."""
    pods.start(2)
    group = DeviceGroup(pods.entrance, pods.device, devices=20, messages=messages, qos=2)
    try:
        for step in range(steps):
            wait_until("the load flows", lambda: group.progress() >= step / (steps + 1))  # noqa: B023  # called within the turn
            if step == steps // 2:
                joining = pods.add()
                joining.start()
                pods.admit(joining)
            pod = pods.pods[step % len(pods.pods)]
            if step % 2 == 0:
                kill(pod)
            else:
                assert pod.signal(signal.SIGTERM) == 0
            pod.start()
            pods.balancer.cut_all()
        group.finish(600)
    finally:
        group.abandon()
    assert pods.topics.identities(pods.device) == Counter(group.published)


def test_a_pod_that_was_frozen_is_fenced_and_the_others_go_on(pods: Pods) -> None:
    pods.start(2)
    first, second = pods.pods
    device = first.device
    frozen = Wire(first, device)
    frozen.publish(device, 1.0, 1)
    frozen.expect(PUBREC, 1)
    send_signal(first, signal.SIGSTOP)
    wire = Wire(second, device)
    assert wire.session_present
    wire.publish(device, 1.0, 1, dup=True)
    wire.expect(PUBREC, 1)
    wire.publish(device, 2.0, 2)
    wire.expect(PUBREC, 2)
    send_signal(first, signal.SIGCONT)
    assert first.wait() == 1
    wire.release(1)
    wire.expect(PUBCOMP, 1)
    first.start()
    again = Wire(first, device)
    assert again.session_present
    again.publish(device, 2.0, 2, dup=True)
    again.expect(PUBREC, 2)
    assert first.topics.values(device) == [1.0, 2.0]
    assert second.metric("pods") == 2
