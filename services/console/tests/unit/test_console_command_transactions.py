"""How the writer of commands ends transactions: committed, aborted, or given up so that a successor decides."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from isotherm.console.commands import transactions
from isotherm.console.commands.transactions import Output, TransactionalWriter, TransactionFailedError

OUTPUT, OFFSET, GROUP = Output("t", b"k", b"v"), TopicPartition("i", 2, 7), object()


class Kafka:
    """Producers that note their calls, and fail where they are told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, BaseException] = {}
        self.refuses: KafkaError | None = None
        self.now_s = 0.0
        self.takes_s: dict[str, float] = {}

    def make(self, name: str) -> Producer:
        return cast(Producer, ScriptedProducer(self, name))

    def call(self, name: str) -> None:
        self.calls.append(name)
        self.now_s += self.takes_s.get(name, 0.0)
        failure = self.fails.pop(name, None)
        if failure is not None:
            raise failure


class ScriptedProducer:
    def __init__(self, kafka: Kafka, name: str) -> None:
        self._kafka, self._name = kafka, name
        self._reports: list[Callable[[], None]] = []

    def init_transactions(self, _timeout_s: float) -> None:
        self._kafka.call(f"init {self._name}")

    def begin_transaction(self) -> None:
        self._kafka.call("begin")

    def produce(self, topic: str, *, on_delivery: Callable[[KafkaError | None, Any], None], **_more: Any) -> None:
        self._kafka.call(f"produce {topic}")
        self._reports.append(lambda: on_delivery(self._kafka.refuses, None))

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], group: object, _timeout_s: float) -> None:
        assert group is GROUP
        self._kafka.call(f"offsets {[one.offset for one in offsets]}")

    def flush(self, _timeout_s: float) -> int:
        for report in self._reports:
            report()
        self._kafka.call("flush")
        return 0

    def commit_transaction(self, _timeout_s: float) -> None:
        self._kafka.call("commit")

    def abort_transaction(self, _timeout_s: float) -> None:
        self._kafka.call("abort")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    monkeypatch.setattr(transactions, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


@pytest.fixture
def writer(kafka: Kafka) -> TransactionalWriter:
    made = TransactionalWriter(kafka.make)
    made.take_over([3, 2])
    kafka.calls.clear()
    return made


def write(writer: TransactionalWriter) -> None:
    writer.write([OUTPUT], [OFFSET], GROUP)


def test_it_takes_over_every_partition_and_writes_records_with_their_offsets(kafka: Kafka) -> None:
    writer = TransactionalWriter(kafka.make)
    writer.take_over([3, 2])
    assert sorted(kafka.calls) == ["init isotherm-commands-2", "init isotherm-commands-3"]
    kafka.calls.clear()
    write(writer)
    write(writer)
    assert kafka.calls == ["begin", "produce t", "flush", "offsets [7]", "commit"] * 2


@pytest.mark.parametrize("call", ["begin", "produce t", "offsets [7]", "flush"])
def test_a_transaction_that_fails_before_its_commit_is_aborted(
    kafka: Kafka, writer: TransactionalWriter, call: str
) -> None:
    kafka.fails[call] = KafkaException(KafkaError(KafkaError._FENCED, "the reason"))
    with pytest.raises(TransactionFailedError, match="the reason"):
        write(writer)
    assert kafka.calls[-1] == "abort"
    assert "commit" not in kafka.calls


def test_a_refused_record_aborts_its_transaction(kafka: Kafka, writer: TransactionalWriter) -> None:
    kafka.refuses = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
    with pytest.raises(TransactionFailedError, match="too large"):
        write(writer)
    assert kafka.calls[-1] == "abort"


def test_a_commit_without_an_answer_is_not_asked_again(kafka: Kafka, writer: TransactionalWriter) -> None:
    kafka.fails["commit"] = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
    with pytest.raises(TransactionFailedError, match="no answer"):
        write(writer)
    assert kafka.calls.count("commit") == 1
    assert "abort" not in kafka.calls


@pytest.mark.parametrize("call", ["flush", "commit"])
def test_nothing_is_written_after_a_failure_before_the_ids_are_taken_over_again(
    kafka: Kafka, writer: TransactionalWriter, call: str
) -> None:
    kafka.fails[call] = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    with pytest.raises(TransactionFailedError):
        write(writer)
    kafka.calls.clear()
    with pytest.raises(TransactionFailedError):
        write(writer)
    assert kafka.calls == []
    writer.take_over([2])
    write(writer)
    assert kafka.calls[0] == "init isotherm-commands-2"


def test_a_late_end_of_a_transaction_replaces_the_producer(kafka: Kafka, writer: TransactionalWriter) -> None:
    kafka.takes_s["commit"] = 0.4
    write(writer)
    assert kafka.calls[-1] == "init isotherm-commands-2"
    kafka.takes_s.clear()
    kafka.calls.clear()
    write(writer)
    assert kafka.calls[0] == "begin"
    assert kafka.calls[-1] == "commit"


def test_a_producer_that_cannot_be_replaced_fails_only_the_next_transaction(
    kafka: Kafka, writer: TransactionalWriter
) -> None:
    kafka.takes_s["commit"] = 0.4
    kafka.fails["init isotherm-commands-2"] = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    write(writer)
    with pytest.raises(TransactionFailedError):
        write(writer)


def test_the_reason_is_found_in_a_system_error(kafka: Kafka, writer: TransactionalWriter) -> None:
    failure = SystemError("returned a result with an exception set")
    failure.__cause__ = KafkaException(KafkaError(KafkaError._FATAL, "the cause"))
    kafka.fails["flush"] = failure
    with pytest.raises(TransactionFailedError, match="the cause"):
        write(writer)
