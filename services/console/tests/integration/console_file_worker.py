"""A distributed worker of the suite's own library with one class: topics into lines of a file.

`worker` runs the worker, `task` is the process of one of its tasks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from isotherm.connector.config.converters import converter_keys
from isotherm.connector.config.definitions import (
    Definition,
    Importance,
    Key,
    Type,
    common_keys,
    consumer_keys,
)
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.validation import validate
from isotherm.connector.distributed.controller import TaskPlan, task_plan
from isotherm.connector.distributed.task_launch import TaskLaunch, run_launched_task
from isotherm.connector.distributed.worker import DistributedWorker, WorkerSettings
from isotherm.connector.state.status import Heartbeat, State
from isotherm.servicekit import lifecycle
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.settings import HttpSettings, KafkaSettings, RegistrySettings

KLASS = "isotherm.test.FileSinkConnector"
DEFINITION = Definition(
    KLASS,
    "sink",
    (
        *common_keys(KLASS),
        *consumer_keys(),
        *converter_keys(),
        Key("file", Type.STRING, None, "The file.", Importance.HIGH, required=True),
        Key("file.password", Type.PASSWORD, None, "A secret."),
    ),
)
_SHUTDOWN_MS = 10_000


class FileClasses:
    """The one class."""

    definitions: Sequence[Definition] = (DEFINITION,)
    version = "1.0"

    def check(self, config: ConnectorConfig) -> TaskPlan:
        """As `isotherm.connector.distributed.worker.Classes.check`."""
        validated = validate(DEFINITION, config)
        return task_plan(validated, validated.integer("tasks.max"))


def run_task(bootstrap: str, registry: str, launch: TaskLaunch, stop: Stop) -> int:
    """Append every record's value to the file."""
    config = validate(DEFINITION, launch.config.resolved(os.environ))
    heartbeat = Heartbeat(
        lambda: clients.producer(KafkaSettings(bootstrap_servers=bootstrap), "file-status"),
        SchemaRegistry(RegistrySettings(url=registry)),
        connector=config.name,
        task=launch.task,
        worker=launch.worker,
        worker_group=launch.worker_group,
    )
    counts = {"written": 0}
    with Path(config.text("file")).open("a", encoding="utf-8") as lines:
        consumer = clients.consumer(KafkaSettings(bootstrap_servers=bootstrap), "file-task", f"connect-{config.name}")
        consumer.subscribe(config.items("topics"))
        while not stop.is_set():
            heartbeat.beat(State.RUNNING, lambda: counts, dict)
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            lines.write((message.value() or b"").decode() + "\n")
            lines.flush()
            counts["written"] += 1
            consumer.commit(message=message, asynchronous=False)
        consumer.close()
    heartbeat.publish_final_state(State.UNASSIGNED, counts)
    return Exit.OK


def main() -> int:
    """`worker|task BOOTSTRAP REGISTRY [GROUP]`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("worker", "task"))
    parser.add_argument("bootstrap")
    parser.add_argument("registry")
    parser.add_argument("group", nargs="?", default="")
    given = parser.parse_args()
    if given.role == "task":
        return run_launched_task(
            lambda launch, stop: run_task(given.bootstrap, given.registry, launch, stop),
            shutdown_timeout_ms=_SHUTDOWN_MS,
        )
    settings = WorkerSettings(
        service="file",
        group=given.group,
        kafka=KafkaSettings(bootstrap_servers=given.bootstrap),
        registry=RegistrySettings(url=given.registry),
        http=HttpSettings(),
        session_timeout_ms=6_000,
        task_stop_timeout_ms=_SHUTDOWN_MS,
        command=[sys.executable, __file__, "task", given.bootstrap, given.registry],
    )
    return lifecycle.run(
        lambda stop: DistributedWorker(settings, FileClasses(), stop).run(), shutdown_timeout_ms=30_000
    )


if __name__ == "__main__":
    sys.exit(main())
