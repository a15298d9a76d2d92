"""A standalone cluster of three workers with its checkpoint on S3, under load, with groups on, through kills.

Executors and the driver are killed in turns. Then every window and group is compared with an independent recount.
`CLUSTER_SECONDS` (600 when it is not set), `CLUSTER_RATE` (60,000) and `CLUSTER_KILLS` (5 of each kind) say how much.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from aggregator_recount import recount
from aggregator_storage import Storage, s3
from aggregator_submitted import Submitted, printed_line
from aggregator_world import ATTRIBUTES, READING, Topics, wait_for

from isotherm.schemas import schema
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.ports import Ports
from isotherm.stack.servers.server import Runtime, wait_all_ready
from isotherm.stack.servers.spark import SparkMaster, SparkWorker
from isotherm.stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(0)]

SECONDS = int(os.environ.get("CLUSTER_SECONDS", "600"))
RATE = int(os.environ.get("CLUSTER_RATE", "60000"))
KILLS = int(os.environ.get("CLUSTER_KILLS", "5"))
WORKERS, DEVICES, PARTITIONS = 3, 3_000, 4
RULES = checker.Rules(window_ms=30_000, allowed_lateness_ms=10_000, max_skew_ms=5_000)
MASTER, CHECKPOINT = "spark://spark.example:7077", "s3a://example/aggregator"
SETTINGS: dict[str, object] = {
    "window_ms": RULES.window_ms,
    "allowed_lateness_ms": RULES.allowed_lateness_ms,
    "max_skew_ms": RULES.max_skew_ms,
    "max_publish_delay_ms": 10_000,
    "max_offsets_per_trigger": 1_000_000,
    "shuffle_partitions": 6,
    "group_attributes": ",".join(ATTRIBUTES),
    "advance_when_idle": True,
}
DEFAULTS = {
    "spark.executor.memory": "900m",
    "spark.executor.cores": "1",
    # Executors are killed on purpose, some of them several times.
    "spark.task.maxFailures": "20",
    "spark.deploy.maxExecutorRetries": "-1",
}
GENERATOR = Path(__file__).parents[4] / "bench" / "aggregator" / "generator.py"
EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Kafka and the registry with heaps for load."""
    started = Stack(tmp_path / "stack", Ports.free(), quick_start=False)
    started.up(["kafka", "registry"])
    yield started
    started.down()
    started.wipe()


@pytest.fixture
def storage(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Storage]:
    with s3(tmp_path / "storage", free_port) as kept:
        yield kept


@pytest.fixture
def cluster(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[tuple[SparkMaster, list[SparkWorker]]]:
    runtime = Runtime(Artifacts(), quick_start=False)
    master = SparkMaster(tmp_path / "master", runtime, port=free_port(), page_port=free_port())
    workers = [
        SparkWorker(tmp_path / f"worker-{number}", runtime, port=free_port(), page_port=free_port(), master=master)
        for number in range(WORKERS)
    ]
    with ExitStack() as running:
        for server in (master, *workers):
            running.callback(server.stop)
            server.start()
        wait_all_ready([master, *workers])
        yield master, workers


def write_devices(topics: Topics) -> dict[str, dict[str, Any]]:
    """Metadata of most devices of the generator; the others are in the group of the unknown ones."""
    encode = SchemaRegistry(topics.registry).encoder(topics.devices, schema("Device", 1))
    producer = clients.producer(topics.kafka, topics.name)
    known: dict[str, dict[str, Any]] = {}
    for number in range(0, DEVICES, 3):
        device = {
            "device_id": f"device-{number:06d}",
            "home": f"home-{number % 200}",
            "room": None,
            "region": f"region-{number % 7}",
            "model": None,
        }
        known[str(device["device_id"])] = device
        producer.produce(topics.devices, key=str(device["device_id"]), value=encode({**device, "thresholds": {}}))
    assert producer.flush(60) == 0
    return known


def executors(workers: list[SparkWorker]) -> list[psutil.Process]:
    """The executors that run now."""
    children = [child for worker in workers for child in psutil.Process(worker.pid).children(recursive=True)]
    return [child for child in children if any(EXECUTOR in word for word in child.cmdline())]


def rows(topics: Topics, topic: str) -> Iterator[dict[str, Any]]:
    decoder = Decoder(SchemaRegistry(topics.registry))
    return (dict(decoder(message.value() or b"").record) for message in topics.read(topic))


def test_kills_under_load_on_three_workers_leave_every_window_right(
    stack: Stack,
    cluster: tuple[SparkMaster, list[SparkWorker]],
    storage: Storage,
    tmp_path: Path,
    free_port: Callable[[], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    master, workers = cluster
    topics = Topics(stack.kafka.bootstrap_servers, stack.registry.url, "three-workers")
    topics.declare([READING])
    known = write_devices(topics)
    line = printed_line(MASTER, CHECKPOINT).replace(MASTER, master.address)
    line = line.replace(CHECKPOINT, f"{storage.location}/three-workers")
    schema_id = SchemaRegistry(topics.registry).schema_id(f"{topics.input}-value", READING)
    command = [sys.executable, str(GENERATOR), topics.bootstrap_servers, topics.input, str(schema_id)]
    command += ["--devices", str(DEVICES), "--readings", str(SECONDS * RATE), "--rate", str(RATE)]
    starts = 0

    def submit() -> Submitted:
        nonlocal starts
        starts += 1
        ports = (free_port(), free_port())
        defaults = {**storage.properties, **DEFAULTS}
        return Submitted(line, topics, tmp_path / f"driver-{starts}", ports, defaults, **SETTINGS)

    def is_ready(driver: Submitted) -> bool:
        return bool(driver.ready().get("ready", False)) and bool(executors(workers))

    driver = submit()
    killed = {"executor": 0, "driver": 0}
    try:
        wait_for(lambda: is_ready(driver), "the driver", driver)
        begin_s = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as generator:
            for number in range(2 * KILLS):
                at_s = begin_s + SECONDS * (number + 1) / (2 * KILLS + 1)
                while time.monotonic() < at_s and generator.poll() is None:
                    time.sleep(0.2)  # until the next kill
                if number % 2 == 0:
                    wait_for(lambda: bool(executors(workers)), "an executor", driver)
                    executors(workers)[number // 2 % len(executors(workers))].send_signal(signal.SIGKILL)
                    killed["executor"] += 1
                else:
                    driver.kill()
                    killed["driver"] += 1
                    driver = submit()
                    wait_for(lambda driver=driver: is_ready(driver), "the driver", driver)  # type: ignore[misc]  # bound now
            assert generator.stdout is not None
            said: dict[str, float] = json.loads(generator.stdout.read())
        records, expected = recount(topics.kafka, topics.input, PARTITIONS, READING, RULES)
        wait_for(lambda: sum(1 for _ in topics.read(topics.output)) >= len(expected), "every window", driver)
        wait_for(
            lambda: {checker.window_key(row) for row in rows(topics, topics.output)} >= expected.keys(),
            "every window",
            driver,
        )
        groups = checker.expected_groups(expected, known, ATTRIBUTES)
        wait_for(
            lambda: {checker.group_key(row) for row in rows(topics, topics.grouped)} >= groups.keys(),
            "every group",
            driver,
        )
        dropped = driver.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"]
    finally:
        driver.terminate()

    found, problems = checker.latest((checker.window_key(row), row) for row in rows(topics, topics.output))
    found_groups, group_problems = checker.latest((checker.group_key(row), row) for row in rows(topics, topics.grouped))
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what this is run for
            f"\noffered {said['readings']:,} readings in {said['seconds']:.0f} s "
            f"({said['readings'] / said['seconds']:,.0f}/s), {records:,} in the topic, killed {killed}, "
            f"{len(expected):,} windows and {len(groups):,} groups compared"
        )
    assert records == said["readings"]
    assert (problems, group_problems) == ([], [])
    assert checker.mismatches(expected, found) == []
    assert checker.mismatches(groups, found_groups) == []
    assert dropped == 0
