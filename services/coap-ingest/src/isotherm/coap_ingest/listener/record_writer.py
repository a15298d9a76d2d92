"""Writes the records of one request and waits for Kafka's acknowledgement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from isotherm.coap_ingest.ingest.outlets import KafkaRecord
from isotherm.coap_ingest.metrics import Metrics
from isotherm.servicekit.producer.delivery import LoopProducer, QueueFullError


class NotStoredError(Exception):
    """Kafka does not have all records of a request; the text states why."""


class RecordWriter:
    """Writes records with a producer of its own, within `timeout_ms`.

    While one record has waited for `stalled_after_ms`, it refuses new records at once.
    """

    def __init__(self, producer: LoopProducer, metrics: Metrics, *, timeout_ms: int, stalled_after_ms: float) -> None:
        self._producer = producer
        self._metrics = metrics
        self._timeout_s = timeout_ms / 1000
        self._stalled_after_s = stalled_after_ms / 1000
        self._waiting_since: dict[int, float] = {}

    async def write(self, records: Sequence[KafkaRecord]) -> None:
        """Return when Kafka has all `records`. Raises NotStoredError."""
        now = time.monotonic()
        oldest = next(iter(self._waiting_since.values()), now)
        if now - oldest > self._stalled_after_s:
            raise NotStoredError("Kafka does not answer")
        problems = await asyncio.gather(*(self._deliver(record) for record in records))
        problem = next((problem for problem in problems if problem is not None), None)
        if problem is not None:
            raise NotStoredError(f"not stored: {problem}")

    async def _deliver(self, record: KafkaRecord) -> str | None:
        """Return None when Kafka has the record, else why not."""
        done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        number = id(done)

        def on_delivery(error: KafkaError | None) -> None:
            self._waiting_since.pop(number, None)
            if error is None:
                self._metrics.produced.labels(record.topic).inc()
            if not done.done():
                done.set_result(error)

        self._waiting_since[number] = time.monotonic()
        try:
            self._producer.produce(
                record.topic, key=record.key, value=record.value, headers=record.headers, on_delivery=on_delivery
            )
        except QueueFullError:
            self._waiting_since.pop(number)
            return "too many records wait for Kafka"
        except KafkaException as failure:
            self._waiting_since.pop(number)
            return str(failure.args[0].str())
        try:
            # The producer's own timeout does not cover a record in flight to a broker that hangs.
            async with asyncio.timeout(self._timeout_s):
                error = await done
        except TimeoutError:
            return "Kafka does not answer"
        return None if error is None else error.str()
