from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from isotherm.servicekit.producer.delivery import DeliveryFailedError, LoopProducer, QueueFullError


class ScriptedProducer:
    """A producer that reports when the test says so, from `poll`, as librdkafka does."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[KafkaError | None, Any], None]] = []
        self.due: list[tuple[Callable[[KafkaError | None, Any], None], KafkaError | None]] = []
        self.refusals: list[Exception] = []
        self.polls = 0

    def produce(self, topic: str, *, on_delivery: Callable[[KafkaError | None, Any], None], **_rest: Any) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.waiting.append(on_delivery)

    def purge(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self.waiting) + len(self.due)

    def report(self, error: KafkaError | None = None) -> None:
        self.due.append((self.waiting.pop(0), error))

    def poll(self, _timeout_s: float) -> int:
        self.polls += 1
        due, self.due = self.due, []
        for callback, error in due:
            callback(error, None)
        return len(due)


@pytest.fixture
def scripted() -> ScriptedProducer:
    return ScriptedProducer()


@pytest.fixture
def producer(scripted: ScriptedProducer) -> LoopProducer:
    return LoopProducer(cast(Producer, scripted), max_outstanding=2)


async def until(condition: Callable[[], object]) -> None:
    """Run the event loop until the condition holds."""
    while not condition():  # noqa: ASYNC110 - the scripted producer has no event to wait for
        await asyncio.sleep(0)


async def test_report_comes_on_the_loop(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    reports: list[KafkaError | None] = []
    producer.produce("t", key="k", value=b"v", on_delivery=reports.append)
    assert producer.outstanding == 1

    scripted.report()
    await until(lambda: reports)

    assert reports == [None]
    assert producer.outstanding == 0


async def test_idle_producer_is_not_polled(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    producer.produce("t", key=None, value=b"v", on_delivery=lambda _error: None)
    scripted.report()
    await producer.drain()
    polls = scripted.polls

    for _ in range(20):
        await asyncio.sleep(0)

    assert scripted.polls == polls


async def test_bound_on_outstanding_records_holds(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    for _ in range(2):
        producer.produce("t", key=None, value=b"v", on_delivery=lambda _error: None)

    with pytest.raises(QueueFullError):
        producer.produce("t", key=None, value=b"v", on_delivery=lambda _error: None)
    assert len(scripted.waiting) == 2


async def test_send_waits_for_room_and_returns_when_kafka_has_the_record(
    producer: LoopProducer, scripted: ScriptedProducer
) -> None:
    sends = [asyncio.create_task(producer.send("t", key=None, value=b"v")) for _ in range(3)]
    await until(lambda: len(scripted.waiting) == 2)

    scripted.report()
    await until(lambda: len(scripted.waiting) == 2)
    scripted.report()
    scripted.report()

    await asyncio.gather(*sends)


async def test_send_tells_why_kafka_refused(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    sending = asyncio.create_task(producer.send("t", key=None, value=b"v"))
    await until(lambda: scripted.waiting)
    scripted.report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    with pytest.raises(DeliveryFailedError) as refused:
        await sending
    assert refused.value.error.code() == KafkaError.MSG_SIZE_TOO_LARGE


async def test_send_outlasts_librdkafka_s_own_full_queue(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    scripted.refusals = [BufferError(), BufferError()]
    sending = asyncio.create_task(producer.send("t", key=None, value=b"v"))

    await until(lambda: scripted.waiting)
    scripted.report()

    await sending


async def test_record_that_cannot_be_produced_at_all_fails_at_once(
    producer: LoopProducer, scripted: ScriptedProducer
) -> None:
    scripted.refusals = [KafkaException(KafkaError(KafkaError._FATAL))]

    with pytest.raises(DeliveryFailedError):
        await producer.send("t", key=None, value=b"v")
    assert producer.outstanding == 0


async def test_drain_returns_when_nothing_is_outstanding(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    for _ in range(2):
        producer.produce("t", key=None, value=b"v", on_delivery=lambda _error: None)
    draining = asyncio.create_task(producer.drain())

    scripted.report()
    await until(lambda: producer.outstanding == 1)
    assert not draining.done()
    scripted.report()

    await draining


async def test_sender_that_gave_up_harms_nobody(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    sending = asyncio.create_task(producer.send("t", key=None, value=b"v"))
    await until(lambda: scripted.waiting)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)

    scripted.report()
    await producer.drain()

    assert producer.outstanding == 0


def batch(size: int) -> list[tuple[str, bytes | str | None, bytes | None, list[tuple[str, bytes | str | None]]]]:
    return [("t", None, b"v", [])] * size


async def test_records_that_belong_together_have_one_report(scripted: ScriptedProducer) -> None:
    producer, reports = LoopProducer(cast(Producer, scripted)), cast(list[KafkaError | None], [])
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    producer.produce_all(batch(3), reports.append)
    assert producer.outstanding == 3

    scripted.report()
    scripted.report(refused)
    await until(lambda: scripted.polls > 1)
    assert not reports

    scripted.report()
    await until(lambda: reports)

    assert reports == [refused]
    assert producer.outstanding == 0


async def test_what_was_handed_over_is_waited_for_when_the_rest_cannot_be(scripted: ScriptedProducer) -> None:
    producer, reports = LoopProducer(cast(Producer, scripted), max_outstanding=2), cast(list[KafkaError | None], [])
    producer.produce_all(batch(4), reports.append)
    assert (producer.outstanding, len(scripted.waiting), reports) == (2, 2, [])

    scripted.report()
    scripted.report()
    await until(lambda: reports)

    assert [error.code() for error in reports if error] == [KafkaError._QUEUE_FULL]
    assert producer.outstanding == 0


async def test_a_first_record_that_cannot_be_produced_is_reported_at_once(scripted: ScriptedProducer) -> None:
    producer, reports = LoopProducer(cast(Producer, scripted)), cast(list[KafkaError | None], [])
    scripted.refusals.append(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)))

    producer.produce_all(batch(2), reports.append)

    assert [error.code() for error in reports if error] == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert producer.outstanding == 0


class Produced:
    """The parts of a message that a report comes with."""

    def __init__(self, topic: str, value: bytes) -> None:
        self._topic, self._value = topic, value

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 3

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value

    def headers(self) -> None:
        """A delivery report of confluent-kafka has no headers."""


class RefusingProducer:
    """A producer whose broker refuses each batch with a record `poison`; a batch is what was produced since a poll."""

    def __init__(self, records_in_batch: int = 100) -> None:
        self._batch_size = records_in_batch
        self._batch: list[tuple[Produced, tuple[int, object], Callable[[KafkaError | None, Any], None]]] = []
        self.stored: list[tuple[bytes, int, object]] = []

    def produce(
        self,
        topic: str,
        *,
        value: bytes,
        on_delivery: Callable[[KafkaError | None, Any], None],
        partition: int = -1,
        headers: object = (),
        **_rest: Any,
    ) -> None:
        self._batch.append((Produced(topic, value), (partition, headers), on_delivery))

    def poll(self, _timeout_s: float) -> int:
        produced, self._batch = self._batch, []
        for begin in range(0, len(produced), self._batch_size):
            batch = produced[begin : begin + self._batch_size]
            is_refused = any(record.value() == b"poison" for record, *_ in batch)
            for record, sent, report in batch:
                if not is_refused:
                    self.stored.append((record.value(), *sent))
                report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if is_refused else None, record)
        return len(produced)

    def purge(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self._batch)


@pytest.mark.parametrize("is_together", [False, True])
async def test_only_the_record_at_fault_fails_when_kafka_refuses_its_batch(is_together: bool) -> None:
    main, single = RefusingProducer(), RefusingProducer(records_in_batch=1)
    made: list[RefusingProducer] = []

    def make_single() -> Producer:
        made.append(single)
        return cast(Producer, single)

    producer = LoopProducer(cast(Producer, main), make_single=make_single)
    reports: dict[bytes, KafkaError | None] = {}
    for value in (b"1", b"poison", b"2"):
        report = partial(reports.__setitem__, value)
        if is_together:
            producer.produce_all([("t", b"k", value, [("h", value)])], report)
        else:
            producer.produce("t", key=b"k", value=value, headers=[("h", value)], on_delivery=report)
    await producer.drain()
    failed = reports.pop(b"poison")
    assert failed is not None
    assert failed.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert reports == {b"1": None, b"2": None}
    assert single.stored == [(value, 3, [("h", value)]) for value in (b"1", b"2")], "partition and headers as before"
    assert producer.outstanding == 0

    producer.produce("t", key=b"k", value=b"3", on_delivery=partial(reports.__setitem__, b"3"))
    await producer.drain()
    assert reports[b"3"] is None
    assert made == [single], "it is made once, and only when it is needed"
    producer.close()


async def test_a_fatal_error_of_the_single_producer_fails_what_waits_in_it_and_makes_another() -> None:
    main, broken, next_one = RefusingProducer(), ScriptedProducer(), RefusingProducer(records_in_batch=1)
    made = iter((broken, next_one))
    producer = LoopProducer(cast(Producer, main), make_single=lambda: cast(Producer, next(made)))
    broken.refusals.append(KafkaException(KafkaError(KafkaError._FATAL, fatal=True)))
    reports: list[KafkaError | None] = []
    producer.produce_all([("t", b"k", b"poison", [])], reports.append)
    await producer.drain()
    assert [error.code() for error in reports if error is not None] == [KafkaError._FATAL]

    producer.produce_all([("t", b"k", b"poison", [])], reports.append)
    await producer.drain()
    assert [error.code() for error in reports if error is not None] == [
        KafkaError._FATAL,
        KafkaError.MSG_SIZE_TOO_LARGE,
    ]
    producer.close()


async def test_records_that_the_caller_produces_itself_are_waited_for(
    scripted: ScriptedProducer, producer: LoopProducer
) -> None:
    reported: list[KafkaError | None] = []

    def settle() -> None:
        producer.count_reported(len(reported))
        reported.clear()

    producer.on_polled = settle
    producer.producer.produce("t", value=b"v", on_delivery=lambda error, _message: reported.append(error))
    producer.count_produced(1)
    assert producer.left == 1
    scripted.report()
    await producer.drain()
    assert producer.left == 2
    assert scripted.polls


async def test_a_failed_record_of_the_caller_is_decided_as_one_of_ours(
    scripted: ScriptedProducer, producer: LoopProducer
) -> None:
    decided: list[KafkaError | None] = []

    def report(error: KafkaError | None, message: Any) -> None:
        assert error is not None
        producer.decide_failed(error, message, [], decide)

    def decide(error: KafkaError | None) -> None:
        decided.append(error)
        producer.count_reported(1)

    producer.producer.produce("t", value=b"v", on_delivery=report)
    producer.count_produced(1)
    scripted.report(KafkaError(KafkaError._MSG_TIMED_OUT))
    await producer.drain()
    assert [error.code() for error in decided if error is not None] == [KafkaError._MSG_TIMED_OUT]
    assert producer.outstanding == 0


def test_a_record_that_the_caller_could_not_produce_is_noted(producer: LoopProducer) -> None:
    fatal: list[KafkaError] = []
    producer.on_fatal = fatal.append
    assert producer.note_refused(BufferError()).code() == KafkaError._QUEUE_FULL
    assert not fatal
    failure = KafkaException(KafkaError(KafkaError._FATAL))
    assert [producer.note_refused(failure)] == fatal == [failure.args[0]]


class ScriptedDirect:
    """Another way into a producer: its reports are drained when the producer was polled."""

    def __init__(self, scripted: ScriptedProducer) -> None:
        self._scripted = scripted
        self.due: list[Callable[[], None]] = []
        self.polls: list[int] = []
        """How often the producer had been polled at each call that found reports."""

    def drain(self) -> int:
        due, self.due = self.due, []
        if due:
            self.polls.append(self._scripted.polls)
        for report in due:
            report()
        return len(due)


async def test_reports_of_another_way_are_drained_after_a_poll(
    producer: LoopProducer, scripted: ScriptedProducer
) -> None:
    direct = ScriptedDirect(scripted)
    producer.use_direct(lambda _made: direct)
    assert producer.direct is direct
    producer.count_produced(1)
    direct.due.append(lambda: producer.count_reported(1))
    await producer.drain()
    assert direct.polls == [1]


async def test_a_report_of_another_way_that_raises_is_counted_and_the_next_ones_come(
    producer: LoopProducer, scripted: ScriptedProducer
) -> None:
    direct, failures = ScriptedDirect(scripted), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["exception"]))

    def broken() -> None:
        direct.due.append(lambda: producer.count_reported(1))
        raise ValueError("a fault")

    producer.use_direct(lambda _made: direct)
    producer.count_produced(1)
    direct.due.append(broken)
    await producer.drain()
    assert producer.failed_reports == 1
    assert [str(failure) for failure in failures] == ["a fault"]


async def test_the_other_way_into_a_replaced_producer_is_drained_until_it_is_empty(
    producer: LoopProducer, scripted: ScriptedProducer
) -> None:
    ways: dict[object, ScriptedDirect] = {}

    def make(made: Any) -> ScriptedDirect:
        ways[made] = ScriptedDirect(made)
        return ways[made]

    producer.use_direct(make)
    scripted.waiting.append(lambda _error, _message: None)
    producer.count_produced(1)
    replacement = ScriptedProducer()
    producer.replace(cast(Producer, replacement))
    assert producer.direct is ways[replacement]
    await until(lambda: replacement.polls)
    ways[scripted].due.append(lambda: producer.count_reported(1))
    scripted.report(KafkaError(KafkaError._PURGE_QUEUE))
    await producer.drain()
    assert len(ways[scripted].polls) == 1
