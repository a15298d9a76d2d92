"""What distributed workers need of the connectors: which to run, of which group, in which state, restarted or not."""

from __future__ import annotations

from pact import match

from isotherm.connector.distributed.controller import Controller, StartTask, TaskPlan
from isotherm.connector.distributed.publishing import CONNECTORS
from isotherm.connector.state.desired_state import PARTITIONS, desired_state_of
from isotherm.connector.state.target_follower import READER
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, UnusableError, expect
from isotherm.contracts.seam import GROUP

WORKERS = ("persisters", "coap-ingest", "mqtt-proxy")


def _started(harness: Harness, found: Message, group: str) -> list[StartTask]:
    """What a worker that owns everything starts."""
    record = harness.decode(found.value, READER)
    worker = Controller(group, lambda _config: TaskPlan(1))
    worker.assigned(range(PARTITIONS))
    try:
        worker.configured(found.key, desired_state_of(found.key, record))
    except ValueError as error:
        raise UnusableError(str(error)) from error
    return [action for action in worker.actions(0) if isinstance(action, StartTask)]


def _runs(harness: Harness, found: Message) -> object:
    (start,) = _started(harness, found, GROUP)
    expect("name", start.config.name, found.key)
    expect("name in the configuration", start.config.config["name"], found.key)
    return start


def _leaves_alone(harness: Harness, found: Message) -> object:
    started = _started(harness, found, str(harness.decode(found.value, READER)["worker_group"]))
    expect("started", started, [])
    return started


NEEDS = tuple(
    Need(
        worker,
        provider,
        name,
        CONNECTORS,
        "ConnectorConfig",
        2,
        key=key,
        value={
            "name": key,
            "connector_class": match.type("a.Class"),
            "config": match.type({"name": key}),
            "target_state": "STARTED",
            "restart_count": match.integer(0),
            "task_restarts": {"0": match.integer(1)} if name == scenario.RESTARTED else {},
            "mode": mode,
            "worker_group": match.type(GROUP),
        },
        process=process,
    )
    for worker in WORKERS
    for provider, name, key, mode, process in (
        ("console", scenario.CREATED, "coap-to-hazelcast", "distributed", _runs),
        ("console", scenario.RESTARTED, "coap-to-hazelcast", "distributed", _runs),
        ("persisters", scenario.CONNECTOR, "coap-to-hazelcast", "standalone", _leaves_alone),
        ("coap-ingest", scenario.CONNECTOR, "coap-source", "standalone", _leaves_alone),
    )
)
