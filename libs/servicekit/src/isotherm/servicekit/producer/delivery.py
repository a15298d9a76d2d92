"""A Kafka producer for asyncio: delivery reports are called on the event loop, and the queue is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from isotherm.servicekit import logs
from isotherm.servicekit.producer.direct import DirectProducer
from isotherm.servicekit.producer.refused_batch import REFUSED_BATCH
from isotherm.servicekit.producer.report_signal import ReportSignal, is_available

_log = logs.logger(__name__)

Headers = Sequence[tuple[str, bytes | str | None]]
OnDelivery = Callable[[KafkaError | None], None]

_POLL_INTERVAL_S = 0.001
"""Shortest time between two polls, so that the reports of a busy producer come in groups."""
_GUARD_INTERVAL_S = 1.0
"""How often outstanding records are polled although nothing was signalled."""
_FULL_INTERVAL_S = 0.01
"""Pause before the next attempt to produce a record while librdkafka has no room for it."""


class DeliveryFailedError(Exception):
    """Kafka did not store the record; `error` says why."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.error = error


class QueueFullError(Exception):
    """Too many records wait for their delivery report. The caller must stop reading until there is room."""


class LoopProducer:
    """Owns a confluent-kafka Producer and serves its delivery reports from the running event loop.

    librdkafka wakes the loop when there are reports, and the loop polls them, at most once in a millisecond: callbacks
    need no locks, and a producer without reports costs nothing. Where librdkafka cannot wake the loop
    (`report_signal.is_available`), the loop polls each millisecond while records are outstanding. `max_outstanding`
    bounds the records between `produce` and their report.

    Kafka refuses a whole batch for one record in it. `make_single` returns a producer whose batches hold one record: it
    produces the records of a refused batch again, so that only the record at fault fails. The others are stored then,
    maybe behind later records of their keys.

    A fatal error (librdkafka's INTRODUCTION.md, "Fatal errors") fails every outstanding record and every later one.
    `on_fatal` is called with it until `replace` sets another producer, as `health.ProducerHealth` does.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        max_outstanding: int = 50_000,
        make_single: Callable[[], Producer] | None = None,
    ) -> None:
        self.producer = producer
        self._make_single = make_single
        self._single: LoopProducer | None = None  # for the records of refused batches; made at the first one
        self.outstanding = 0
        self.max_outstanding = max_outstanding
        self.failed_reports = 0
        """Number of `on_delivery` callbacks that raised; asyncio's exception handler logs these errors."""
        self.on_fatal: Callable[[KafkaError], None] = _log_fatal
        self.on_stored: Callable[[Message], None] | None = None
        """Called with each record that Kafka has, before `on_delivery`; not with those of `count_produced`."""
        self.on_polled: Callable[[], None] = lambda: None
        """Called after each poll, before anybody who waits for reports goes on."""
        self.direct: DirectProducer | None = None  # into `producer`; its records are counted by `count_produced`
        self._make_direct: Callable[[Producer], DirectProducer | None] = lambda producer: None
        self._retired: list[tuple[Producer, DirectProducer | None]] = []
        self._signal: ReportSignal | None = None
        self._is_signalled = False  # whether the current producer wakes the loop
        self._has_begun = False
        self._polled_s = 0.0
        self._timer: asyncio.TimerHandle | None = None  # the next poll that is due soon
        self._guard: asyncio.TimerHandle | None = None  # the next poll that does not wait for a signal
        self._waiters: list[asyncio.Future[None]] = []

    def replace(self, producer: Producer) -> None:
        """Produce with `producer` from now on; records that wait in the previous one are reported as failed."""
        self._retired.append((self.producer, self.direct))
        self.producer.purge()
        self.producer, self.direct = producer, self._make_direct(producer)
        if self._has_begun:
            self._attach()
        self._poll_soon()

    def use_direct(self, make: Callable[[Producer], DirectProducer | None]) -> None:
        """Let `make` return another way into this producer and into its successors; None where there is none."""
        self._make_direct = make
        self.direct = make(self.producer)

    def look(self) -> None:
        """Poll for a fatal error while no record is outstanding and nothing else polls; cheap, never blocks."""
        if self._timer is None and self._guard is None:
            self._poll()

    def close(self) -> None:
        """Free what wakes the loop. Records that are outstanding are not reported any more."""
        for timer in (self._timer, self._guard):
            if timer is not None:
                timer.cancel()
        self._timer = self._guard = None
        signal, self._signal, self._is_signalled = self._signal, None, False
        if signal is not None:
            asyncio.get_running_loop().remove_reader(signal.descriptor)
            signal.close()
        if self._single is not None:
            self._single.close()

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

        def finish(error: KafkaError | None) -> None:
            self.outstanding -= 1
            on_delivery(error)

        report = partial(self._report, headers, finish)
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
        if self._guard is None and self._timer is None:
            self._expect_reports()

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

        def finish(error: KafkaError | None) -> None:
            nonlocal left, failed
            if error is not None:
                failed = error
            left -= 1
            if not left:
                self.outstanding -= handed_over
                on_delivery(failed)

        handed_over = 0
        produce, shared = self.producer.produce, None
        try:
            for topic, key, value, headers in records:
                if self.outstanding >= self.max_outstanding:
                    raise BufferError
                if headers is not shared:
                    report, shared = partial(self._report, headers, finish), headers
                produce(topic, value=value, key=key, headers=headers, on_delivery=report)
                handed_over += 1
                self.outstanding += 1
        except (BufferError, KafkaException) as failure:
            left -= len(records) - handed_over - 1
            finish(self.note_refused(failure))
        if self._guard is None and self._timer is None and handed_over:
            self._expect_reports()

    @property
    def left(self) -> int:
        """How many more records may be outstanding."""
        return self.max_outstanding - self.outstanding

    def count_produced(self, records: int) -> None:
        """Count records that the caller passed to `producer` itself, each with a delivery callback of its own.

        The callback gets (error, message) of confluent-kafka. It passes an error to `decide_failed`. The caller counts
        the reports with `count_reported`, those without an error at the latest in `on_polled`.
        """
        self.outstanding += records
        if self._guard is None and self._timer is None:
            self._expect_reports()

    def count_reported(self, records: int) -> None:
        """Count delivery reports of records that `count_produced` counted."""
        self.outstanding -= records

    def decide_failed(self, error: KafkaError, message: Message, headers: Headers, on_delivery: OnDelivery) -> None:
        """Decide about a record of `count_produced` with an error, as `produce` does; `on_delivery` counts it."""
        self._report(headers, on_delivery, error, message)

    def note_refused(self, failure: BufferError | KafkaException) -> KafkaError:
        """Return the error of a record that `producer` did not take from the caller, and note whether it is fatal."""
        self._note(failure)
        return failure.args[0] if isinstance(failure, KafkaException) else KafkaError(KafkaError._QUEUE_FULL)

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
                await asyncio.sleep(_FULL_INTERVAL_S)
            except KafkaException as failure:
                raise DeliveryFailedError(failure.args[0]) from failure
            else:
                break
        error = await done
        if error is not None:
            raise DeliveryFailedError(error)

    async def room(self, most: int | None = None) -> None:
        """Return as soon as fewer than `most` records are outstanding; None: than `max_outstanding`."""
        while self.outstanding >= (self.max_outstanding if most is None else most):
            await self._next_report()

    async def drain(self) -> None:
        """Return when no record is outstanding any more."""
        while self.outstanding:
            await self._next_report()

    def _report(self, headers: Headers, finish: OnDelivery, error: KafkaError | None, message: Message) -> None:
        if error is None and self.on_stored is not None:
            self.on_stored(message)
        if error is None or not self._is_tried_again(error, message, headers, finish):
            finish(error)

    def _is_tried_again(self, error: KafkaError, message: Message, headers: Headers, on_delivery: OnDelivery) -> bool:
        """Produce a record of a refused batch in a batch of its own; False if the error was for this record alone.

        A delivery report of confluent-kafka has no headers, so they are given.
        """
        if self._make_single is None or error.code() not in REFUSED_BATCH:
            return False
        if self._single is None:
            _log.warning("Kafka refused a batch; records of refused batches are tried one by one", reason=error.str())
            self._single = LoopProducer(self._make_single(), max_outstanding=self.max_outstanding)
            self._single.on_fatal, self._single.on_stored = self._replace_single, self.on_stored
        try:
            self._single.produce(
                str(message.topic()),
                key=message.key(),
                value=message.value(),
                headers=headers,
                on_delivery=lambda last: self._finish_again(last, on_delivery),
                partition=int(message.partition() or 0),
            )
        except QueueFullError:
            # Not stored, but not at fault either.
            on_delivery(KafkaError(KafkaError._QUEUE_FULL))
        except KafkaException as failure:
            on_delivery(failure.args[0])
        return True

    def _finish_again(self, error: KafkaError | None, on_delivery: OnDelivery) -> None:
        on_delivery(error)
        self._wake()

    def _replace_single(self, error: KafkaError) -> None:
        _log.error("the producer of single records met a fatal error; making a new one", reason=error.str())
        assert self._single is not None
        assert self._make_single is not None
        self._single.replace(self._make_single())

    async def _next_report(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _attach(self) -> None:
        """Let the current producer wake the loop, where it can."""
        self._is_signalled = is_available() and isinstance(self.producer, Producer)
        if not self._is_signalled:
            return
        if self._signal is None:
            self._signal = ReportSignal()
            asyncio.get_running_loop().add_reader(self._signal.descriptor, self._on_signal)
        self._signal.attach(self.producer)

    def _expect_reports(self) -> None:
        """Make sure that the reports of what is outstanding will be polled."""
        if not self._has_begun:
            self._has_begun = True
            self._attach()
            # What waits in the queue since before is not signalled, and hides what comes behind it.
            self._poll_soon()
        elif not self._is_signalled or self._retired:
            self._poll_soon()
        elif self._guard is None:
            self._guard = asyncio.get_running_loop().call_later(_GUARD_INTERVAL_S, self._on_guard)

    def _poll_soon(self, seconds: float = _POLL_INTERVAL_S) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._poll)

    def _on_signal(self) -> None:
        assert self._signal is not None
        self._signal.clear()
        wait_s = self._polled_s + _POLL_INTERVAL_S - asyncio.get_running_loop().time()
        if wait_s > 0:
            self._poll_soon(wait_s)
        elif self._timer is None:
            self._poll()

    def _on_guard(self) -> None:
        self._guard = None
        if self._timer is None:
            self._poll()

    def _poll(self) -> None:
        self._timer = None
        self._polled_s = asyncio.get_running_loop().time()
        served = 1
        try:
            served = self._serve(self.producer, self.direct)
            for retired, direct in tuple(self._retired):
                served += self._serve(retired, direct)
                if not len(retired):
                    self._retired.remove((retired, direct))
                    if self._signal is not None:
                        self._signal.detach(retired)
        except Exception:
            self.failed_reports += 1
            # The reports behind the one that raised are in the queue again.
            self._poll_soon()
            raise
        finally:
            try:
                self.on_polled()
            finally:
                # Schedule the next poll after an exception too: without it no other record would ever be reported, and
                # a caller that waits for the last one would never return.
                if served:
                    self._wake()
                if self.outstanding or self._retired:
                    self._expect_reports()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _serve(self, producer: Producer, direct: DirectProducer | None) -> int:
        try:
            served = producer.poll(0)
        except KafkaException as failure:
            # confluent-kafka raises a fatal error once from poll, and does not call error_cb; the reports come later.
            if producer is self.producer:
                self._note(failure)
            self._poll_soon()
            served = 1
        # After the poll: a record that librdkafka counts no more has been reported.
        return served if direct is None else served + direct.drain()

    def _note(self, failure: BaseException) -> None:
        error = failure.args[0] if isinstance(failure, KafkaException) else None
        if isinstance(error, KafkaError) and (error.fatal() or error.code() == KafkaError._FATAL):
            self.on_fatal(error)


def _log_fatal(error: KafkaError) -> None:
    _log.error("the producer met a fatal error: it stores nothing more", code=error.name(), reason=error.str())
