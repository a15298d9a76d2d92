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
_RETRY_MS = 10_000.0

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
    """Publishes a task's status every INTERVAL_MS; never blocks the task while Kafka does not answer.

    A task works without a heartbeat until the registry has the schema of the status.
    """

    def __init__(
        self,
        make_producer: Callable[[], Producer],
        registry: SchemaRegistry,
        *,
        connector: str,
        task: int,
        worker_group: str = "",
        worker: str | None = None,
        clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        """`make_producer` is called after the schema was found; `worker` is `this_process()` by default.

        Both are tried again every 10 seconds while they raise SchemaNotRegisteredError or RegistryUnavailableError.
        """
        self._make_producer, self._registry = make_producer, registry
        self._connector, self._task, self._group = connector, task, worker_group
        self._worker = worker or this_process()
        self._clock_ms = clock_ms
        self._next_try_ms = float("-inf")
        self._outlet: tuple[Producer, Callable[[Mapping[str, Any]], bytes]] | None = None
        self._next_ms = 0.0
        self._published: State | None = None

    def beat(self, state: State, counts: Callable[[], Mapping[str, int]], lag: Callable[[], Mapping[str, int]]) -> None:
        """Publish the status when the interval is over or the state changed; calls `counts` and `lag` only then."""
        if (outlet := self._open()) is None:
            return
        outlet[0].poll(0)
        if self._clock_ms() < self._next_ms and state is self._published:
            return
        self._next_ms, self._published = self._clock_ms() + INTERVAL_MS, state
        self._publish(*outlet, state, None, counts(), lag())

    def publish_final_state(self, state: State, counts: Mapping[str, int], trace: str | None = None) -> None:
        """Publish how the task ended, and wait up to five seconds for the acknowledgement."""
        if (outlet := self._open()) is not None:
            self._publish(*outlet, state, trace, counts, {})
            outlet[0].flush(_FINAL_FLUSH_S)

    def _open(self) -> tuple[Producer, Callable[[Mapping[str, Any]], bytes]] | None:
        """Return the producer and the encoder; None until the registry has the schema."""
        if self._outlet is None and self._clock_ms() >= self._next_try_ms:
            self._next_try_ms = self._clock_ms() + _RETRY_MS
            try:
                encode = self._registry.encoder(TOPIC, isotherm.schemas.schema("TaskStatus", _SCHEMA_VERSION))
                # Made last: a producer that is discarded again takes half a minute to end.
                self._outlet = self._make_producer(), encode
            except (RegistryUnavailableError, SchemaNotRegisteredError) as error:
                _log.warning("status is not published", reason=str(error))
        return self._outlet

    def _publish(
        self,
        producer: Producer,
        encode: Callable[[Mapping[str, Any]], bytes],
        state: State,
        trace: str | None,
        counts: Mapping[str, int],
        lag: Mapping[str, int],
    ) -> None:
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
            producer.produce(TOPIC, key=status_key(self._connector, self._task, self._worker), value=encode(record))
        except (BufferError, KafkaException) as error:
            _log.warning("status not published", reason=str(error))
