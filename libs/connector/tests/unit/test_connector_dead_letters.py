"""Dead-letter records: their headers, their topic, and that each of them is acknowledged."""

from __future__ import annotations

import traceback
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from isotherm.connector.errors.dead_letters import (
    MAX_MESSAGE_BYTES,
    PREFIX,
    DeadLetterQueue,
    DeadLetterRecord,
    DeadLettersUnavailableError,
    dead_letter_headers,
    ensure_topic,
    producer_overrides,
)


def refused() -> ValueError:
    try:
        raise ValueError("cut short")
    except ValueError as error:
        return error


def test_original_headers_come_first_and_connects_follow() -> None:
    headers = dead_letter_headers(
        refused(),
        stage="VALUE_CONVERTER",
        connector="c",
        class_name="isotherm.Sink",
        task=2,
        topic="t",
        partition=3,
        offset=44,
        original=[("mqtt.topic", b"a/b"), ("none", None), ("mqtt.topic", b"again")],
    )
    assert headers[:3] == [("mqtt.topic", b"a/b"), ("none", None), ("mqtt.topic", b"again")]
    ours = dict(headers[3:])
    assert ours[f"{PREFIX}topic"] == b"t"
    assert ours[f"{PREFIX}partition"] == b"3"
    assert ours[f"{PREFIX}offset"] == b"44"
    assert ours[f"{PREFIX}connector.name"] == b"c"
    assert ours[f"{PREFIX}task.id"] == b"2"
    assert ours[f"{PREFIX}stage"] == b"VALUE_CONVERTER"
    assert ours[f"{PREFIX}class.name"] == b"isotherm.Sink"
    assert ours[f"{PREFIX}exception.class.name"] == b"builtins.ValueError"
    assert ours[f"{PREFIX}exception.message"] == b"cut short"
    assert "raise ValueError" in str(ours[f"{PREFIX}exception.stacktrace"])


def test_what_was_never_in_a_topic_has_no_place_in_one() -> None:
    names = [name for name, _ in dead_letter_headers(refused(), stage="TASK_PUT", connector="c", class_name="k")]
    assert f"{PREFIX}topic" not in names
    assert f"{PREFIX}offset" not in names


def test_a_replayed_dead_letter_gets_the_new_reason_only() -> None:
    first = dead_letter_headers(refused(), stage="TASK_PUT", connector="first", class_name="k", original=[("h", b"1")])
    second = dead_letter_headers(refused(), stage="TASK_PUT", connector="second", class_name="k", original=first)
    assert [value for name, value in second if name == f"{PREFIX}connector.name"] == [b"second"]
    assert second[0] == ("h", b"1")


def test_the_trace_is_pythons_and_a_task_without_number_is_the_first() -> None:
    error = refused()
    headers = dict(dead_letter_headers(error, stage="TASK_PUT", connector="c", class_name="k"))
    trace = "".join(traceback.format_exception(error))
    assert (headers[f"{PREFIX}exception.stacktrace"], headers[f"{PREFIX}task.id"]) == (trace.encode(), b"0")


def test_texts_are_bounded() -> None:
    headers = dict(dead_letter_headers(ValueError("x" * 100_000), stage="TASK_PUT", connector="c", class_name="k"))
    assert len(headers[f"{PREFIX}exception.message"] or b"") == 4_000
    assert len(headers[f"{PREFIX}exception.stacktrace"] or b"") <= 16_000


class Broker:
    """An admin client and a producer; records are reported one a poll, with these errors by their value."""

    def __init__(self, refuses: int | None = None, errors: dict[bytes, int] | None = None) -> None:
        self.refuses, self.errors = refuses, errors or {}
        self.topics: list[Any] = []
        self.produced: list[tuple[str, dict[str, Any]]] = []
        self.raises: list[BaseException] = []
        self.polls = 0
        self._unreported: list[dict[str, Any]] = []

    def create_topics(self, topics: list[Any]) -> dict[str, Any]:
        self.topics += topics

        def result() -> None:
            if self.refuses is not None:
                raise KafkaException(KafkaError(self.refuses))

        return {topics[0].topic: SimpleNamespace(result=result)}

    def produce(self, topic: str, **record: Any) -> None:
        if self.raises:
            raise self.raises.pop(0)
        self.produced.append((topic, record))
        self._unreported.append(record)

    def poll(self, timeout_s: float) -> None:
        assert timeout_s <= 0.1
        self.polls += 1
        if self._unreported:
            record = self._unreported.pop(0)
            code = self.errors.get(record["value"])
            record["on_delivery"](None if code is None else KafkaError(code, f"error {code}"), None)
        else:
            assert len(self.produced) < 3, "it waits though every record is reported"

    def send(self, *values: bytes) -> None:
        queue = DeadLetterQueue(cast(Producer, self), "dlq")
        queue.send([DeadLetterRecord(b"k", value, [("h", b"1")], 5) for value in values])


def test_the_topic_has_one_partition_and_keeps_everything() -> None:
    broker = Broker()
    assert ensure_topic(cast(Any, broker), "dlq") is True
    (topic,) = broker.topics
    assert (topic.topic, topic.num_partitions, topic.replication_factor) == ("dlq", 1, -1)
    size = str(MAX_MESSAGE_BYTES)
    assert topic.config == {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": size}
    assert producer_overrides() == {"message_max_bytes": MAX_MESSAGE_BYTES}


def test_a_topic_that_exists_is_fine_and_a_refusal_is_not() -> None:
    assert ensure_topic(cast(Any, Broker(KafkaError.TOPIC_ALREADY_EXISTS)), "dlq") is False
    with pytest.raises(KafkaException):
        ensure_topic(cast(Any, Broker(KafkaError.TOPIC_AUTHORIZATION_FAILED)), "dlq")


def test_every_record_is_acknowledged_before_the_task_goes_on() -> None:
    broker = Broker()
    broker.send()
    assert broker.produced == []
    broker.raises = [BufferError()]
    broker.send(b"1", b"2", b"3")
    assert [topic for topic, _ in broker.produced] == ["dlq"] * 3
    _, first = broker.produced[0]
    del first["on_delivery"]
    assert first == {"key": b"k", "value": b"1", "headers": [("h", b"1")], "timestamp": 5}
    assert broker._unreported == []
    assert broker.polls == 4, "also while the client's queue is full"
    assert DeadLetterRecord(None, None, []).timestamp_ms == 0


@pytest.mark.parametrize("failing", [b"1", b"2", b"3"])
def test_one_record_without_acknowledgement_fails_them_all(failing: bytes) -> None:
    code = KafkaError._MSG_TIMED_OUT
    broker = Broker(errors={b"3": KafkaError.INVALID_RECORD, failing: code})
    with pytest.raises(DeadLettersUnavailableError, match=f"dlq: error {code}"):
        broker.send(b"1", b"2", b"3")
    assert len(broker.produced) == 3


def test_a_record_that_the_client_does_not_take_fails_them_all() -> None:
    broker = Broker()
    broker.raises = [KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))]
    with pytest.raises(DeadLettersUnavailableError, match="dlq"):
        broker.send(b"1")
