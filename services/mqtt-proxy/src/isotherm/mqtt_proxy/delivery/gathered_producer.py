"""Passes records of QoS 0 and 1 to the producer, those of devices that wait for no answer in groups (ADR 0099)."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence

from confluent_kafka import KafkaError

from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.servicekit.producer.delivery import Headers, LoopProducer, OnDelivery

LONGEST_WAIT_S = 0.04
"""How long a publish waits for others. A device whose last answer is longer ago does not wait for the next one."""
ENOUGH = 250
"""So many publishes wait no longer: what each of them still costs hardly shrinks."""
_FEWEST = 0.5
"""So many patient publishes must come during the longest wait, on average, before one of them waits."""
_RATE_OVER_S = 1.0
"""The rate of patient publishes is that of about the last so many seconds."""


class GatheredProducer:
    """The producer of QoS 0 and 1 on one event loop. Records leave in the order in which they came.

    A record that comes alone costs a request to Kafka, a report and several wake-ups of two threads. A publish is
    patient when its client got its last answer long ago, or wants none. While patient publishes come as a stream, each
    of them waits for others, at most `LONGEST_WAIT_S`. Any other publish goes at once, and takes along what waits. So a
    client that waits for its answers is never slowed down, whatever others do.
    """

    def __init__(self, producer: LoopProducer) -> None:
        """The producer's `on_fatal` is set already: what waits is refused with what is in flight."""
        self._producer = producer
        self._waiting: deque[tuple[Sequence[ProducerRecord], OnDelivery]] = deque()
        self._timer: asyncio.Handle | None = None
        self._is_flushing = False
        self._patient_per_s = 0.0
        self._rate_at_s = 0.0
        self._on_fatal, producer.on_fatal = producer.on_fatal, self._fail_with_the_producer

    def publish(
        self, records: Sequence[ProducerRecord], on_delivery: OnDelivery, *, now_s: float, since_answer_s: float
    ) -> None:
        """Produce the records of a publish, as `LoopProducer.produce_all` does, now or soon.

        `now_s` is the loop's time; `since_answer_s` tells how long ago its client's last publish was answered, infinite
        if it never was or if no answer is wanted.
        """
        if since_answer_s <= LONGEST_WAIT_S or not self._is_stream(now_s):
            self.produce_all(records, on_delivery)
            return
        self._waiting.append((records, on_delivery))
        if len(self._waiting) >= ENOUGH:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONGEST_WAIT_S, self.flush)

    def produce_all(self, records: Sequence[ProducerRecord], on_delivery: OnDelivery) -> None:
        """Produce records now, behind all earlier ones."""
        if self._waiting:
            self._waiting.append((records, on_delivery))
            self.flush()
        else:
            self._producer.produce_all(records, on_delivery)

    async def send(self, topic: str, *, key: bytes | str | None, value: bytes | None, headers: Headers = ()) -> None:
        """Produce one record behind all earlier ones, as `LoopProducer.send` does."""
        self.flush()
        await self._producer.send(topic, key=key, value=value, headers=headers)

    def flush(self) -> None:
        """Pass on what waits."""
        if self._is_flushing:
            # Called by a report: the caller below passes on the rest.
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = self._waiting
        self._is_flushing = True
        try:
            while waiting:
                records, on_delivery = waiting.popleft()
                self._producer.produce_all(records, on_delivery)
        finally:
            self._is_flushing = False
            if waiting:
                # An error of one report must not keep back the records of others.
                self._timer = asyncio.get_running_loop().call_soon(self.flush)

    async def drain(self) -> None:
        """Return when Kafka has decided about every record."""
        self.flush()
        await self._producer.drain()

    def _is_stream(self, now_s: float) -> bool:
        """Count a patient publish; return whether so many come that waiting gathers some of them, but not too many."""
        rate_per_s = self._patient_per_s * math.exp((self._rate_at_s - now_s) / _RATE_OVER_S) + 1 / _RATE_OVER_S
        self._patient_per_s, self._rate_at_s = rate_per_s, now_s
        return _FEWEST <= rate_per_s * LONGEST_WAIT_S <= ENOUGH

    def _fail_with_the_producer(self, error: KafkaError) -> None:
        self._on_fatal(error)
        # The producer still refuses everything: records that wait must not come before those that failed.
        self.flush()
