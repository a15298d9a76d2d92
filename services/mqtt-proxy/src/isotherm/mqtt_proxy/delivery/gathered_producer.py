"""Passes the records of patient publishes to the producer in groups (ADR 0099)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from isotherm.mqtt_proxy.delivery.publish_patience import ENOUGH, PublishPatience
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.servicekit.producer.delivery import Headers, LoopProducer, OnDelivery


class GatheredProducer:
    """The producer of QoS 0 and 1 on one event loop; records of one client stay in their order.

    A record that comes alone costs a request to Kafka, a report and several wake-ups of two threads. Records of a
    stream of many devices (`PublishPatience`) therefore go to the producer together. All others go at once.
    """

    def __init__(self, producer: LoopProducer, patience: PublishPatience) -> None:
        self._producer = producer
        self._patience = patience
        self._waiting: list[tuple[Sequence[ProducerRecord], OnDelivery]] = []
        self._timer: asyncio.TimerHandle | None = None

    def produce_all(
        self, records: Sequence[ProducerRecord], on_delivery: OnDelivery, *, now_s: float, since_answer_s: float
    ) -> None:
        """Produce the records of one publish, as `LoopProducer.produce_all` does, now or with others.

        `now_s` is the loop's time; `since_answer_s` tells how long ago the client's last publish was answered, infinite
        if no answer is known or wanted.
        """
        patience, waiting = self._patience, self._waiting
        patience.note(now_s, since_answer_s)
        if not waiting and not patience.is_stream:
            self._producer.produce_all(records, on_delivery)
            return
        waiting.append((records, on_delivery))
        if len(waiting) >= ENOUGH:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(patience.longest_s, self.flush)

    async def send(self, topic: str, *, key: bytes | str | None, value: bytes | None, headers: Headers = ()) -> None:
        """Produce one record behind all earlier ones, as `LoopProducer.send` does."""
        self.flush()
        await self._producer.send(topic, key=key, value=value, headers=headers)

    def flush(self) -> None:
        """Pass on what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for records, on_delivery in waiting:
            self._producer.produce_all(records, on_delivery)

    async def drain(self) -> None:
        """Return when Kafka has decided about every record."""
        self.flush()
        await self._producer.drain()
