"""What a persister publishes with the demo's Hazelcast connector: about itself, and a record that it cannot read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from unittest.mock import patch

from prometheus_client import CollectorRegistry

import isotherm.persisters.service
from isotherm.connector.config import files
from isotherm.connector.config.validation import Validated
from isotherm.connector.distributed.publishing import CONNECTORS, PLUGINS
from isotherm.connector.state.readback import ReadbackRequest
from isotherm.connector.state.status import TOPIC
from isotherm.contracts import seam
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.paths import EXAMPLES
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import ProjectedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.configuration import check, projector
from isotherm.persisters.distributed import SinkClasses
from isotherm.persisters.readback import Answering, AnswerPublisher
from isotherm.persisters.service import TaskAssignment, _Task
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.task.metrics import TaskMetrics
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.settings import KafkaSettings

_TOPIC = "coap_sensor_topic"
_DEAD_LETTERS = "errors.deadletterqueue.enable = true\n"
_SECRETS = {"HAZELCAST_MEMBER": "127.0.0.1:5701"}


class SinkAwayError(Exception):
    """The end of a task."""


def messages(harness: Harness) -> Mapping[str, Message]:
    """Return the status of a task, its connector and its class, a dead letter, and the status of a worker."""
    text = (EXAMPLES / "demo" / "coap-to-hazelcast.properties").read_text(encoding="utf-8")
    written, kind = files.parse(text + _DEAD_LETTERS, form="properties"), installed_sinks()["hazelcast"]
    config = check(kind, written.resolved(_SECRETS))
    registry, assignment = CollectorRegistry(), TaskAssignment(kind, written, config, 0)
    metrics = TaskMetrics(registry, config.name, 0)
    metrics.follow(lambda: {(_TOPIC, 0): _buffer()})
    with seam.recorded_kafka(harness) as found:
        task = _Task(PersistersSettings(), assignment, Health(), metrics, registry, None)
        task._on_iteration()
        task._failed("task failed", SinkAwayError("the sink is away"), Exit.FAILED)
        beat, failed = [one for one in found if one.topic == TOPIC]
        (owned,), (plugin,) = ([one for one in found if one.topic == topic] for topic in (CONNECTORS, PLUGINS))
        project = projector(kind, config, harness.registry)
        prepared = project(_unreadable())
        assert prepared.failed is not None
        with patch.object(isotherm.persisters.service, "ensure_dead_letter_topic"):
            task._dead_letter_sender(Stop()).send([prepared.failed])
        dead = found[-1]
        reports = [seam.connector_report(config.name)]
        answer = _answer(config, harness, found)
        *_, worker, reported = seam.announced("persisters", SinkClasses("hazelcast"), reports, found)
    return {
        scenario.HEARTBEAT: beat,
        scenario.TASK_FAILED: failed,
        scenario.CONNECTOR: owned,
        scenario.PLUGIN: plugin,
        scenario.DEAD_LETTER: dead,
        scenario.WORKER: worker,
        scenario.WORKERS_CONNECTOR: reported,
        scenario.READBACK_ANSWER: answer,
    }


class _Store:
    """A sink that finds every row as it was written."""

    def open(self) -> None:
        """Nothing is to be opened."""

    def close(self) -> None:
        """Nothing is to be closed."""

    def write(self, _batch: Batch) -> Sequence[FailedRow]:
        """Take everything."""
        return []

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        """Find every row."""
        return [StoredRow(Finding.SAME, row.values, "in a queue") for row in rows]


def _answer(config: Validated, harness: Harness, found: Sequence[Message]) -> Message:
    """Answer the console's request of `console.messages`, whose record makes one row."""
    plan = compile_plan(config.statements[0], None, "-")
    row = Row(41, "a-queue", "an id", {"value": 21.5}, scenario.TAKEN_IN_MS, None, plan)
    answering = Answering(
        config.name, 0, seam.WORKER, _Store(), lambda: lambda _record: ProjectedRecord([row]), lambda *_: True, str
    )
    request = ReadbackRequest("readback-1", config.name, _TOPIC, 1, 41, scenario.TAKEN_IN_MS, b"a key", b"a value", [])
    answer = answering.answer(request)
    assert answer is not None
    publisher = AnswerPublisher(
        lambda: clients.producer(KafkaSettings(), "readback"), harness.registry, lambda: scenario.TAKEN_IN_MS
    )
    publisher.publish(answer)
    return found[-1]


def _buffer() -> PartitionBuffer:
    """Return a partition of which six records are read and three are not."""
    counts = Counts(6, 3, Counter({"decode": 1}), Counter({"policy": 1}), Counter({"expired": 1}))
    return PartitionBuffer((_TOPIC, 0), counts, Backoff(), position=6, high_watermark=9)


def _unreadable() -> Record:
    """Return a record of the connector's topic that is no record in the wire format."""
    headers: list[tuple[str, bytes | None]] = [("coap.uri", b"coap://localhost:5633/sensors")]
    return Record(_TOPIC, 0, 4, scenario.TAKEN_IN_MS, b"coap://localhost:5633/sensors", b"warm", headers)
