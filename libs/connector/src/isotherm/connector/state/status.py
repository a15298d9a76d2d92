"""A task's heartbeat on `isotherm.status`: its state, its counts, its lag, and the trace of its failure."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaException, Producer

import isotherm.schemas
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry

TOPIC = "isotherm.status"
INTERVAL_MS = 5_000.0

_SCHEMA_VERSION = 1
_MAX_TRACE_CHARACTERS = 16_000
_FINAL_FLUSH_S = 5.0
_RETRY_MS = 30_000.0

_log = logs.logger(__name__)


class State(StrEnum):
    """Kafka Connect's states of a task."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


def this_process() -> str:
    """This process's name as a worker: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def status_key(connector: str, task: int, worker: str) -> str:
    """The key of a status record."""
    return f"{connector}/{task}/{worker}"


class Heartbeat:
    """Publishes a task's status every INTERVAL_MS; never blocks the task while Kafka does not answer."""

    def __init__(
        self,
        producer: Callable[[], Producer],
        registry: SchemaRegistry,
        *,
        connector: str,
        task: int,
        worker_group: str = "",
        worker: str | None = None,
        clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        """`producer` is called once, after the schema was found; `worker` is `this_process()` by default.

        Raises SchemaNotRegisteredError when `isotherm apply` has not been run, RegistryUnavailableError.
        """
        self._encode = registry.encoder(TOPIC, isotherm.schemas.schema("TaskStatus", _SCHEMA_VERSION))
        # Made last: a producer that is discarded again takes half a minute to end.
        self._producer = producer()
        self._connector, self._task, self._group = connector, task, worker_group
        self._worker = worker or this_process()
        self._clock_ms = clock_ms
        self._next_ms = 0.0
        self._published: State | None = None

    def beat(self, state: State, counts: Callable[[], Mapping[str, int]], lag: Callable[[], Mapping[str, int]]) -> None:
        """Publish the status when the interval is over or the state changed; calls `counts` and `lag` only then."""
        self._producer.poll(0)
        if self._clock_ms() < self._next_ms and state is self._published:
            return
        self._next_ms, self._published = self._clock_ms() + INTERVAL_MS, state
        self._publish(state, None, counts(), lag())

    def publish_final_state(self, state: State, counts: Mapping[str, int], trace: str | None = None) -> None:
        """Publish how the task ended, and wait up to five seconds for the acknowledgement."""
        self._publish(state, trace, counts, {})
        self._producer.flush(_FINAL_FLUSH_S)

    def _publish(self, state: State, trace: str | None, counts: Mapping[str, int], lag: Mapping[str, int]) -> None:
        record: dict[str, Any] = {
            "connector": self._connector,
            "task": self._task,
            "worker": self._worker,
            "worker_group": self._group,
            "state": state.value,
            "trace": None if trace is None else trace[-_MAX_TRACE_CHARACTERS:],
            "counts": dict(counts),
            "lag": dict(lag),
            "updated_at": int(time.time() * 1000),
        }
        try:
            key = status_key(self._connector, self._task, self._worker)
            self._producer.produce(TOPIC, key=key, value=self._encode(record))
        except (BufferError, KafkaException) as error:
            _log.warning("status not published", reason=str(error))


class DeferredHeartbeat:
    """A heartbeat that is created once the registry has its schema; until then the task works without a heartbeat."""

    def __init__(
        self, make: Callable[[], Heartbeat], clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000
    ) -> None:
        """`make` is tried again every 30 seconds while it raises an error of Heartbeat's."""
        self._make = make
        self._clock_ms = clock_ms
        self._heartbeat: Heartbeat | None = None
        self._next_try_ms = float("-inf")

    def beat(self, state: State, counts: Callable[[], Mapping[str, int]], lag: Callable[[], Mapping[str, int]]) -> None:
        """As `Heartbeat.beat`."""
        heartbeat = self._made()
        if heartbeat is not None:
            heartbeat.beat(state, counts, lag)

    def publish_final_state(self, state: State, counts: Mapping[str, int], trace: str | None = None) -> None:
        """As `Heartbeat.publish_final_state`."""
        heartbeat = self._made()
        if heartbeat is not None:
            heartbeat.publish_final_state(state, counts, trace)

    def _made(self) -> Heartbeat | None:
        if self._heartbeat is None and self._clock_ms() >= self._next_try_ms:
            self._next_try_ms = self._clock_ms() + _RETRY_MS
            try:
                self._heartbeat = self._make()
            except (RegistryUnavailableError, SchemaNotRegisteredError) as error:
                _log.warning("status is not published", reason=str(error))
        return self._heartbeat
