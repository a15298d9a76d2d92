"""The seam at which services hand bytes to Kafka: their own code makes producer and records, and the records are kept.

Also stands still here what differs in every run: the clock of status records, the name of the process, stack traces.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import isotherm.cli.devices
import isotherm.coap_ingest.pipeline
import isotherm.persisters.service
from isotherm.connector.attestation import attester as attestation
from isotherm.connector.attestation.attester import Attester
from isotherm.connector.distributed import publishing, worker, worker_status
from isotherm.connector.distributed.controller import Report, TaskId
from isotherm.connector.distributed.worker import Classes, DistributedWorker, WorkerSettings
from isotherm.connector.errors import dead_letters
from isotherm.connector.standalone import reporting
from isotherm.connector.standalone.reporting import Reporter
from isotherm.connector.state import status
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF
from isotherm.connector.state.status import State
from isotherm.contracts.harness import Harness, Message, RecordingProducer
from isotherm.contracts.pact import scenario
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.settings import HttpSettings, KafkaSettings, RegistrySettings

GROUP = "demo"
"""The worker group of distributed workers."""
WORKER = "host:1"
FAILURE = "isotherm.SinkAwayError: the sink is away"
"""The trace of a task that failed."""
_CLOCK = SimpleNamespace(time=lambda: scenario.TAKEN_IN_MS / 1000, monotonic=time.monotonic)
_TRACES = SimpleNamespace(format_exception=traceback.format_exception_only)


@contextmanager
def recorded_kafka(harness: Harness) -> Iterator[list[Message]]:
    """Every record that any service's producer gets within the body, in order, with the producer's partitioner."""
    found: list[Message] = []

    def producer(config: Mapping[str, Any]) -> RecordingProducer:
        return RecordingProducer(config, found)

    with ExitStack() as patches:
        patches.enter_context(patch.object(clients, "Producer", producer))
        patches.enter_context(patch.object(clients, "admin", lambda *_settings, **_overrides: None))
        for module in (reporting, worker, isotherm.persisters.service, isotherm.cli.devices):
            patches.enter_context(patch.object(module, "SchemaRegistry", lambda _settings: harness.registry))
        for module in (status, publishing, worker_status):
            patches.enter_context(patch.object(module, "time", _CLOCK))
        for module in (status, worker, isotherm.coap_ingest.pipeline):
            patches.enter_context(patch.object(module, "this_process", lambda: WORKER))
        patches.enter_context(patch.object(attestation, "_now_ms", lambda: scenario.TAKEN_IN_MS))
        patches.enter_context(patch.object(dead_letters, "traceback", _TRACES))
        yield found


def reported(reporter: Reporter, messages: list[Message]) -> Mapping[str, Message]:
    """The heartbeat that a reporter sends at its start, and its last one after a failure.

    `messages` are those of `recorded_kafka`.
    """
    reporter.start()
    reporter.close(FAILURE)
    first, last = [one for one in messages if one.topic == status.TOPIC]
    return {scenario.HEARTBEAT: first, scenario.TASK_FAILED: last}


def announced(service: str, classes: Classes, reports: Iterable[Report], messages: list[Message]) -> Iterable[Message]:
    """What a distributed worker of `service` publishes at its start, and once while its tasks have these `reports`."""
    settings = WorkerSettings(
        service=service,
        group=GROUP,
        command=(),
        kafka=KafkaSettings(),
        registry=RegistrySettings(),
        http=HttpSettings(),
        session_timeout_ms=10_000,
        task_stop_timeout_ms=10_000,
    )
    begin = len(messages)
    running = DistributedWorker(settings, classes, Stop())
    running._announce().publish(reports, running._controller.counts())
    return messages[begin:]


def connector_report(connector: str) -> Report:
    """A worker's report that it cannot start a connector."""
    return Report(TaskId(connector, CONNECTOR_ITSELF), State.FAILED, FAILURE, {})


async def attest(attester: Attester, producer: LoopProducer) -> None:
    """Let a service attest the records of the scenario, as it does after Kafka's acknowledgements."""
    runs = attester.runs_of("thermostat.data")
    assert runs is not None
    for record in scenario.ACKNOWLEDGED_RECORDS:
        runs.add(0, *record)
    attester._open()
    await attester.publish(producer)
