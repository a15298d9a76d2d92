"""Sends the records of a small batch from the driver, acknowledged and partitioned as Spark's Kafka sink does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, Producer

from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.servicekit.kafka.errors import error_of

_FLUSH_TIMEOUT_S = 15.0
_FULL_QUEUE_WAIT_S = 0.1
_REFUSALS = frozenset(
    (
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
    )
)
"""Errors that the same record would cause again."""


OutputRecord = tuple[str, bytes, bytes] | tuple[str, bytes, bytes, Mapping[str, bytes]]


class OutputRefusedError(Exception):
    """Kafka refuses a record, and would refuse it again."""


class OutputProducer:
    """Sends records and returns when Kafka has stored them all. For one thread."""

    def __init__(self, make_producer: Callable[[], Producer]) -> None:
        """`make_producer` is called at the first record, and again after a failure."""
        self._make_producer = make_producer
        self._producer: Producer | None = None

    def send(self, records: Iterable[OutputRecord], headers: Mapping[str, bytes] | None = None) -> None:
        """Send records, each a topic, a key and a value, and perhaps headers of its own; all with `headers`.

        Raises BrokerError, and OutputRefusedError.
        """
        given: list[tuple[str, str | bytes | None]] = list((headers or {}).items())
        failures: list[KafkaError] = []

        def report(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        # After a failure the next call begins with another producer: this one may still hold records, or be fenced.
        producer, self._producer = self._producer or self._make_producer(), None
        try:
            for topic, key, value, *own in records:
                all_headers = [*given, *own[0].items()] if own else given
                while not failures:
                    try:
                        producer.produce(topic, value=value, key=key, headers=all_headers, on_delivery=report)
                        break
                    except BufferError:
                        producer.poll(_FULL_QUEUE_WAIT_S)
            left = producer.flush(_FLUSH_TIMEOUT_S)
        except KafkaException as failure:
            failures.append(error_of(failure) or KafkaError(KafkaError.UNKNOWN))
            left = 0
        if failures or left:
            producer.purge()
            raise _failure_of(failures)
        self._producer = producer


def _failure_of(failures: list[KafkaError]) -> Exception:
    refusals = [failure for failure in failures if failure.code() in _REFUSALS]
    if refusals:
        return OutputRefusedError(f"Kafka refuses a record of the output: {refusals[0].str()}")
    reason = failures[0].str() if failures else f"no answer within {_FLUSH_TIMEOUT_S:.0f} s"
    return BrokerError(f"Kafka did not store the windows: {reason}")
