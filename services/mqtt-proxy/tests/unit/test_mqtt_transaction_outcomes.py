"""How a transaction ends for the transactional writer, whatever its producer answers and whenever."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from isotherm.mqtt_proxy.delivery import transactional_writer
from isotherm.mqtt_proxy.delivery.transactional_writer import (
    FatalTransactionError,
    FencedError,
    SuccessorUnknownError,
    TransactionalWriter,
    WriteResult,
)
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.servicekit.lifecycle import Stop

TOO_LARGE, PURGED, FENCED = KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._PURGE_QUEUE, KafkaError._FENCED
TIMEOUT_S = 60.0
LATE_S = 0.36
"""So long an EndTxn may take before librdkafka has sent it again."""
COMMIT = ["begin", "produce a", "produce b", "flush 5.0", "commit 7.0"]
REPLACED = ["replacing", "init 5.0", "replaced"]


def failure(code: int, *, retriable: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, f"error {code}", False, retriable))


class World:
    """A writer whose producers do what the test says at each call, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.calls: list[str] = []
        self.answers: dict[str, list[Callable[[], Any]]] = {}
        """By the first word of a call, what happens at the next ones."""
        self.delivered: dict[str, int | None] = {}
        """By key, the error with which a record is delivered; None leaves its place unknown."""
        self.reports: list[Callable[[], None]] = []
        self.is_committed = True
        self.successor: str | None = None
        self.first_offset = 39
        self.writer = TransactionalWriter(
            lambda: cast(Producer, ScriptedProducer(self)),
            timeout_s=TIMEOUT_S,
            end_timeout_s=7.0,
            is_committed=self._asked,
            on_replacing=lambda _reason: self.calls.append("replacing"),
            on_replaced=lambda: self.calls.append("replaced"),
            find_successor=self._find_successor,
        )

    def open(self) -> None:
        self.writer.open(Stop())
        self.calls.clear()

    def write(self, keys: str = "ab") -> WriteResult:
        self.calls.clear()
        return self.writer.write([ProducerRecord("t", key, b"", []) for key in keys])

    def fails(self, call: str, error: BaseException, after_s: float = 0.0) -> None:
        def fail() -> None:
            self.now_s += after_s
            raise error

        self.answers.setdefault(call, []).append(fail)

    def takes(self, call: str, seconds: float) -> None:
        def wait() -> None:
            self.now_s += seconds

        self.answers.setdefault(call, []).append(wait)

    def _find_successor(self) -> str | None:
        self.calls.append("find successor")
        for answer in self.answers.get("find successor", ())[:1]:
            self.answers["find successor"].pop(0)
            answer()
        return self.successor

    def _asked(self, topic: str, partition: int, offset: int) -> bool:
        self.calls.append(f"asked {topic} {partition} {offset}")
        return self.is_committed


class ScriptedProducer:
    def __init__(self, world: World) -> None:
        self._world = world

    def _call(self, name: str, *details: object) -> Any:
        self._world.calls.append(" ".join(map(str, (name, *details))))
        answers = self._world.answers.get(name)
        return answers.pop(0)() if answers else None

    def init_transactions(self, timeout_s: float) -> None:
        self._call("init", timeout_s)

    def begin_transaction(self) -> None:
        self._call("begin")

    def produce(self, topic: str, *, key: str, on_delivery: Callable[[KafkaError | None, Any], None], **_: Any) -> None:
        self._call("produce", key)
        code = self._world.delivered.get(key, 0)
        offset = self._world.first_offset + ord(key) - ord("a")
        place = (topic, 3, offset) if code == 0 else (None, None, None) if code is None else (topic, 3, -1)
        message = SimpleNamespace(topic=lambda: place[0], partition=lambda: place[1], offset=lambda: place[2])
        error = KafkaError(code, f"error {code}") if code else None
        self._world.reports.append(lambda: on_delivery(error, message))

    def poll(self, timeout_s: float) -> None:
        self._call("poll", timeout_s)

    def flush(self, timeout_s: float) -> int:
        left = self._call("flush", timeout_s) or 0
        for report in self._world.reports if not left else ():
            report()
        if not left:
            self._world.reports.clear()
        return left

    def commit_transaction(self, timeout_s: float) -> None:
        self._call("commit", timeout_s)

    def abort_transaction(self, timeout_s: float) -> None:
        self._call("abort", timeout_s)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    created = World()
    monkeypatch.setattr(transactional_writer, "time", SimpleNamespace(monotonic=lambda: created.now_s))
    created.open()
    return created


def test_a_batch_is_flushed_and_committed(world: World) -> None:
    world.takes("commit", LATE_S - 0.01)
    assert world.write() is WriteResult.COMMITTED
    assert (world.calls, world.writer.fault) == (COMMIT, "")


def test_the_last_of_the_records_is_the_witness_wherever_it_is(world: World) -> None:
    world.first_offset = 0
    world.fails("commit", failure(KafkaError._TIMED_OUT))
    assert world.writer.fault == ""
    assert world.write("abc") is WriteResult.COMMITTED
    assert world.calls[:4] == ["begin", "produce a", "produce b", "produce c"]
    assert world.calls[-1] == "asked t 3 2"
    world.fails("commit", failure(KafkaError._TIMED_OUT))
    assert world.write("a") is WriteResult.COMMITTED
    assert world.calls[-1] == "asked t 3 0"


def test_a_full_queue_is_polled_until_it_takes_the_record(world: World) -> None:
    world.fails("produce", BufferError())
    assert world.write() is WriteResult.COMMITTED
    assert world.calls == ["begin", "produce a", "poll 0.05", "produce a", "produce b", "flush 5.0", "commit 7.0"]


def test_a_flush_is_repeated_until_nothing_is_left(world: World) -> None:
    world.answers["flush"] = [lambda: 1]
    assert world.write() is WriteResult.COMMITTED
    assert world.calls.count("flush 5.0") == 2


def test_an_unfinished_flush_ends_with_the_process(world: World) -> None:
    def give_up() -> int:
        world.writer.give_up()
        return 1

    world.answers["flush"] = [give_up]
    assert not world.writer.is_given_up()
    with pytest.raises(FatalTransactionError):
        world.write()
    assert world.writer.is_given_up()


def test_a_record_that_is_not_taken_aborts_and_is_at_fault(world: World) -> None:
    world.fails("produce", failure(TOO_LARGE))
    assert world.write() is WriteResult.ABORTED_RECORD_AT_FAULT
    assert world.calls == ["begin", "produce a", "abort 7.0", *REPLACED]
    assert world.writer.fault == f"error {TOO_LARGE}"
    world.reports.clear()
    assert world.write() is WriteResult.COMMITTED
    assert world.writer.fault == ""


@pytest.mark.parametrize(("first", "second"), [(PURGED, TOO_LARGE), (TOO_LARGE, PURGED)])
def test_the_record_at_fault_is_found_among_those_that_were_purged(world: World, first: int, second: int) -> None:
    world.delivered = {"a": first, "b": second}
    assert world.write() is WriteResult.ABORTED_RECORD_AT_FAULT
    assert world.writer.fault == f"error {TOO_LARGE}"


def test_the_first_error_is_the_reason_where_no_record_is_at_fault(world: World) -> None:
    world.delivered = {"a": PURGED, "b": KafkaError._MSG_TIMED_OUT}
    assert world.write() is WriteResult.ABORTED
    assert world.calls == [*COMMIT[:-1], "abort 7.0", *REPLACED], "the producer's sequence has a gap"
    assert world.writer.fault == f"error {PURGED}"


def test_a_refusal_that_is_reported_while_the_transaction_aborts_is_heard(world: World) -> None:
    world.fails("begin", failure(PURGED))
    error = KafkaError(TOO_LARGE, "too large")
    world.answers["abort"] = [lambda: world.writer._on_delivery(error, cast(Any, None))]
    assert world.write() is WriteResult.ABORTED_RECORD_AT_FAULT
    assert world.calls == ["begin", "abort 7.0", *REPLACED]


def test_a_transaction_that_does_not_begin_keeps_its_producer(world: World) -> None:
    world.fails("begin", failure(PURGED))
    assert world.write() is WriteResult.ABORTED
    assert world.calls == ["begin", "abort 7.0"]


def test_an_abort_without_an_answer_gives_the_producer_up(world: World) -> None:
    world.fails("begin", failure(PURGED))
    world.fails("abort", failure(KafkaError._TIMED_OUT))
    assert world.write() is WriteResult.ABORTED
    assert world.calls == ["begin", "abort 7.0", *REPLACED]


@pytest.mark.parametrize(("seconds", "replaced"), [(LATE_S - 0.001, []), (LATE_S + 0.001, REPLACED)])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_that_may_have_been_sent_twice_gives_the_producer_up(
    world: World, end: str, seconds: float, replaced: list[str]
) -> None:
    if end == "abort":
        world.fails("begin", failure(PURGED))
    world.takes(end, seconds)
    assert world.write() is (WriteResult.ABORTED if end == "abort" else WriteResult.COMMITTED)
    assert world.calls == ([*COMMIT, *replaced] if end == "commit" else ["begin", "abort 7.0", *replaced])


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_unanswered_commit_is_as_a_reader_sees_it(world: World, is_committed: bool) -> None:
    world.is_committed = is_committed
    world.fails("commit", failure(KafkaError._TIMED_OUT))
    assert world.write() is (WriteResult.COMMITTED if is_committed else WriteResult.ABORTED)
    assert world.calls == [*COMMIT, *REPLACED, "asked t 3 40"]


def test_an_unanswered_commit_is_fatal_where_the_witness_is_unknown(world: World) -> None:
    world.delivered = {"b": None}
    world.fails("commit", failure(KafkaError._TIMED_OUT))
    with pytest.raises(FatalTransactionError, match="where a record"):
        world.write()
    world.delivered = {}
    world.reports.clear()
    assert world.write() is WriteResult.COMMITTED


def test_the_witness_of_an_earlier_batch_says_nothing(world: World) -> None:
    assert world.write() is WriteResult.COMMITTED
    world.delivered = {"b": None}
    world.fails("commit", failure(KafkaError._TIMED_OUT))
    with pytest.raises(FatalTransactionError):
        world.write()


@pytest.mark.parametrize("call", ["begin", "commit", "abort", "init"])
def test_a_fenced_writer_ends_unless_its_transaction_was_open_too_long(world: World, call: str) -> None:
    if call == "abort":
        world.fails("begin", failure(PURGED))
    if call == "init":
        world.takes("commit", LATE_S + 1)
    world.fails(call, failure(FENCED), after_s=TIMEOUT_S - LATE_S - 2)
    with pytest.raises(FencedError):
        world.write()


@pytest.mark.parametrize(("call", "result"), [("begin", WriteResult.ABORTED), ("commit", WriteResult.COMMITTED)])
def test_kafka_itself_fences_a_writer_whose_transaction_was_open_too_long(
    world: World, call: str, result: WriteResult
) -> None:
    world.fails(call, failure(FENCED), after_s=TIMEOUT_S)
    assert world.write() is result


def test_the_age_of_a_transaction_counts_from_its_own_begin(world: World) -> None:
    world.now_s += 10 * TIMEOUT_S
    world.fails("commit", failure(FENCED))
    with pytest.raises(FencedError):
        world.write()


def test_a_coordinator_that_is_away_is_waited_for(world: World) -> None:
    world.fails("init", failure(KafkaError._TIMED_OUT, retriable=True))
    world.open()
    world.fails("init", failure(FENCED))
    with pytest.raises(FencedError):
        world.open()
    world.fails("init", failure(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    with pytest.raises(FatalTransactionError) as refused:
        world.open()
    assert not isinstance(refused.value, FencedError)


def test_a_stop_ends_the_wait_for_the_coordinator(world: World) -> None:
    stop = Stop()
    stop.set()
    world.writer.open(stop)
    assert world.calls == []


@pytest.mark.parametrize(("call", "error"), [("commit", KafkaError._TIMED_OUT), ("commit", FENCED), ("begin", FENCED)])
def test_a_writer_that_stood_still_does_not_fence_who_has_taken_over(world: World, call: str, error: int) -> None:
    """As after SIGSTOP in a transaction, for longer than a standby looks for heartbeats and than Kafka waits."""
    world.successor = "other-host:17"
    world.fails(call, failure(error), after_s=TIMEOUT_S)
    world.fails("abort", failure(error))
    with pytest.raises(FencedError, match="other-host:17 has taken over"):
        world.write()
    assert world.calls[-2:] == ["replacing", "find successor"]


def test_a_writer_that_stood_still_goes_on_when_nobody_has_taken_over(world: World) -> None:
    world.fails("commit", failure(KafkaError._TIMED_OUT), after_s=TIMEOUT_S)
    assert world.write() is WriteResult.COMMITTED
    assert world.calls == [*COMMIT, "replacing", "find successor", *REPLACED[1:], "asked t 3 40"]


def test_who_has_the_id_is_asked_until_kafka_tells_and_again_after_each_attempt_without_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ScriptedProducer] = []

    def make() -> ScriptedProducer:
        made.append(ScriptedProducer(world))
        return made[-1]

    monkeypatch.setattr(transactional_writer, "_PAUSE_S", 0.0)
    monkeypatch.setattr(world.writer, "_make_producer", make)
    world.takes("commit", LATE_S + 1)
    world.fails("init", failure(KafkaError._TIMED_OUT, retriable=True), after_s=5.0)
    world.fails("find successor", SuccessorUnknownError("Kafka is away"), after_s=10.0)
    assert world.write() is WriteResult.COMMITTED
    asked = ["find successor", "find successor"]
    assert world.calls == [*COMMIT, "replacing", "init 5.0", *asked, "init 5.0", "replaced"]
    assert len(made) == 2, "an initialisation without an answer may still be on its way: its producer is gone"


def test_the_end_of_the_process_ends_the_wait_for_who_has_the_id(world: World) -> None:
    world.fails("commit", failure(KafkaError._TIMED_OUT), after_s=TIMEOUT_S)
    world.answers["find successor"] = [world.writer.give_up]
    with pytest.raises(FatalTransactionError, match="told to end"):
        world.write()
    world.fails("commit", failure(KafkaError._TIMED_OUT), after_s=TIMEOUT_S)
    world.fails("find successor", SuccessorUnknownError("Kafka is away"))
    with pytest.raises(FatalTransactionError, match="told to end"):
        world.write()
    assert world.calls == [*COMMIT, "replacing", "find successor"]


def test_no_other_producer_begins_when_the_process_ends(world: World) -> None:
    world.writer.give_up()
    world.takes("commit", LATE_S + 1)
    with pytest.raises(FatalTransactionError, match="told to end"):
        world.write()
    assert world.calls == [*COMMIT, "replacing"]


def test_a_fatal_error_is_found_behind_the_interpreters_error(world: World) -> None:
    hidden = SystemError()
    hidden.__cause__ = ValueError()
    hidden.__cause__.__context__ = failure(PURGED)
    world.fails("begin", hidden)
    assert world.write() is WriteResult.ABORTED
    world.fails("begin", SystemError("of another origin"))
    with pytest.raises(SystemError, match="another origin"):
        world.write()
