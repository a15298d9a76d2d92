"""The transactional writer and librdkafka's own mock broker, which answers one request with an error."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from isotherm.mqtt_proxy.delivery.transactional_writer import (
    RETRY_BACKOFF_MS,
    FencedError,
    TransactionalWriter,
    WriteResult,
)
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.servicekit.kafka.clients import PRODUCER_DEFAULTS
from isotherm.servicekit.lifecycle import Stop

PRODUCE, ADD_PARTITIONS, END_TXN = 0, 24, 26
RECORDS = 200
"""Enough records for several delivery reports after the failed one."""


def _librdkafka() -> ctypes.CDLL:
    spec = importlib.util.find_spec("confluent_kafka")
    assert spec is not None
    assert spec.origin is not None
    (found,) = (Path(spec.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(found))
    library.rd_kafka_handle_mock_cluster.argtypes = [ctypes.c_void_p]
    library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


LIBRDKAFKA = _librdkafka()


class Broker:
    """The first producer has it in its process; the others are its clients, too."""

    def __init__(self) -> None:
        self._first: Producer | None = None
        self.servers = "127.0.0.1:1"
        self.producers = 0

    def make(self) -> Producer:
        self.producers += 1
        mock = {"test.mock.num.brokers": 1} if self._first is None else {}
        given: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "transactional.id": "writer",
            "log_level": 0,
            **mock,
        }
        backoff = {"retry.backoff.ms": RETRY_BACKOFF_MS, "retry.backoff.max.ms": RETRY_BACKOFF_MS}
        producer = Producer({**PRODUCER_DEFAULTS, **backoff, **given})
        if self._first is None:
            self._first = producer
            self.servers = LIBRDKAFKA.rd_kafka_mock_cluster_bootstraps(self._cluster()).decode()
        return producer

    def _cluster(self) -> ctypes.c_void_p:
        # confluent_kafka's Handle: the object's head, two words, and then its rd_kafka_t*.
        handle = ctypes.c_void_p.from_address(id(self._first) + 2 * ctypes.sizeof(ctypes.c_void_p)).value
        return ctypes.c_void_p(LIBRDKAFKA.rd_kafka_handle_mock_cluster(handle))

    def refuse_next(self, request: int, error: int) -> None:
        """Have the broker answer the next request of this kind with `error`."""
        LIBRDKAFKA.rd_kafka_mock_push_request_errors(
            self._cluster(), ctypes.c_int16(request), ctypes.c_size_t(1), ctypes.c_int(error)
        )


class World:
    """A writer that is open."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.asked: list[tuple[str, int, int]] = []
        self.writer = TransactionalWriter(
            self.broker.make,
            timeout_s=60,
            is_committed=self._is_committed,
            on_replacing=lambda _reason: None,
            on_replaced=lambda: None,
        )
        self.writer.open(Stop())
        assert self.write(5) is WriteResult.COMMITTED

    def _is_committed(self, topic: str, partition: int, offset: int) -> bool:
        self.asked.append((topic, partition, offset))
        return True

    def write(self, records: int = RECORDS) -> WriteResult:
        return self.writer.write([ProducerRecord("t", "k", b"%d" % number, []) for number in range(records)])


@pytest.mark.parametrize(
    ("request_kind", "error"),
    [
        (PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (PRODUCE, KafkaError.INVALID_TXN_STATE),
        (ADD_PARTITIONS, KafkaError.INVALID_TXN_STATE),
        (ADD_PARTITIONS, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
async def test_an_error_before_the_commit_aborts_and_another_producer_goes_on(request_kind: int, error: int) -> None:
    world = World()
    world.broker.refuse_next(request_kind, error)
    assert world.write() is WriteResult.ABORTED
    assert world.broker.producers == 2
    assert world.write() is WriteResult.COMMITTED


@pytest.mark.parametrize("error", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD])
async def test_a_record_at_fault_does_not_fail_the_next_transaction_of_its_partition(error: int) -> None:
    world = World()
    world.broker.refuse_next(PRODUCE, error)
    assert world.write() is WriteResult.ABORTED_RECORD_AT_FAULT
    assert world.writer.fault == KafkaError(error).str()
    assert world.write() is WriteResult.COMMITTED
    assert world.writer.fault == ""


@pytest.mark.parametrize("error", [KafkaError.INVALID_TXN_STATE, KafkaError.INVALID_PRODUCER_ID_MAPPING])
async def test_a_commit_that_fails_is_asked_about(error: int) -> None:
    world = World()
    world.broker.refuse_next(END_TXN, error)
    assert world.write(3) is WriteResult.COMMITTED
    assert len(world.asked) == 1
    assert world.write(3) is WriteResult.COMMITTED


@pytest.mark.parametrize("request_kind", [PRODUCE, ADD_PARTITIONS, END_TXN])
async def test_a_fenced_writer_says_so(request_kind: int) -> None:
    world = World()
    world.broker.refuse_next(request_kind, KafkaError.INVALID_PRODUCER_EPOCH)
    with pytest.raises(FencedError):
        world.write()
