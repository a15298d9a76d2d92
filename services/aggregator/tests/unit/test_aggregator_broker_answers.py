"""How long the driver waits for an answer of Kafka, with clients that never answer."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from isotherm.aggregator.kafka.broker import REQUEST_TIMEOUT_S, Broker, BrokerError
from isotherm.aggregator.recompute import service as recompute
from isotherm.aggregator.recompute.corrections import Span
from isotherm.aggregator.settings import AggregatorSettings


class SilentAdmin:
    """Notes how long it was to wait for an answer that does not come."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def _unanswered(self) -> Future[Any]:
        answer = Future[Any]()
        answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return answer

    def describe_cluster(self, *, request_timeout: float) -> Future[Any]:
        self.timeouts.append(request_timeout)
        return self._unanswered()

    def describe_topics(self, _topics: Any, *, request_timeout: float) -> dict[str, Future[Any]]:
        self.timeouts.append(request_timeout)
        return {"t": self._unanswered()}

    def list_topics(self, *, timeout: float) -> Any:
        self.timeouts.append(timeout)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize("timeout_s", [REQUEST_TIMEOUT_S, 30.0])
def test_every_question_waits_as_long_as_the_owner_says(timeout_s: float) -> None:
    admin = SilentAdmin()
    broker = Broker(cast(AdminClient, admin), cast(Consumer, None), timeout_s)
    by_pattern = AggregatorSettings(checkpoint_dir="c", jars_dir=Path("j"), input_pattern="t")
    questions = (
        broker.cluster_id,
        lambda: broker.topic_ids(["t"]),
        lambda: broker.input_topics(by_pattern),
        lambda: broker.end_offsets(["t"], committed=True),
    )
    for ask in questions:
        with pytest.raises(BrokerError, match="Kafka does not answer"):
            ask()
    assert admin.timeouts == [timeout_s] * len(questions)


def test_recompute_waits_longer_than_the_service_which_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def open_broker(_kafka: Any, request_timeout_s: float) -> Broker:
        waits.append(request_timeout_s)
        raise BrokerError("Kafka does not answer")

    monkeypatch.setattr(recompute, "open_broker", open_broker)
    settings = AggregatorSettings(checkpoint_dir="c", jars_dir=Path("j"))
    with pytest.raises(BrokerError):
        recompute.recompute(settings, Span(0, 1), settled_ms=0, dry_run=True)
    assert waits[0] > REQUEST_TIMEOUT_S
