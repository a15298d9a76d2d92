"""Publishes the status of a standalone task from a thread, so that the task never waits for Kafka."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from isotherm.connector.state.status import Heartbeat, State
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

_BEAT_S = 1.0
_JOIN_S = 8.0
"""Longer than the five seconds that the final status waits for Kafka."""


class Reporter:
    """Publishes the task's status every five seconds and at its end; logs and retries while it cannot."""

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
        """The reporter's thread calls `state`, `counts` and `lag` (unread records by `topic-partition`).

        `announcements` returns topic, key and value of records that are published once, at the first opportunity; it
        may raise SchemaNotRegisteredError and RegistryUnavailableError. `mask` removes secrets from traces.
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
        """Start the thread."""
        self._thread.start()

    def close(self, trace: str | None = None) -> None:
        """Publish that the task ended, as FAILED with a `trace`, and wait for the acknowledgement or the time-out."""
        self._trace = None if trace is None else self._mask(trace)
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        schemas = SchemaRegistry(self._registry)
        heartbeat = Heartbeat(
            lambda: self._producer(schemas),
            schemas,
            connector=self._connector,
            task=self._task,
            worker=self._worker,
            worker_group=self._group,
        )
        heartbeat.beat(self._state(), self._counts, self._lag)
        while not self._ended.wait(_BEAT_S):
            heartbeat.beat(self._state(), self._counts, self._lag)
        state = State.UNASSIGNED if self._trace is None else State.FAILED
        heartbeat.publish_final_state(state, self._counts(), self._trace)

    def _producer(self, schemas: SchemaRegistry) -> Producer:
        # Before the producer: one that is discarded because a schema is missing takes half a minute to end.
        messages = list(self._announcements(schemas))
        producer = clients.producer(self._kafka, f"{self._connector}-{self._task}-status")
        for topic, key, value in messages:
            producer.produce(topic, key=key, value=value)
        return producer


@contextmanager
def reported(reporter: Reporter) -> Iterator[None]:
    """Report while the body runs; an exception that leaves the body becomes the trace of the final status."""
    reporter.start()
    try:
        yield
    except BaseException as failure:
        reporter.close("".join(traceback.format_exception(failure)) if isinstance(failure, Exception) else None)
        raise
    reporter.close()


def counts_of(registry: CollectorRegistry, prefix: str, connector: str | None = None) -> dict[str, int]:
    """Every counter and gauge whose name begins with `prefix`, by the rest of its name, summed over its labels.

    With `connector`: only metrics with the label `connector`, and of them only the samples with this value. A gauge
    that is not a number says that nobody knows, and is left out.
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
            total = sum(sample.value for sample in samples)
            if not math.isnan(total):
                counts[metric.name.removeprefix(prefix)] = int(total)
    return counts
