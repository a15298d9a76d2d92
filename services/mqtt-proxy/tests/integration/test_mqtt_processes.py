"""Several processes on one port: sessions migrate while connections are half open, processes are killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mqtt_devices import DeviceGroup, Wire, take_over_half_open
from mqtt_world import Proxy, children_of, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]

MOST_ROUNDS = 100
"""The kernel picks the process of a connection: one half of all takeovers cross over."""


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        # A server of its own: sessions that other tests left are restored by servers of the same name.
        made.configure(name=made.device)
        yield made


def read_to_the_end(wire: Wire) -> None:
    """Returns when the proxy has closed the connection."""
    with suppress(ConnectionResetError):
        while wire.receive(1):
            pass


def test_a_half_open_connection_is_taken_over_from_another_process(proxy: Proxy) -> None:
    proxy.start(processes=2, transactions__linger_ms=100)
    device, expected = proxy.device, []
    for number in range(MOST_ROUNDS):
        old, _, values = take_over_half_open(proxy, proxy, device, number)
        expected += values
        read_to_the_end(old)
        if proxy.metric("sessions_migrated_total") >= 3:
            break
    wait_until("several sessions migrated", lambda: proxy.metric("sessions_migrated_total") >= 3)
    assert proxy.topics.values(device) == expected
    # Each process reports once a second, so the sum is at times of two moments.
    wait_until("one process holds it, the other has forgotten it", lambda: proxy.metric("sessions ") == 1)
    assert proxy.signal(signal.SIGTERM) == 0


def test_kill_9_of_one_process_under_qos_2_load_stores_each_reading_once(proxy: Proxy) -> None:
    proxy.start(processes=2)
    group = DeviceGroup(proxy, proxy.device, devices=20, messages=100, qos=2)
    try:
        for kill, share in enumerate((0.3, 0.7)):
            wait_until("the load flows", lambda: group.progress() >= share)  # noqa: B023  # called within the turn
            victims = children_of(proxy)
            os.kill(victims[kill % len(victims)], signal.SIGKILL)
            wait_until("it is missed", lambda: proxy.metric("process_restarts_total") > kill)  # noqa: B023  # called within the turn
            wait_until("its successor is ready", proxy.is_ready)
        group.finish()
    finally:
        group.abandon()
    assert proxy.topics.identities(proxy.device) == Counter(group.published)
    assert proxy.metric("processes ") == 2
    wait_until("metrics of both", lambda: proxy.metric('messages_acknowledged_total{qos="2"}') > 0)
    assert proxy.signal(signal.SIGTERM) == 0
    assert children_of(proxy) == []


@pytest.mark.long
def test_the_supervisor_is_killed_and_the_number_of_processes_changes(proxy: Proxy) -> None:
    proxy.start(processes=2)
    group = DeviceGroup(proxy, proxy.device, devices=10, messages=100, qos=2)
    try:
        for share, processes in ((0.3, 3), (0.6, 1)):
            wait_until("the load flows", lambda: group.progress() >= share)  # noqa: B023  # called within the turn
            orphans = children_of(proxy)
            proxy.kill()
            wait_until("nobody serves", lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))  # noqa: B023  # called within the turn
            proxy.start(processes=processes)
        group.finish()
    finally:
        group.abandon()
    assert proxy.topics.identities(proxy.device) == Counter(group.published)


def test_a_second_proxy_on_the_port_and_a_mistake_end_with_code_2(
    proxy: Proxy, kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    proxy.start(processes=2)
    with opened(kafka, registry, tmp_path, free_port) as second:
        second.launch(processes=2, listener__port=proxy.port)
        assert second.wait() == 2
        assert f"listener.host, listener.port: 127.0.0.1:{proxy.port}" in second.log()
        second.launch(processes=2, listener__port=free_port(), routes="INSERT INTO a SELECT * FORM b")
        assert second.wait() == 2
        assert "routes: KCQL: line 1, column" in second.log()
