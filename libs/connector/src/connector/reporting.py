"""The status of a process that is one task of its own, told from a thread: nothing of it waits for Kafka."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from connector.status import DeferredHeartbeat, Heartbeat, State
from servicekit import kafka
from servicekit.avro import SchemaRegistry
from servicekit.settings import KafkaSettings, RegistrySettings

_BEAT_S = 1.0
_JOIN_S = 8.0
"""The last word waits up to five seconds for Kafka."""


class Reporter:
    """Says every five seconds how the task is, and how it ended. Works without, and says so, until it can."""

    def __init__(
        self,
        kafka_settings: KafkaSettings,
        registry_settings: RegistrySettings,
        *,
        connector: str,
        task: int,
        state: Callable[[], State],
        counts: Callable[[], Mapping[str, int]],
        lag: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """The reporter's thread asks `state`, `counts` and `lag` (records not read yet, by `topic-partition`)."""
        self._kafka, self._registry = kafka_settings, registry_settings
        self._connector, self._task = connector, task
        self._state, self._counts, self._lag = state, counts, lag
        self._ended = threading.Event()
        self._trace: str | None = None
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def close(self, trace: str | None = None) -> None:
        """Say that the task has ended (FAILED with a trace), and return when Kafka has it or does not take it."""
        self._trace = trace
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        schemas = SchemaRegistry(self._registry)
        name = f"{self._connector}-{self._task}-status"
        heartbeat = DeferredHeartbeat(
            lambda: Heartbeat(
                lambda: kafka.producer(self._kafka, name), schemas, connector=self._connector, task=self._task
            )
        )
        while not self._ended.wait(_BEAT_S):
            heartbeat.beat(self._state(), self._counts, self._lag)
        state = State.UNASSIGNED if self._trace is None else State.FAILED
        heartbeat.last_word(state, self._counts(), self._trace)


@contextmanager
def reported(reporter: Reporter) -> Iterator[None]:
    """Report while the body runs; an exception that leaves it is the trace of the last word."""
    reporter.start()
    try:
        yield
    except BaseException as failure:
        reporter.close("".join(traceback.format_exception(failure)) if isinstance(failure, Exception) else None)
        raise
    reporter.close()


def counts_of(registry: CollectorRegistry, prefix: str) -> dict[str, int]:
    """Every counter and gauge whose name begins with `prefix`, by the rest of its name, summed over its labels."""
    counts: dict[str, int] = {}
    for metric in registry.collect():
        if metric.name.startswith(prefix) and metric.type in ("counter", "gauge"):
            values = [sample.value for sample in metric.samples if not sample.name.endswith("_created")]
            counts[metric.name.removeprefix(prefix)] = int(sum(values))
    return counts
