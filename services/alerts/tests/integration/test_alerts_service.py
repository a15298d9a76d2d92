"""One running service: its input, its dead-letter records, and changes of its target state."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from alerts_world import Topics, Worker, until
from confluent_kafka import Message

from isotherm.connector.errors.dead_letters import PREFIX
from isotherm.servicekit.kafka import clients
from isotherm.simulators.scripted_day import temperature
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

RULES = [
    {"kind": "above", "metric": "temperature", "threshold": 30, "hysteresis": 1, "severity": "critical"},
    {"kind": "silent", "intervals": 3, "cautious_intervals": 3, "min_ms": 1_000},
    {"kind": "unknown-device", "for_ms": 3_600_000},
]
OVERRIDES = {"model": {"T9": {"temperature.above": 50}}, "home": {"sauna": {"temperature.above": 90}}}
POISON = [b"", b"no frame", b"\x00\x00\x0f\x12\x06rest", None]


class Hook:
    """A webhook that answers as a test sets it and keeps what was posted."""

    def __init__(self) -> None:
        self.answers: dict[str, list[int]] = {}
        """By device; 200 when there is none left."""
        self.posts: list[tuple[str, dict[str, Any]]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                alert = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.posts.append((self.headers["Idempotency-Key"], alert))
                answers = hook.answers.get(alert["device_id"])
                self.send_response(answers.pop(0) if answers else 200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """The posts themselves are kept."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def posted(self, device_id: str) -> list[str]:
        return [key for key, alert in self.posts if alert["device_id"] == device_id and alert["rule"] == "above"]


class World:
    """A running service, its topics and its webhook."""

    def __init__(self, topics: Topics, worker: Worker, hook: Hook) -> None:
        self.topics, self.worker, self.hook = topics, worker, hook

    def read(self, device_id: str, *values: float, sequence: int = 1, **overrides: Any) -> int:
        """Publish values of a device, one a second until now; returns the time of the last one."""
        now_ms = time.time_ns() // 1_000_000
        times = [now_ms - 1_000 * (len(values) - index - 1) for index in range(len(values))]
        found = [
            temperature(device_id, v, at, sequence + i) for i, (v, at) in enumerate(zip(values, times, strict=True))
        ]
        self.topics.publish(self.topics.input, found, **overrides)
        return times[-1]

    def alerts(self, device_id: str, states: list[str], rule: str = "above") -> list[dict[str, Any]]:
        """Wait for the alerts of a device, in these states; returns them."""
        found: list[dict[str, Any]] = []

        def are_there() -> bool:
            found[:] = self.topics.alerts_of(device_id, rule)
            return len(found) >= len(states)

        until(f"{device_id} has {states}", are_there)
        assert [one["state"] for one in found] == states
        return found

    def know(self, device_id: str, **known: Any) -> None:
        """Write the record of a device, and wait until the service has read it."""
        before = self.worker.counted("device_records_total")
        record: dict[str, Any] = {
            "device_id": device_id,
            "home": None,
            "room": None,
            "region": None,
            "model": None,
            "thresholds": {},
        }
        self.topics.publish(self.topics.devices, [record | known])
        until(f"{device_id} is known", lambda: self.worker.counted("device_records_total") > before)


@pytest.fixture(scope="module")
def world(
    kafka: Kafka,
    registry: Registry,
    tmp_path_factory: pytest.TempPathFactory,
    free_port: Callable[[], int],
) -> Iterator[World]:
    topics = Topics(kafka.bootstrap_servers, registry.url)
    topics.declare()
    hook = Hook()
    folder: Path = tmp_path_factory.mktemp("alerts")
    worker = Worker(
        topics,
        folder,
        free_port(),
        rules=RULES,
        overrides=OVERRIDES,
        max_publish_delay_ms=0,
        reorder_ms=500,
        webhook__url=hook.url,
        webhook__retry_for_ms=60_000,
    )
    try:
        yield World(topics, worker.start(), hook)
    finally:
        worker.kill()
        hook.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "snappy", "zstd"])
def test_readings_come_in_every_compression(world: World, codec: str) -> None:
    at_ms = world.read(f"packed-{codec}", 20, 31, compression_type=codec)
    (opened,) = world.alerts(f"packed-{codec}", ["opened"])
    assert opened["alert_id"] == f"packed-{codec}/above/temperature/{at_ms}"
    assert (opened["value"], opened["threshold"], opened["severity"]) == (31.0, 30.0, "critical")
    assert (opened["opened_at"], opened["updated_at"], opened["closed_at"]) == (at_ms, at_ms, None)


def test_an_aborted_transaction_has_no_effect(world: World) -> None:
    producer = clients.producer(world.topics.kafka, "aborts", transactional_id=f"{world.topics.name}-aborts")
    producer.init_transactions(60)
    for device_id, value, commits in (("aborted", 99.0, False), ("committed", 99.0, True), ("aborted", 20.0, True)):
        producer.begin_transaction()
        now_ms = time.time_ns() // 1_000_000
        record = temperature(device_id, value, now_ms, 1)
        producer.produce(world.topics.input, key=device_id, value=world.topics.encode(world.topics.input, record))
        assert producer.flush(60) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(60)
    world.alerts("committed", ["opened"])

    def states() -> list[dict[str, Any]]:
        return [one for one in world.topics.records(world.topics.latest) if one["device_id"] == "aborted"]

    until("the committed reading is shown", lambda: bool(states()))
    assert {one["latest"]["temperature"]["value"] for one in states()} == {20.0}
    assert world.topics.alerts_of("aborted", "above") == []


def test_a_threshold_takes_effect_with_the_next_reading(world: World) -> None:
    pid = world.worker.pid
    world.know("told")
    world.read("told", 25, sequence=1)
    world.know("told", thresholds={"temperature.above": 20.0})
    at_ms = world.read("told", 25, sequence=2)
    (opened,) = world.alerts("told", ["opened"])
    assert (opened["opened_at"], opened["threshold"]) == (at_ms, 20.0)
    world.know("told", thresholds={"temperature.above": 40.0})
    at_ms = world.read("told", 25, sequence=3)
    _, closed = world.alerts("told", ["opened", "closed"])
    assert (closed["closed_at"], closed["threshold"]) == (at_ms, 40.0)
    assert world.worker.pid == pid


def test_the_nearest_override_counts(world: World) -> None:
    world.know("model", model="T9", home="flat")
    world.know("home", model="T9", home="sauna")
    world.know("own", model="T9", home="sauna", thresholds={"temperature.above": 10.0})
    for device_id in ("model", "home", "own"):
        world.read(device_id, 60)
    assert world.alerts("model", ["opened"])[0]["threshold"] == 50.0
    assert world.alerts("own", ["opened"])[0]["threshold"] == 10.0
    world.read("home", 95, sequence=2)
    assert world.alerts("home", ["opened"])[0]["value"] == 95.0


def test_poison_is_buried_and_the_next_reading_counts(world: World) -> None:
    producer = clients.producer(world.topics.kafka, "poison")
    for value in POISON:
        producer.produce(world.topics.input, key="poisoned", value=value, headers=[("from", b"a device")])
    assert producer.flush(60) == 0
    world.read("poisoned", 31)
    world.alerts("poisoned", ["opened"])
    refused = [one for one in world.topics.messages(world.topics.dead) if one.key() == b"poisoned"]
    assert [one.value() for one in refused] == POISON
    for one in refused:
        headers = _headers(one)
        assert headers["from"] == b"a device"
        assert headers[f"{PREFIX}topic"] == world.topics.input.encode()
        assert headers[f"{PREFIX}exception.message"]
    assert _headers(refused[2])[f"{PREFIX}exception.class.name"].endswith(b".UnknownSchemaError")


def test_a_threshold_that_no_rule_can_have_has_no_effect(world: World) -> None:
    before = world.worker.counted("device_thresholds_refused_total")
    world.know("wrong", thresholds={"silent.interval_ms": float("nan"), "silent": 1e308, "temperature.above": 20.0})
    until("both are counted", lambda: world.worker.counted("device_thresholds_refused_total") == before + 2)
    world.read("wrong", *[19.0] * 7, 25)
    (opened,) = world.alerts("wrong", ["opened"])
    assert opened["threshold"] == 20.0


def test_a_device_that_makes_up_metrics_is_stopped_and_its_others_count(world: World) -> None:
    now_ms = time.time_ns() // 1_000_000
    made_up = [temperature("inventive", 20, now_ms, 0) | {"metric": f"m{number}"} for number in range(65)]
    world.topics.publish(world.topics.input, [temperature("inventive", 20, now_ms, 1), *made_up])
    world.read("inventive", 31, sequence=2)
    world.alerts("inventive", ["opened"])
    refused = [one for one in world.topics.messages(world.topics.dead) if one.key() == b"inventive"]
    texts = [_headers(one)[f"{PREFIX}exception.message"] for one in refused]
    assert texts == [f"'inventive' has 64 metrics, 'm{number}' would be one more".encode() for number in (63, 64)]


def test_a_device_is_silent_by_the_wall_clock(world: World) -> None:
    at_ms = world.read("silent", 20, 20, 20, 20, 20, 20, 20)
    (opened,) = world.alerts("silent", ["opened"], rule="silent")
    assert opened["opened_at"] == at_ms + 3_000
    at_ms = world.read("silent", 20, sequence=8)
    until("it is silent no more", lambda: len(world.topics.alerts_of("silent", "silent")) >= 2)
    # It is silent again three seconds later.
    closed = world.topics.alerts_of("silent", "silent")[1]
    assert (closed["state"], closed["closed_at"]) == ("closed", at_ms)


def test_an_open_transaction_makes_no_device_silent(world: World) -> None:
    """A killed MQTT server leaves an open transaction, which may hold readings of devices that were never silent."""
    topics = world.topics
    server = clients.producer(
        topics.kafka, "server", transactional_id=f"{topics.name}-server", transaction_timeout_ms=120_000
    )
    server.init_transactions(60)

    def write(device_id: str, partition: int, times: range) -> None:
        server.begin_transaction()
        for sequence, at_ms in enumerate(times, 1):
            value = topics.encode(topics.input, temperature(device_id, 20, at_ms, sequence))
            server.produce(topics.input, key=device_id, value=value, partition=partition)
        assert server.flush(60) == 0

    now_ms = time.time_ns() // 1_000_000
    for device_id, partition, last_ms in (("held", 0, now_ms), ("gone", 1, now_ms), ("gone later", 2, now_ms + 2_000)):
        write(device_id, partition, range(last_ms - 6_000, last_ms + 1, 1_000))
        server.commit_transaction(60)
    write("held", 0, range(now_ms - 6_000, now_ms + 1_001, 1_000))
    world.alerts("gone", ["opened"], rule="silent")
    world.alerts("gone later", ["opened"], rule="silent")
    # Its last committed reading is as old as that of the first one.
    assert topics.alerts_of("held", "silent") == []
    server.commit_transaction(60)
    (opened,) = world.alerts("held", ["opened"], rule="silent")
    assert opened["opened_at"] == now_ms + 1_000 + 3_000


def test_the_webhook_is_posted_to_until_it_answers(world: World) -> None:
    world.hook.answers["posted"] = [503, 429]
    world.read("posted", 31)
    (alert,) = world.alerts("posted", ["opened"])
    keys = [f"{alert['alert_id']}/opened"] * 3
    until("the alert is posted three times", lambda: world.hook.posted("posted") == keys)


def test_what_the_webhook_refuses_is_a_dead_letter(world: World) -> None:
    world.hook.answers["refused"] = [400]
    world.read("refused", 31)
    world.alerts("refused", ["opened"])

    def refused() -> list[Message]:
        return [one for one in world.topics.messages(world.topics.dead) if one.key() == b"refused"]

    until("there is a dead-letter record", lambda: bool(refused()))
    (record,) = refused()
    (alert,) = [one for one in world.topics.messages(world.topics.alerts) if one.key() == b"refused"]
    assert record.value() == alert.value()
    assert _headers(record)[f"{PREFIX}topic"] == world.topics.alerts.encode()
    assert len(world.hook.posted("refused")) == 1


def test_a_paused_service_reads_on_when_it_is_resumed(world: World) -> None:
    world.topics.want("PAUSED")
    until("it says that it is paused", lambda: "PAUSED" in world.topics.said())
    world.read("paused", 31)
    resumed_ms = time.time_ns() // 1_000_000
    world.topics.want("STARTED")
    world.alerts("paused", ["opened"])
    (message,) = [one for one in world.topics.messages(world.topics.alerts) if one.key() == b"paused"]
    assert message.timestamp()[1] >= resumed_ms


def test_a_restart_recovers_and_decides_nothing_again(world: World) -> None:
    before = world.topics.distinct_alerts()
    recoveries = world.worker.counted("recoveries_total")
    pid = world.worker.pid
    world.topics.want("STARTED", restarts=1)
    until("it has recovered", lambda: world.worker.counted("recoveries_total") > recoveries)
    until("it is ready", world.worker.is_ready)
    at_ms = world.read("packed-none", 20, sequence=3)
    (_, closed) = world.alerts("packed-none", ["opened", "closed"])
    assert closed["closed_at"] == at_ms
    assert world.worker.pid == pid
    assert before.items() <= world.topics.distinct_alerts().items()


def _headers(message: Message) -> dict[str, bytes]:
    return dict(cast(list[tuple[str, bytes]], message.headers() or []))
