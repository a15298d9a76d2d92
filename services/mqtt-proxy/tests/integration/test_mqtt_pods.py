"""Several pods of one server behind a balancer: sessions move between them, pods are killed, frozen, restarted."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqtt_devices import PUBCOMP, PUBREC, DeviceGroup, Wire, take_over_half_open
from mqtt_pods import Hops, Pods, kill, opened_pods, send_signal
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
        _, new, values = take_over_half_open(from_pod, to_pod, device, number)
        expected += values
        new.close()
    assert first.topics.values(device) == expected
    for pod in pods.pods:
        assert pod.signal(signal.SIGTERM) == 0


def test_kills_restarts_and_a_pod_that_joins_store_each_reading_once(pods: Pods) -> None:
    shake(pods, steps=5)


@pytest.mark.long
@pytest.mark.timeout(3 * 3_600)
def test_fifty_kills_and_fifty_restarts_store_each_reading_once(pods: Pods) -> None:
    shake(pods, steps=100)


def shake(pods: Pods, *, steps: int) -> None:
    """Kill or restart a pod in each step, under the load of devices that hop between pods; a third one joins halfway.

    Prints what really happened.
    """
    pods.start(2)
    group = DeviceGroup(pods.entrance, pods.device, devices=20, messages=None, qos=2, pause_s=1.0)
    hops = Hops(pods.balancer)
    group.on_accepted = hops.note
    happened: Counter[str] = Counter()
    try:
        for step in range(steps):
            until_more_is_acknowledged(group)
            if step == steps // 2:
                before = len(group.acknowledged)
                joining = pods.add()
                joining.start()
                pods.admit(joining)
                happened["readings acknowledged while the third pod joined"] = len(group.acknowledged) - before
            # Kills and restarts befall each pod in turn.
            pod = pods.pods[(step + 1) // 2 % len(pods.pods)]
            if step % 2 == 0:
                kill(pod)
                happened["kills"] += 1
            else:
                assert pod.signal(signal.SIGTERM) == 0
                happened["rolling restarts"] += 1
            pod.start()
            pods.balancer.cut_all()
        until_more_is_acknowledged(group)
        group.finish(600)
    finally:
        group.abandon()
    logs = "".join(pod.log() for pod in pods.pods)
    happened["incarnations of pods"] = logs.count('"event": "joined"')
    happened["adoptions of sessions"] = logs.count('"event": "sessions adopted"')
    happened["connections"], happened["connections to another pod than before"] = hops.connections, hops.hops
    stored = pods.topics.identities(pods.device)
    happened["readings published"], happened["readings stored"] = len(group.published), stored.total()
    sys.stdout.write("".join(f"\n{count:>8,} {what}" for what, count in happened.items()) + "\n")
    assert stored == Counter(group.published)
    assert happened["kills"] == happened["rolling restarts"] + steps % 2 == (steps + 1) // 2
    assert happened["readings acknowledged while the third pod joined"] > 0
    assert happened["incarnations of pods"] == 3 + steps
    assert len(hops.by_host) == 3
    assert hops.hops >= steps


def until_more_is_acknowledged(group: DeviceGroup) -> None:
    """Return when the load has brought on average five readings of each device since the call."""
    enough = len(group.acknowledged) + 100
    wait_until("the load flows", lambda: len(group.acknowledged) >= enough)


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
