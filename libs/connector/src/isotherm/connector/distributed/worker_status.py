"""What a distributed worker says on `isotherm.status`: of itself, of its connectors, of tasks without a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

import isotherm.schemas
from isotherm.connector.distributed.controller import Report, TaskId
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF
from isotherm.connector.state.status import (
    INTERVAL_MS,
    TOPIC,
    State,
    status_key,
)
from isotherm.servicekit import logs

_log = logs.logger(__name__)

SCHEMA = isotherm.schemas.schema("TaskStatus", 2)
EVERY_CONNECTOR = "*"
"""In the place of a connector's name in what a worker says of itself."""

_LAST_WORD_S = 5.0


class WorkerStatus:
    """Says what has changed at once, and everything again every INTERVAL_MS."""

    def __init__(
        self,
        producer: Producer,
        encode: Callable[[Mapping[str, Any]], bytes],
        *,
        worker: str,
        worker_group: str,
        classes: Sequence[str],
        clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        """`encode` is for SCHEMA."""
        self._producer, self._encode = producer, encode
        self._worker, self._group, self._classes = worker, worker_group, list(classes)
        self._clock_ms = clock_ms
        self._said: dict[TaskId, tuple[Report, float]] = {}

    def say(self, reports: Iterable[Report], counts: Mapping[str, int]) -> None:
        """Bring the topic up to date."""
        self._producer.poll(0)
        itself = Report(TaskId(EVERY_CONNECTOR, CONNECTOR_ITSELF), State.RUNNING, None, counts)
        now_ms = self._clock_ms()
        found = {report.id: report for report in (itself, *reports)}
        # A task that has a process again says its own state: what was said of it before counts no more.
        self._said = {id: said for id, said in self._said.items() if id in found}
        for id, report in found.items():
            before, at_ms = self._said.get(id, (None, 0.0))
            if report != before or now_ms - at_ms >= INTERVAL_MS:
                self._said[id] = report, now_ms
                self._produce(id, self._encode(self._record(report)))

    def forget(self, id: TaskId) -> None:
        """This worker has nothing to say of the task any more."""
        self._said.pop(id, None)
        self._produce(id, None)

    def close(self) -> None:
        """Take back what this worker said of itself, and wait a moment for Kafka to take it."""
        self.forget(TaskId(EVERY_CONNECTOR, CONNECTOR_ITSELF))
        self._producer.flush(_LAST_WORD_S)

    def _record(self, report: Report) -> dict[str, Any]:
        is_own = report.id.connector == EVERY_CONNECTOR
        return {
            "connector": report.id.connector,
            "task": report.id.task,
            "worker": self._worker,
            "worker_group": self._group,
            "state": report.state.value,
            "trace": report.trace,
            "counts": dict(report.counts),
            "lag": {},
            "classes": self._classes if is_own else [],
            "updated_at": int(time.time() * 1000),
        }

    def _produce(self, id: TaskId, value: bytes | None) -> None:
        try:
            self._producer.produce(TOPIC, key=status_key(id.connector, id.task, self._worker), value=value)
        except (BufferError, KafkaException) as error:
            _log.warning("status not sent", reason=str(error))
