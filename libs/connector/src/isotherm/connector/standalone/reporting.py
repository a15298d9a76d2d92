"""The status of a process that is one task of its own, told from a thread: nothing of it waits for Kafka."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from isotherm.connector.state.status import DeferredHeartbeat, Heartbeat, State
from isotherm.servicekit import kafka
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

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
        worker: str | None = None,
        worker_group: str = "",
        announcements: Callable[[SchemaRegistry], Iterable[tuple[str, str, bytes]]] = lambda _schemas: (),
        mask: Callable[[str], str] = str,
    ) -> None:
        """The reporter's thread asks `state`, `counts` and `lag` (records not read yet, by `topic-partition`).

        `announcements` are topic, key and value of what is said once, as soon as it can be; they may raise what
        `isotherm.connector.distributed.publishing.announcements` raises. `mask` keeps secrets out of traces.
        """
        self._kafka, self._registry = kafka_settings, registry_settings
        self._connector, self._task = connector, task
        self._state, self._counts, self._lag = state, counts, lag
        self._worker, self._group, self._announcements = worker, worker_group, announcements
        self._mask = mask
        self._ended = threading.Event()
        self._trace: str | None = None
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def close(self, trace: str | None = None) -> None:
        """Say that the task has ended (FAILED with a trace), and return when Kafka has it or does not take it."""
        self._trace = None if trace is None else self._mask(trace)
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        schemas = SchemaRegistry(self._registry)
        heartbeat = DeferredHeartbeat(
            lambda: Heartbeat(
                lambda: self._producer(schemas),
                schemas,
                connector=self._connector,
                task=self._task,
                worker=self._worker,
                worker_group=self._group,
            )
        )
        heartbeat.beat(self._state(), self._counts, self._lag)
        while not self._ended.wait(_BEAT_S):
            heartbeat.beat(self._state(), self._counts, self._lag)
        state = State.UNASSIGNED if self._trace is None else State.FAILED
        heartbeat.publish_final_state(state, self._counts(), self._trace)

    def _producer(self, schemas: SchemaRegistry) -> Producer:
        # Before the producer: one that is thrown away again, because a schema is missing, takes half a minute to end.
        messages = list(self._announcements(schemas))
        producer = kafka.producer(self._kafka, f"{self._connector}-{self._task}-status")
        for topic, key, value in messages:
            producer.produce(topic, key=key, value=value)
        return producer


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


def counts_of(registry: CollectorRegistry, prefix: str, connector: str | None = None) -> dict[str, int]:
    """Every counter and gauge whose name begins with `prefix`, by the rest of its name, summed over its labels.

    With `connector` only those that have a label of this name, and of them its samples.
    """
    counts: dict[str, int] = {}
    for metric in registry.collect():
        if not metric.name.startswith(prefix) or metric.type not in ("counter", "gauge"):
            continue
        samples = [
            sample
            for sample in metric.samples
            if not sample.name.endswith("_created") and connector in (None, sample.labels.get("connector"))
        ]
        if samples or connector is None:
            counts[metric.name.removeprefix(prefix)] = int(sum(sample.value for sample in samples))
    return counts
