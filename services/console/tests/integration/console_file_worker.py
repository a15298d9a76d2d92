"""A distributed worker of the suite's own library with one class: topics into lines of a file.

`worker` runs the worker, `task` is the process of one of its tasks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from connector.config import ConnectorConfig
from connector.controller import TaskPlan, task_plan
from connector.converters import converter_keys
from connector.definitions import Definition, Importance, Key, Type, common_keys, consumer_keys
from connector.distributed import DistributedWorker, WorkerSettings
from connector.handover import Handover, run_handed_over
from connector.status import Heartbeat, State
from connector.validation import validate
from servicekit import kafka, lifecycle
from servicekit.avro import SchemaRegistry
from servicekit.lifecycle import Exit, Stop
from servicekit.settings import HttpSettings, KafkaSettings, RegistrySettings

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
        """As `connector.distributed.Classes.check`."""
        validated = validate(DEFINITION, config)
        return task_plan(validated, validated.integer("tasks.max"))


def run_task(bootstrap: str, registry: str, handover: Handover, stop: Stop) -> int:
    """Append every record's value to the file."""
    config = validate(DEFINITION, handover.config.resolved(os.environ))
    heartbeat = Heartbeat(
        lambda: kafka.producer(KafkaSettings(bootstrap_servers=bootstrap), "file-status"),
        SchemaRegistry(RegistrySettings(url=registry)),
        connector=config.name,
        task=handover.task,
        worker=handover.worker,
        worker_group=handover.worker_group,
    )
    counts = {"written": 0}
    with Path(config.text("file")).open("a", encoding="utf-8") as lines:
        consumer = kafka.consumer(KafkaSettings(bootstrap_servers=bootstrap), "file-task", f"connect-{config.name}")
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
    heartbeat.last_word(State.UNASSIGNED, counts)
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
        return run_handed_over(
            lambda handover, stop: run_task(given.bootstrap, given.registry, handover, stop),
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
