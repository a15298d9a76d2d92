"""Two independent servers on one Kafka do not fence each other, with any names (ADR 0017)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqtt_devices import PUBCOMP, PUBREC, DeviceGroup, Wire
from mqtt_world import Proxy, Topics, opened, wait_until

from isotherm.connector.state.status import INTERVAL_MS, Heartbeat, State
from isotherm.mqtt_proxy.processes.name_conflicts import NameConflicts
from isotherm.schemas import schema
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]

FASTER = 5
"""How much faster than in production heartbeats come here, and are looked for."""


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        # Its default: what somebody has who starts it without a thought of others.
        made.configure(ordinal=0)
        yield made


@pytest.fixture
def other(proxy: Proxy, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    made = Proxy(tmp_path, proxy.topics, free_port(), free_port())
    made.configure(ordinal=0)
    yield made
    made.close()


def test_a_second_server_of_the_same_name_says_so_and_waits(proxy: Proxy, other: Proxy) -> None:
    proxy.start()
    wire = Wire(proxy, proxy.device)
    wire.publish(proxy.device, 1.0, 1)
    wire.expect(PUBREC, 1)
    other.launch()
    wait_until("the second one knows", lambda: "name" in other.problems())
    assert "is called mqtt-proxy, too" in other.problems()["name"]
    assert "Give each server a `name`" in other.log()
    wire.release(1)
    wire.expect(PUBCOMP, 1)
    assert proxy.is_ready(), "the first one was not fenced"
    proxy.kill()
    wait_until("the second one takes its place", other.is_ready)
    assert Wire(other, proxy.device).session_present, "with its sessions"
    other.kill()


def test_two_names_share_one_kafka_and_no_session(proxy: Proxy, other: Proxy) -> None:
    other.device = f"{proxy.device}-other"
    servers = (proxy, other)
    for server, name in zip(servers, ("", "south"), strict=True):
        server.start(name=name)
        # One client at both: what each of them knows of it is its own.
        wire = Wire(server, f"{proxy.device}-both")
        assert not wire.session_present
        wire.publish(server.device, 7.0, 1)
        wire.expect(PUBREC, 1)
        wire.close()
    groups = [DeviceGroup(server, f"{server.device}-group", devices=5, messages=60, qos=2) for server in servers]
    try:
        for server in servers:
            wait_until("the load flows", lambda: all(group.progress() >= 0.2 for group in groups))
            server.kill()
            server.start()
        for group in groups:
            group.finish()
    finally:
        for group in groups:
            group.abandon()
    stored = groups[0].published | groups[1].published
    identities = proxy.topics.identities(proxy.device)
    assert {identity: count for identity, count in identities.items() if "-group-" in identity[0]} == Counter(stored)
    for server in servers:
        wire = Wire(server, f"{proxy.device}-both")
        assert wire.session_present
        wire.publish(server.device, 7.0, 1, dup=True)
        wire.expect(PUBREC, 1)
        assert server.metric("recoveries_total") == 0
    assert proxy.topics.values(proxy.device).count(7.0) == 2


def test_a_process_of_another_host_is_found_by_its_heartbeat(proxy: Proxy) -> None:
    topics: Topics = proxy.topics
    schemas, name = SchemaRegistry(topics.registry), proxy.device
    producer = clients.producer(topics.kafka, "elsewhere")
    alive, killed, ended = (
        Heartbeat(
            lambda: producer,
            schemas,
            connector=name,
            task=task,
            worker=f"elsewhere:{task}",
            clock_ms=lambda: FASTER * time.monotonic() * 1000,
        )
        for task in range(3)
    )
    for heartbeat in (alive, killed, ended):
        heartbeat.beat(State.RUNNING, dict, dict)
    ended.publish_final_state(State.UNASSIGNED, {})
    producer.flush()
    is_over = threading.Event()
    beating = threading.Thread(target=_beat, args=(alive, is_over))
    beating.start()
    try:
        living = NameConflicts(
            clients.admin(topics.kafka, name),
            lambda: clients.consumer_to_the_end(topics.kafka, name),
            Decoder(schemas, schema("TaskStatus", 1)),
            name,
            interval_s=INTERVAL_MS / 1000 / FASTER,
        )
        assert living.others([2, 3], is_over.is_set) == {}
        assert living.others([0, 1, 2], is_over.is_set) == {0: "elsewhere:0"}
    finally:
        is_over.set()
        beating.join()


def _beat(heartbeat: Heartbeat, is_over: threading.Event) -> None:
    while not is_over.wait(0.05):
        heartbeat.beat(State.RUNNING, dict, dict)
