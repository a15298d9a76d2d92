"""`spark-submit` runs the service by the lines that the documentation prints: in its own JVM and on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aggregator_steps import SCHEMAS, Steps
from aggregator_submitted import Submitted, printed_line
from aggregator_world import Topics

from isotherm.stack.artifacts import Artifacts
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry
from isotherm.stack.servers.server import Runtime, wait_all_ready
from isotherm.stack.servers.spark import SparkMaster, SparkWorker

pytestmark = pytest.mark.integration

EXAMPLE_MASTER = "spark://spark.example:7077"
OWN_DEFAULTS = {"spark.cleaner.periodicGC.interval": "7min"}


@pytest.fixture
def topics(kafka: Kafka, registry: Registry, request: pytest.FixtureRequest) -> Topics:
    declared = Topics(kafka.bootstrap_servers, registry.url, f"aggregator-{request.node.name}".replace("_", "-"))
    declared.declare(list(SCHEMAS))
    return declared


@pytest.fixture
def cluster(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[tuple[SparkMaster, SparkWorker]]:
    """A master and a worker, which start side by side."""
    runtime = Runtime(Artifacts())
    master = SparkMaster(tmp_path / "master", runtime, port=free_port(), page_port=free_port())
    worker = SparkWorker(tmp_path / "worker", runtime, port=free_port(), page_port=free_port(), master=master)
    try:
        for server in (master, worker):
            server.start()
        wait_all_ready([master, worker])
        yield master, worker
    finally:
        for server in (worker, master):
            server.stop()


def test_it_runs_in_the_jvm_of_spark_submit(topics: Topics, tmp_path: Path, free_port: Callable[[], int]) -> None:
    """With the properties of `spark-defaults.conf`, and the service's own where that has none."""
    line = printed_line("local[*]")
    with Submitted(line, topics, tmp_path / "checkpoint", (free_port(), free_port()), OWN_DEFAULTS) as process:
        steps = Steps(topics, process)
        steps.send(version=1)
        steps.wait_for_windows()
        properties = process.spark_properties()
        process.end()
    assert properties["spark.cleaner.periodicGC.interval"] == "7min"
    assert properties["spark.scheduler.mode"] == "FAIR"
    assert properties["spark.sql.ansi.enabled"] == "false"


@pytest.mark.long
def test_it_runs_on_a_standalone_cluster(
    topics: Topics, cluster: tuple[SparkMaster, SparkWorker], tmp_path: Path, free_port: Callable[[], int]
) -> None:
    """Tasks run in an executor of the worker; the driver stays where `spark-submit` is."""
    master, worker = cluster
    line = printed_line(EXAMPLE_MASTER).replace(EXAMPLE_MASTER, master.address)
    with Submitted(line, topics, tmp_path / "checkpoint", (free_port(), free_port()), {}) as process:
        steps = Steps(topics, process)
        steps.send(version=1)
        steps.wait_for_windows()
        (application,) = master.state()["activeapps"]
        process.end()
    assert application["state"] == "RUNNING"
    assert any("Running task" in log.read_text(encoding="utf-8") for log in worker.executor_logs())
