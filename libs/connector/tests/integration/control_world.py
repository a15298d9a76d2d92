"""The console's role in tests of workers: writes the desired state of connectors and reads their status."""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from confluent_kafka import TopicPartition
from service_process import ServiceProcess

from isotherm.cli.apply import apply, declared_subjects, declared_topics
from isotherm.connector.distributed.publishing import CONNECTORS
from isotherm.connector.distributed.worker_status import EVERY_CONNECTOR, SCHEMA
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF
from isotherm.connector.state.status import TOPIC as STATUS
from isotherm.connector.state.target_follower import READER
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

PATIENCE_S = 240.0
STALE_S = 15.0
"""Three heartbeats; an older status does not count."""


class Said(NamedTuple):
    """One status record."""

    state: str
    worker: str
    trace: str
    counts: Mapping[str, int]
    updated_at: Any
    record: Mapping[str, Any]


class Control:
    """The control topics, as a console sees them."""

    def __init__(self, bootstrap_servers: str, registry_url: str) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
        self.registry = RegistrySettings(url=registry_url)
        apply(
            self.kafka,
            self.registry,
            topics=[one for one in declared_topics() if one.name.startswith("isotherm.")],
            subjects=[one for one in declared_subjects() if one.name.startswith("isotherm.")],
        )
        schemas = SchemaRegistry(self.registry)
        self._encode, self._decode = schemas.encoder(CONNECTORS, READER), Decoder(schemas, SCHEMA)
        self._producer = clients.producer(self.kafka, "test-control")
        self._consumer = clients.consumer(self.kafka, "test-control", f"test-{uuid.uuid4().hex}")
        self._consumer.assign([TopicPartition(STATUS, 0, 0)])
        self._said: dict[tuple[str, int, str], Said] = {}
        self._wanted: dict[str, dict[str, Any]] = {}

    def create(self, name: str, group: str, config: Mapping[str, str], *, mode: str = "distributed") -> None:
        """Create a connector."""
        self._wanted[name] = {
            "name": name,
            "connector_class": config["connector.class"],
            "config": {"name": name, **config},
            "target_state": "STARTED",
            "restart_count": 0,
            "task_restarts": {},
            "mode": mode,
            "worker_group": group,
        }
        self.change(name)

    def change(self, name: str, **fields: Any) -> None:
        """Write the connector's record with these fields changed."""
        self._wanted[name] |= {**fields, "updated_at": int(time.time() * 1000)}
        self._put(name, self._encode(self._wanted[name]))

    def delete(self, name: str) -> None:
        """Delete the connector."""
        del self._wanted[name]
        self._put(name, None)

    def _put(self, name: str, value: bytes | None) -> None:
        self._producer.produce(CONNECTORS, key=name, value=value)
        assert self._producer.flush(60) == 0

    def look(self) -> None:
        """Read new status records."""
        while messages := consume_available(self._consumer, 500, 0.2):
            for message in messages:
                assert message.error() is None, message.error()
                key = message.key()
                assert key is not None
                connector, task, worker = key.decode().split("/")
                place, value = (connector, int(task), worker), message.value()
                if value is None:
                    self._said.pop(place, None)
                    continue
                record = self._decode(value).record
                self._said[place] = Said(
                    record["state"], worker, record["trace"] or "", record["counts"], record["updated_at"], record
                )

    def status(self, connector: str, task: int = CONNECTOR_ITSELF) -> Said | None:
        """The newest status of a task; None when it is too old or says that no worker runs the task."""
        self.look()
        return self._newest(connector, task)

    def _newest(self, connector: str, task: int) -> Said | None:
        """The same of the status records that were read so far."""
        found = [said for (name, number, _), said in self._said.items() if (name, number) == (connector, task)]
        newest = max(found, key=lambda said: said.updated_at, default=None)
        if newest is None or newest.state == "UNASSIGNED":
            return None
        return newest if time.time() - newest.updated_at.timestamp() <= STALE_S else None

    def states(self, connector: str, tasks: int) -> list[str | None]:
        """The states of the connector and of its tasks, in this order; None for one without a status."""
        self.look()
        told = [self._newest(connector, task) for task in range(CONNECTOR_ITSELF, tasks)]
        return [None if said is None else said.state for said in told]

    def workers(self, connector: str, tasks: int) -> set[str]:
        """The workers that run the tasks."""
        self.look()
        told = [self._newest(connector, task) for task in range(tasks)]
        return {said.worker for said in told if said is not None and said.state == "RUNNING"}

    def of_workers(self) -> list[Said]:
        """The workers' own statuses."""
        self.look()
        return [said for (name, _, _), said in self._said.items() if name == EVERY_CONNECTOR]

    def members(self, group: str) -> int:
        """Members of a consumer group."""
        admin = clients.admin(self.kafka, "test-control")
        return len(admin.describe_consumer_groups([group], request_timeout=60)[group].result().members)


class Worker(ServiceProcess):
    """A service run as a distributed worker."""

    def __init__(self, control: Control, service: str, group: str, folder: Path, port: int, *more: str) -> None:
        super().__init__(folder / f"{service}-{port}.log", port)
        self._control, self._service, self._group = control, service, group
        self._more = more

    def start(self, *, settings: Sequence[str] = ()) -> None:
        """Start the process; `settings` are `key=value`."""
        chosen = [
            f"kafka.bootstrap_servers={self._control.kafka.bootstrap_servers}",
            f"registry.url={self._control.registry.url}",
            f"http.port={self._port}",
            f"worker_group={self._group}",
            "session_timeout_ms=6000",
            *settings,
        ]
        sets = [word for one in chosen for word in ("--set", one)]
        module = f"isotherm.{self._service.replace('-', '_')}"
        self.launch([sys.executable, "-m", module, "run", *self._more, *sets])

    def tasks(self) -> list[psutil.Process]:
        """The processes of the worker's tasks."""
        try:
            return psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []

    def events(self, event: str) -> list[dict[str, Any]]:
        """The log's lines with this event."""
        lines = self._log.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [line for line in found if line.get("event") == event]


class WorkerGroup:
    """The workers of one group."""

    def __init__(
        self, control: Control, service: str, folder: Path, free_port: Callable[[], int], *arguments: str
    ) -> None:
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self._control, self._service, self._folder = control, service, folder
        self._free_port, self._arguments = free_port, arguments
        self.workers: list[Worker] = []

    def worker(self, *settings: str) -> Worker:
        """Start another worker; `settings` are `key=value`."""
        port = self._free_port()
        self.workers.append(Worker(self._control, self._service, self.group, self._folder, port, *self._arguments))
        self.workers[-1].start(settings=settings)
        return self.workers[-1]

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; a failure shows the workers' logs."""
        until(what, condition, lambda: "\n".join(worker.log() for worker in self.workers))

    def of_workers(self) -> list[Said]:
        """The statuses of the group's workers."""
        return [said for said in self._control.of_workers() if said.record["worker_group"] == self.group]

    def close(self) -> None:
        """Stop all workers."""
        tasks = [task for worker in self.workers for task in worker.tasks()]
        for worker in self.workers:
            worker.kill()
        psutil.wait_procs(tasks, timeout=60)


def until(what: str, condition: Callable[[], bool], told: Callable[[], str] = str) -> None:
    """Wait until `condition` holds."""
    pause, deadline_s = threading.Event(), time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"{what}: not within {PATIENCE_S} s\n{told()}")
        pause.wait(0.1)
