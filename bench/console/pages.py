"""How long the console's pages and Connect's calls take, with 50 connectors of 3 tasks each.

    python bench/console/pages.py [--connectors 50] [--tasks 3] [--requests 200]

Starts Kafka and the registry of the stack on free ports, writes synthetic records onto the control topics, starts
`isotherm-console` as a process, and asks for each page REQUESTS times over one connection while all heartbeats arrive
every five seconds. Prints median, p95 and the largest of each in ms. Goal: p95 below 100 ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer

import isotherm.schemas
from isotherm.cli.apply import apply
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack import measurement
from isotherm.stack.ports import Ports, hold_free_port, release
from isotherm.stack.stack import Stack

GOAL_MS = 100.0
KLASS = "isotherm.elasticsearch.ElasticsearchSinkConnector"
PAGES = (
    "/ui/",
    "/ui/connectors/sink-007",
    "/ui/connectors/sink-007/edit",
    "/ui/new?klass=" + KLASS,
    "/connectors",
    "/connectors?expand=status&expand=info",
    "/connectors/sink-007/status",
    "/isotherm/connectors",
    "/ui/topics",
    "/ui/topics/isotherm.status",
    "/ui/devices",
    "/ui/alerts",
)
BEAT_S = 5.0
WAIT_S = 120.0


class Cluster:
    """Writes the records that connectors, workers and tasks would write."""

    def __init__(self, settings: KafkaSettings, registry: RegistrySettings, connectors: int, tasks: int) -> None:
        schemas = SchemaRegistry(registry)
        self._producer: Producer = clients.producer(settings, "bench")
        self._connector = schemas.encoder("isotherm.connectors", isotherm.schemas.schema("ConnectorConfig", 2))
        self._status = schemas.encoder("isotherm.status", isotherm.schemas.schema("TaskStatus", 2))
        self._plugin = schemas.encoder("isotherm.plugins", isotherm.schemas.schema("PluginDefinition", 1))
        self._names = [f"sink-{number:03d}" for number in range(connectors)]
        self._tasks, self._beats = tasks, 0

    def configure(self) -> None:
        """Write the class and the connectors; three connectors share a topic."""
        plugin = next(one.value for one in isotherm.schemas.examples("isotherm.plugins"))
        self._producer.produce(
            "isotherm.plugins", key=KLASS, value=self._plugin({**plugin, "connector_class": KLASS, "type": "sink"})
        )
        for number, name in enumerate(self._names):
            topic = f"topic-{number // 3:02d}"
            config = {
                "name": name,
                "connector.class": KLASS,
                "tasks.max": str(self._tasks),
                "topics": topic,
                "connect.elastic.kcql": f"INSERT INTO index-{number} SELECT * FROM {topic}",
            }
            record = {
                "name": name,
                "connector_class": KLASS,
                "config": config,
                "target_state": "STARTED",
                "restart_count": 0,
                "task_restarts": {},
                "mode": "distributed",
                "worker_group": "bench",
                "updated_at": int(time.time() * 1000),
            }
            self._producer.produce("isotherm.connectors", key=name, value=self._connector(record))
        self.beat()

    def beat(self) -> None:
        """Write a heartbeat of every task, one of fifty failed with a long trace, and wait for the acknowledgements."""
        self._beats += 1
        for number, name in enumerate(self._names):
            for task in range(self._tasks):
                has_failed = number % 50 == 7 and task == 1
                record: dict[str, Any] = {
                    "connector": name,
                    "task": task,
                    "worker": f"host-{task}:1",
                    "worker_group": "bench",
                    "state": "FAILED" if has_failed else "RUNNING",
                    "trace": "Traceback\n" + "  File x, line 1\n" * 500 if has_failed else None,
                    "counts": {"read": self._beats * 5_000, "written": self._beats * 5_000, "dead_lettered": 0},
                    "lag": {f"topic-{number // 3:02d}-{task}": self._beats % 7},
                    "classes": [],
                    "updated_at": int(time.time() * 1000),
                }
                self._producer.produce(
                    "isotherm.status", key=f"{name}/{task}/host-{task}:1", value=self._status(record)
                )
        if self._producer.flush(WAIT_S):
            raise SystemExit("Kafka did not acknowledge the heartbeats")


@contextmanager
def beating(cluster: Cluster) -> Iterator[None]:
    """Send heartbeats while the body runs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            cluster.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def servers(prefix: str, *packages: str) -> Iterator[tuple[KafkaSettings, RegistrySettings, Path]]:
    """Run Kafka and the registry with the suite's topics, and print the environment; the folder is theirs."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    stack = Stack(folder, Ports.free())
    try:
        stack.up(["kafka", "registry"])
        settings = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
        registry = RegistrySettings(url=stack.registry.url)
        apply(settings, registry)
        print("\n".join(measurement.environment(*packages)))
        yield settings, registry, folder
    finally:
        stack.down()


@contextmanager
def console(settings: KafkaSettings, registry: RegistrySettings, folder: Path) -> Iterator[httpx.Client]:
    """Run the console as a process, and wait until it is ready."""
    port = hold_free_port()
    release(port)
    chosen = {
        "kafka.bootstrap_servers": settings.bootstrap_servers,
        "registry.url": registry.url,
        "listen.port": port,
    }
    sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    with (folder / "console.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "isotherm.console", "run", *sets], stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
            limit = time.monotonic() + WAIT_S
            while not _is_ready(client):
                if time.monotonic() > limit:
                    raise SystemExit((folder / "console.log").read_text(encoding="utf-8"))
                time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        process.wait(WAIT_S)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/connectors").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def measure(client: httpx.Client, page: str, requests: int) -> list[float]:
    """Return the sorted response times of a page in ms."""
    times = []
    for _ in range(requests):
        began = time.perf_counter()
        answer = client.get(page)
        times.append((time.perf_counter() - began) * 1_000)
        if answer.status_code != httpx.codes.OK:
            raise SystemExit(f"{page}: {answer.status_code} {answer.text[:200]}")
    return sorted(times)


def main() -> int:
    """Measure and print the response times; exit code 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connectors", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200)
    given = parser.parse_args()
    is_met = True
    with servers("isotherm-bench-console-", "fastapi", "uvicorn", "jinja2") as (settings, registry, folder):
        cluster = Cluster(settings, registry, given.connectors, given.tasks)
        cluster.configure()
        print(f"{given.connectors} connectors x {given.tasks} tasks, {given.requests} requests each, ms")
        print(f"{'page':50} {'median':>8} {'p95':>8} {'max':>8}")
        with console(settings, registry, folder) as client, beating(cluster):
            for page in PAGES:
                times = measure(client, page, given.requests)
                p95 = times[int(len(times) * 0.95)]
                is_met = is_met and p95 < GOAL_MS
                print(f"{page[:50]:50} {statistics.median(times):8.1f} {p95:8.1f} {times[-1]:8.1f}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
