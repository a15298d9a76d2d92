"""One aggregator through outages of its servers and through changes of its target state, on real servers.

It begins without the registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aggregator_steps import SCHEMAS, Steps
from aggregator_world import DEADLINE_S, Process, Topics, wait_for

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long]

SHUTDOWN_TIMEOUT_MS = 6_000


@pytest.fixture(scope="module")
def world(
    kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Steps]:
    """An aggregator that was started while the registry did not answer."""
    topics = Topics(kafka.bootstrap_servers, registry.url, "aggregator-outages")
    topics.declare(list(SCHEMAS))
    folder: Path = tmp_path_factory.mktemp("outages") / "checkpoint"
    settings = {"advance_when_idle": False, "registry.timeout_ms": 1_000, "shutdown_timeout_ms": SHUTDOWN_TIMEOUT_MS}
    registry.pause()
    try:
        with Process(topics, folder, free_port(), group_attributes="", **settings) as process:
            wait_for(lambda: "registry" in process.ready().get("problems", {}), "the missing registry", process)
            registry.resume()
            yield Steps(topics, process)
    finally:
        registry.resume()


def test_it_waits_for_the_registry_and_goes_on(world: Steps) -> None:
    wait_for(lambda: world.process.ready().get("ready", False), "readiness", world.process)
    assert '"part": "registry"' in world.process.log_text()


def test_known_ids_go_on_without_the_registry_and_a_new_one_waits_for_it(world: Steps, registry: Registry) -> None:
    registry.pause()
    try:
        world.send(version=1)
        world.wait_for_windows()
        world.send(version=2)
        wait_for(lambda: "registry" in world.process.ready().get("problems", {}), "the new id", world.process)
    finally:
        registry.resume()
    world.wait_for_windows()
    wait_for(lambda: world.process.ready().get("ready", False), "readiness", world.process)


def test_paused_it_reads_nothing_and_resumed_nothing_is_missing(world: Steps) -> None:
    before = world.found()
    world.want("PAUSED")
    world.wait_for_state("PAUSED")
    waiting = world.send(version=1)
    wait_for(lambda: sum(world.status()["lag"].values()) >= waiting, "the lag of a paused query", world.process)
    assert world.status()["state"] == "PAUSED"
    assert world.found() == before
    world.want("STARTED")
    world.wait_for_windows()
    world.wait_for_state("RUNNING")


def test_a_pause_outlasts_the_process(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url, "aggregator-paused")
    topics.declare(list(SCHEMAS))
    settings = {"group_attributes": "", "advance_when_idle": False}
    with Process(topics, tmp_path / "checkpoint", free_port(), **settings) as process:
        steps = Steps(topics, process)
        steps.want("PAUSED")
        steps.wait_for_state("PAUSED")
        assert process.terminate() == 0
    with Process(topics, tmp_path / "checkpoint", free_port(), **settings) as process:
        steps = Steps(topics, process)
        steps.send(version=1)
        steps.wait_for_state("PAUSED")
        assert process.ready()["ready"]
        assert process.terminate() == 0
    assert steps.found() == {}


def test_restarted_it_goes_on(world: Steps) -> None:
    started = 'isotherm_aggregator_query_restarts_total{cause="asked for",query="windows"}'
    before = world.process.metrics().get(started, 0)
    world.want("STARTED", restarts=1)
    wait_for(lambda: world.process.metrics().get(started, 0) > before, "the restart", world.process)
    world.send(version=2)
    world.wait_for_windows()
    assert len(world.process.jvm_pids()) == 1


def test_sigterm_ends_it_by_the_deadline_while_kafka_is_away(world: Steps, kafka: Kafka) -> None:
    """The last one here: it ends the process."""
    (jvm,) = world.process.jvm_pids()
    kafka.pause()
    try:
        wait_for(lambda: "kafka" in world.process.ready().get("problems", {}), "Kafka's outage", world.process)
        assert world.process.terminate() == 3
        deadline = time.monotonic() + DEADLINE_S
        while Path(f"/proc/{jvm}").exists():
            assert time.monotonic() < deadline, "the JVM outlives the process"
            time.sleep(0.2)  # between two looks at another process, which has no way to call us
    finally:
        kafka.resume()
