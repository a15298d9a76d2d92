"""A Kafka producer for asyncio: delivery reports are called on the event loop, and the queue is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from isotherm.servicekit import logs

_log = logs.logger(__name__)

Headers = Sequence[tuple[str, bytes | str | None]]
OnDelivery = Callable[[KafkaError | None], None]

_POLL_INTERVAL_S = 0.001


class DeliveryFailedError(Exception):
    """Kafka did not store the record; `error` says why."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.error = error


class QueueFullError(Exception):
    """Too many records wait for their delivery report. The caller must stop reading until there is room."""


class LoopProducer:
    """Owns a confluent-kafka Producer and serves its delivery reports from the running event loop.

    Reports are polled by a timer of the loop while records are outstanding, so callbacks need no locks and an idle
    producer costs nothing. `max_outstanding` bounds the records between `produce` and their report.

    A fatal error (librdkafka's INTRODUCTION.md, "Fatal errors") fails every outstanding record and every later one.
    `on_fatal` is called with it until `replace` sets another producer, as `health.ProducerHealth` does.
    """

    def __init__(self, producer: Producer, *, max_outstanding: int = 50_000) -> None:
        self.producer = producer
        self.outstanding = 0
        self.max_outstanding = max_outstanding
        self.failed_reports = 0
        """Number of `on_delivery` callbacks that raised; asyncio's exception handler logs these errors."""
        self.on_fatal: Callable[[KafkaError], None] = _log_fatal
        self._retired: list[Producer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def replace(self, producer: Producer) -> None:
        """Produce with `producer` from now on; records that wait in the previous one are reported as failed."""
        self._retired.append(self.producer)
        self.producer.purge()
        self.producer = producer
        self._poll_soon()

    def look(self) -> None:
        """Poll for a fatal error while no record is outstanding and nothing else polls; cheap, never blocks."""
        if self._timer is None:
            self._serve(self.producer)

    def produce(
        self,
        topic: str,
        *,
        key: bytes | str | None,
        value: bytes | None,
        headers: Headers = (),
        on_delivery: OnDelivery,
        partition: int = -1,
    ) -> None:
        """Produce one record; `on_delivery` is called once, on the loop, with None or the error.

        With partition -1 the key decides the partition. Raises QueueFullError when the bound is reached, KafkaException
        when the record cannot be produced at all.
        """
        if self.outstanding >= self.max_outstanding:
            raise QueueFullError

        def report(error: KafkaError | None, _message: Message) -> None:
            self.outstanding -= 1
            on_delivery(error)

        try:
            self.producer.produce(
                topic, value=value, key=key, headers=list(headers), on_delivery=report, partition=partition
            )
        except BufferError:
            raise QueueFullError from None
        except KafkaException as failure:
            self._note(failure)
            raise
        self.outstanding += 1
        if self._timer is None:
            self._poll_soon()

    def produce_all(
        self,
        records: Sequence[tuple[str, bytes | str | None, bytes | None, list[tuple[str, bytes | str | None]]]],
        on_delivery: OnDelivery,
    ) -> None:
        """Produce one or more records (topic, key, value, headers) that belong together.

        `on_delivery` is called once, on the loop, after the report of the last one: with None, or with the error of
        one of them. When a record cannot be produced, the records after it are not tried, and its error counts for
        them too. When this happens to the first record, `on_delivery` is called before this method returns.
        """
        left = len(records)
        failed: KafkaError | None = None

        def report(error: KafkaError | None, _message: Message | None) -> None:
            nonlocal left, failed
            if error is not None:
                failed = error
            left -= 1
            if not left:
                self.outstanding -= handed_over
                on_delivery(failed)

        handed_over = 0
        produce = self.producer.produce
        try:
            for topic, key, value, headers in records:
                if self.outstanding >= self.max_outstanding:
                    raise BufferError
                produce(topic, value=value, key=key, headers=headers, on_delivery=report)
                handed_over += 1
                self.outstanding += 1
        except (BufferError, KafkaException) as failure:
            known = failure.args[0] if isinstance(failure, KafkaException) else KafkaError(KafkaError._QUEUE_FULL)
            left -= len(records) - handed_over - 1
            report(known, None)
            self._note(failure)
        if self._timer is None and handed_over:
            self._poll_soon()

    async def send(self, topic: str, *, key: bytes | str | None, value: bytes | None, headers: Headers = ()) -> None:
        """Produce one record, waiting for room first, and return when Kafka has it.

        Raises DeliveryFailedError when Kafka refused it or the delivery timed out.
        """
        done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()

        def report(error: KafkaError | None) -> None:
            if not done.done():
                done.set_result(error)

        while True:
            await self.room()
            try:
                self.produce(topic, key=key, value=value, headers=headers, on_delivery=report)
            except QueueFullError:
                # librdkafka's own bound in bytes is met before ours: wait for a report.
                await asyncio.sleep(_POLL_INTERVAL_S * 10)
            except KafkaException as failure:
                raise DeliveryFailedError(failure.args[0]) from failure
            else:
                break
        error = await done
        if error is not None:
            raise DeliveryFailedError(error)

    async def room(self) -> None:
        """Return as soon as fewer than `max_outstanding` records are outstanding."""
        while self.outstanding >= self.max_outstanding:
            await self._next_report()

    async def drain(self) -> None:
        """Return when no record is outstanding any more."""
        while self.outstanding:
            await self._next_report()

    async def _next_report(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _poll_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        served = 1
        try:
            served = self._serve(self.producer)
            for retired in tuple(self._retired):
                served += self._serve(retired)
                if not len(retired):
                    self._retired.remove(retired)
        except Exception:
            self.failed_reports += 1
            raise
        finally:
            # Schedule the next poll after an exception too: without it no other record would ever be reported, and a
            # caller that waits for the last one would never return.
            if served:
                self._wake()
            if self.outstanding or self._retired:
                self._poll_soon()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _serve(self, producer: Producer) -> int:
        try:
            return producer.poll(0)
        except KafkaException as failure:
            # confluent-kafka raises a fatal error once from poll, and does not call error_cb; the reports come later.
            if producer is self.producer:
                self._note(failure)
            return 1

    def _note(self, failure: BaseException) -> None:
        error = failure.args[0] if isinstance(failure, KafkaException) else None
        if isinstance(error, KafkaError) and (error.fatal() or error.code() == KafkaError._FATAL):
            self.on_fatal(error)


def _log_fatal(error: KafkaError) -> None:
    _log.error("the producer met a fatal error: it stores nothing more", code=error.name(), reason=error.str())
