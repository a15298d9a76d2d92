"""Writes the records of requests and reports when Kafka has them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError
from prometheus_client import Counter

from isotherm.coap_ingest.ingest.outlets import KafkaRecord
from isotherm.coap_ingest.metrics import Metrics
from isotherm.servicekit.producer.delivery import LoopProducer

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTrace

OnStored = Callable[[str | None], None]
"""Called once with None, or with the reason why Kafka does not have all records of a request."""

_NO_ANSWER = "Kafka does not answer"


class NotStoredError(Exception):
    """Kafka does not have all records of a request; the text states why."""


@dataclass(slots=True, eq=False)
class _Write:
    """The records of one request."""

    on_stored: OnStored | None
    """None when it was called."""
    began_s: float
    unreported: int
    trace: IngestTrace | None
    problem: str | None = None

    def finish(self, problem: str | None) -> None:
        on_stored, self.on_stored = self.on_stored, None
        if on_stored is not None:
            if self.trace is not None:
                self.trace.end(problem)
            on_stored(problem)


class RecordWriter:
    """Writes records with a producer of its own, within `timeout_ms`.

    While one record has waited for `stalled_after_ms`, it refuses new records at once.
    """

    def __init__(self, producer: LoopProducer, metrics: Metrics, *, timeout_ms: int, stalled_after_ms: float) -> None:
        self._producer = producer
        self._metrics = metrics
        self._timeout_s = timeout_ms / 1000
        self._stalled_after_s = stalled_after_ms / 1000
        self._writes: deque[_Write] = deque()
        """In the order of their begin; those before the oldest unreported one are gone."""
        self._produced: dict[str, Counter] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, records: Sequence[KafkaRecord], on_stored: OnStored, trace: IngestTrace | None = None) -> None:
        """Hand `records` to the producer and call `on_stored` once, maybe before this method returns.

        `trace` ends with this call.
        """
        write = _Write(on_stored, now_s := time.monotonic(), len(records), trace)
        self._drop_reported()
        if self._writes and now_s - self._writes[0].began_s > self._stalled_after_s:
            write.finish(_NO_ANSWER)
            return
        if not records:
            write.finish(None)
            return
        self._writes.append(write)
        for record in records:
            # One by one, so that each record that Kafka acknowledges is counted, also when another one fails.
            self._producer.produce_all((record,), partial(self._report, write, record.topic))
        if self._timer is None:
            # The producer's own timeout does not cover a record in flight to a broker that hangs.
            self._expire_in(self._timeout_s)

    async def write(self, records: Sequence[KafkaRecord], trace: IngestTrace | None = None) -> None:
        """Return when Kafka has all `records`. Raises NotStoredError."""
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.begin(records, lambda problem: None if done.done() else done.set_result(problem), trace)
        problem = await done
        if problem is not None:
            raise NotStoredError(problem)

    def close(self) -> None:
        """Report nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for write in self._writes:
            write.on_stored = None

    def _report(self, write: _Write, topic: str, error: KafkaError | None) -> None:
        if error is None:
            counter = self._produced.get(topic)
            if counter is None:
                counter = self._produced[topic] = self._metrics.produced.labels(topic)
            counter.inc()
        elif write.problem is None:
            write.problem = f"not stored: {_text(error)}"
        write.unreported -= 1
        if not write.unreported:
            write.finish(write.problem)

    def _drop_reported(self) -> None:
        while self._writes and not self._writes[0].unreported:
            self._writes.popleft()

    def _expire_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._expire)

    def _expire(self) -> None:
        """Finish the writes whose time is over; their records stay in `_writes` until the producer reports them."""
        self._timer = None
        self._drop_reported()
        now_s = time.monotonic()
        for write in tuple(self._writes):
            if write.on_stored is None:
                continue
            left_s = write.began_s + self._timeout_s - now_s
            if left_s > 0:
                self._expire_in(left_s)
                return
            write.finish(f"not stored: {_NO_ANSWER}")


def _text(error: KafkaError) -> str:
    return "too many records wait for Kafka" if error.code() == KafkaError._QUEUE_FULL else error.str()
