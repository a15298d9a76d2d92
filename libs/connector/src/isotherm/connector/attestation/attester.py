"""Publishes what a service has acknowledged, a page every few seconds for each partition that has something new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message

import isotherm.schemas
from isotherm.connector.attestation.runs import Run, Runs
from isotherm.servicekit import logs
from isotherm.servicekit.avro import (
    RegistryUnavailableError,
    SchemaNotRegisteredError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.producer.delivery import LoopProducer, QueueFullError
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)

TOPIC = "isotherm.attestations"
SCHEMA = isotherm.schemas.schema("Attestation", 1)

_MOST_RUNS = 5_000
"""Of a partition, while the registry is away."""
_MOST_RUNS_OF_PAGE = 500
"""So a page stays below 200 KB, and takes some milliseconds to encode."""
_RETRY_S = 10.0
_FINISH_S = 2.0


class RunBook(Protocol):
    """The runs of one topic; `runs.Runs`, or the compiled form of it."""

    dropped: int

    def __bool__(self) -> bool: ...

    def add(self, partition: int, offset: int, key: bytes, value: bytes) -> None:
        """Add a record that Kafka has."""

    def take(self) -> Mapping[int, list[Run]]:
        """Return the runs by partition, and forget them."""


class Attester:
    """Collects the records of some topics that Kafka has, and publishes their runs.

    A record counts from the moment in which the service may acknowledge it. What a process had not published when it
    was killed is attested by nobody; that is no sign of a fault.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        service: str,
        instance: str,
        *,
        interval_ms: int,
        is_attested: Callable[[str], bool],
        make_runs: Callable[[int], RunBook] = Runs,
    ) -> None:
        """Attest for `service`.

        Args:
            registry: has the schema of pages; nothing is published before.
            service: names who has acknowledged.
            instance: names this process.
            interval_ms: how often pages are published; 0 turns all of this off.
            is_attested: says of a topic whether its records are what devices have sent.
            make_runs: makes the runs of one topic from how many are kept of each partition.
        """
        self._registry, self._service, self._instance = registry, service, instance
        self._interval_s, self._is_attested, self._make_runs = interval_ms / 1_000, is_attested, make_runs
        self._runs: dict[str, RunBook | None] = {}
        self._encode: Callable[[Mapping[str, Any]], bytes] | None = None
        self._next_try_s = float("-inf")
        self._since_ms = _now_ms()
        self.lost = 0
        """Records whose pages Kafka did not store."""
        self._log_lost = SparseLog(_log, "what was acknowledged is not attested")

    @property
    def is_on(self) -> bool:
        """Whether anything is attested."""
        return self._interval_s > 0

    @property
    def on_stored(self) -> Callable[[Message], None] | None:
        """What a producer calls with each record that Kafka has (`LoopProducer.on_stored`)."""
        return self.stored if self.is_on else None

    @property
    def dropped(self) -> int:
        """Records that were not attested because too many waited, or because Kafka did not store their page."""
        return self.lost + sum(runs.dropped for runs in self._runs.values() if runs is not None)

    def runs_of(self, topic: str) -> RunBook | None:
        """Return where the records of a topic are added; None where nothing is attested."""
        if topic not in self._runs:
            is_attested = self.is_on and topic != TOPIC and self._is_attested(topic)
            self._runs[topic] = self._make_runs(_MOST_RUNS) if is_attested else None
        return self._runs[topic]

    def stored(self, message: Message) -> None:
        """Take a record that Kafka has, as its delivery report tells it."""
        value, offset = message.value(), message.offset()
        # Kafka does not tell the offset of a record that it has had before.
        if isinstance(value, bytes) and offset is not None and offset >= 0:
            runs = self.runs_of(message.topic() or "")
            if runs is not None:
                runs.add(message.partition() or 0, offset, message.key() or b"", value)

    async def run(self, producer: LoopProducer) -> None:
        """Publish pages every `interval_ms`, until cancelled."""
        while self.is_on:
            if self._encode is None and time.monotonic() >= self._next_try_s:
                await asyncio.to_thread(self._open)
            await asyncio.sleep(self._interval_s)
            await self.publish(producer)

    async def finish(self, producer: LoopProducer) -> None:
        """Publish what is new, and wait for Kafka, but not for long: what is lost is attested by nobody."""
        await self.publish(producer)
        with suppress(TimeoutError):
            await asyncio.wait_for(producer.drain(), _FINISH_S)

    async def publish(self, producer: LoopProducer) -> None:
        """Publish what is new. It is kept, up to a bound, while it cannot be published."""
        if self._encode is None or producer.left <= 0:
            return
        since_ms, self._since_ms = self._since_ms, _now_ms()
        for page in self._pages((since_ms, self._since_ms)):
            self._publish_page(producer, page, self._encode)
            # Publishes and PUBACKs go on meanwhile.
            await asyncio.sleep(0)

    def _pages(self, span_ms: tuple[int, int]) -> Iterator[Mapping[str, Any]]:
        for topic, runs in list(self._runs.items()):
            for partition, taken in (runs.take() if runs else {}).items():
                for begin in range(0, len(taken), _MOST_RUNS_OF_PAGE):
                    of_page = taken[begin : begin + _MOST_RUNS_OF_PAGE]
                    yield page_of(self._service, self._instance, topic, partition, span_ms, of_page)

    def _publish_page(
        self, producer: LoopProducer, page: Mapping[str, Any], encode: Callable[[Mapping[str, Any]], bytes]
    ) -> None:
        records = sum(len(run["digests"]) for run in page["runs"])

        def report(error: KafkaError | None) -> None:
            if error is not None:
                self._note_lost(records, error.str())

        try:
            producer.produce(TOPIC, key=key_of_page(page), value=encode(page), on_delivery=report)
        except QueueFullError:
            self._note_lost(records, "too many records wait for Kafka")
        except KafkaException as failure:
            self._note_lost(records, str(failure))

    def _note_lost(self, records: int, reason: str) -> None:
        self.lost += records
        self._log_lost(records=records, reason=reason)

    def _open(self) -> None:
        self._next_try_s = time.monotonic() + _RETRY_S
        try:
            self._encode = self._registry.encoder(TOPIC, SCHEMA)
        except (RegistryUnavailableError, SchemaNotRegisteredError, WireFormatError) as error:
            self._log_lost(reason=str(error))


def page_of(
    service: str, instance: str, topic: str, partition: int, span_ms: tuple[int, int], runs: list[Run]
) -> dict[str, Any]:
    """Return the record of runs of one partition that were acknowledged in `span_ms` (epoch milliseconds)."""
    return {
        "service": service,
        "instance": instance,
        "topic": topic,
        "partition": partition,
        "since": span_ms[0],
        "until": span_ms[1],
        "runs": [run.record() for run in runs],
    }


def key_of_page(page: Mapping[str, Any]) -> bytes:
    """Return the key of a page: pages of one partition come in their order."""
    return f"{page['topic']}/{page['partition']}".encode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
