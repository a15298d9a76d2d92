"""The task asks for committed offsets until Kafka answers."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isotherm.persisters.consuming import offsets
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

PLACES = [TopicPartition("topic", 0)]


class Answers:
    """A consumer's `committed` that fails with these errors, one after the other, and then answers."""

    def __init__(self, *errors: int) -> None:
        self._errors = list(errors)
        self.asked = 0

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """The partitions."""
        assert timeout > 0
        self.asked += 1
        if self._errors:
            raise KafkaException(KafkaError(self._errors.pop(0)))
        return partitions


def asked(answers: Answers, stop: Stop) -> Any:
    return offsets.committed(cast(Consumer, answers), PLACES, Backoff(base_ms=1.0, cap_ms=1.0), Health(), stop)


def test_it_is_asked_again_while_the_coordinator_moves() -> None:
    answers = Answers(KafkaError.NOT_COORDINATOR, KafkaError._TIMED_OUT)
    assert asked(answers, Stop()) == PLACES
    assert answers.asked == 3


def test_a_refusal_is_an_error_and_not_an_empty_account() -> None:
    with pytest.raises(KafkaException):
        asked(Answers(KafkaError.GROUP_AUTHORIZATION_FAILED), Stop())


def test_a_stop_ends_the_asking() -> None:
    stop = Stop()
    stop.set()
    assert asked(Answers(KafkaError._TIMED_OUT), stop) == []
