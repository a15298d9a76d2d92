"""A distributed worker's records on `isotherm.status`: for itself, its connectors, and tasks without a process."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

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
"""Stands for a connector's name in a worker's own status."""

_FINAL_FLUSH_S = 5.0


@dataclass(eq=False)
class _Deletion:
    """A deletion that Kafka has not acknowledged."""

    retry_at_ms: float = math.inf
    """When it is tried again; never while it waits for its acknowledgement."""


class WorkerStatus:
    """Publishes changed statuses at once, and every status again after INTERVAL_MS.

    A deletion is repeated until Kafka acknowledges it: nothing else would ever delete the status. The producer must not
    give a record up (`delivery.timeout.ms` 0): Kafka could store one that was given up behind the deletion.
    """

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
        """`encode` encodes records of SCHEMA."""
        self._producer, self._encode = producer, encode
        self._worker, self._group, self._classes = worker, worker_group, list(classes)
        self._clock_ms = clock_ms
        self._published: dict[TaskId, tuple[Report, float]] = {}
        self._deletions: dict[TaskId, _Deletion] = {}
        self._on_their_way: Counter[TaskId] = Counter()
        """Records that Kafka has not acknowledged. While there are some, nothing is said again."""

    def publish(self, reports: Iterable[Report], counts: Mapping[str, int]) -> None:
        """Publish this worker's status and every report that changed or is older than INTERVAL_MS.

        Deletions that failed are repeated after INTERVAL_MS, except of a status that is reported again.
        """
        self._producer.poll(0)
        itself = Report(TaskId(EVERY_CONNECTOR, CONNECTOR_ITSELF), State.RUNNING, None, counts)
        now_ms = self._clock_ms()
        found = {report.id: report for report in (itself, *reports)}
        # A task that has a process again publishes its own status, so its next report here is a change.
        self._published = {id: published for id, published in self._published.items() if id in found}
        self._on_their_way = +self._on_their_way
        for id, report in found.items():
            before, at_ms = self._published.get(id, (None, 0.0))
            if report != before or (now_ms - at_ms >= INTERVAL_MS and not self._on_their_way[id]):
                self._published[id] = report, now_ms
                self._produce(id, self._encode(self._record(report)))
        self._deletions = {id: deletion for id, deletion in self._deletions.items() if id not in found}
        self._repeat_deletions(now_ms)

    def started(self, id: TaskId) -> None:
        """The task has a process, which publishes the task's status: do not repeat a deletion of it."""
        self._deletions.pop(id, None)

    def delete(self, id: TaskId) -> None:
        """Delete the status of a task that this worker no longer reports."""
        self._published.pop(id, None)
        deletion = self._deletions[id] = _Deletion()
        self._produce_deletion(id, deletion)

    def close(self) -> None:
        """Delete this worker's own status, and wait up to five seconds for the acknowledgement of all deletions."""
        self._producer.poll(0)
        self._repeat_deletions(math.inf)
        self.delete(TaskId(EVERY_CONNECTOR, CONNECTOR_ITSELF))
        self._producer.flush(_FINAL_FLUSH_S)

    def _repeat_deletions(self, until_ms: float) -> None:
        for id, deletion in self._deletions.items():
            if deletion.retry_at_ms < math.inf and deletion.retry_at_ms <= until_ms:
                self._produce_deletion(id, deletion)

    def _produce_deletion(self, id: TaskId, deletion: _Deletion) -> None:
        def reported(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                deletion.retry_at_ms = self._clock_ms() + INTERVAL_MS
                _log.warning("status not deleted, trying again", task=id, reason=error.str())
            elif self._deletions.get(id) is deletion:
                del self._deletions[id]

        is_queued = self._produce(id, None, reported)
        deletion.retry_at_ms = math.inf if is_queued else self._clock_ms() + INTERVAL_MS

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

    def _produce(
        self, id: TaskId, value: bytes | None, on_delivery: Callable[[KafkaError | None, object], None] | None = None
    ) -> bool:
        """Queue a record; return False if there is no room for it."""

        def reported(error: KafkaError | None, message: object) -> None:
            self._on_their_way[id] -= 1
            if on_delivery is not None:
                on_delivery(error, message)

        key = status_key(id.connector, id.task, self._worker)
        try:
            self._producer.produce(TOPIC, key=key, value=value, on_delivery=reported)
        except (BufferError, KafkaException) as error:
            _log.warning("status not published", reason=str(error))
            return False
        self._on_their_way[id] += 1
        return True
