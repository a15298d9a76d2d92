"""When the bridge acknowledges to a real Mosquitto. The test decides when Kafka reports a delivery."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from mosquitto_broker import PASSWORD, USER, Broker
from mqtt_world import WAIT_S, wait_until

from isotherm.mqtt_proxy.bridge.subscriber import Bridge
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sections.bridge import BridgeSettings
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

pytest_plugins = ("mqtt_fixtures",)
pytestmark = pytest.mark.integration

WINDOW = 20


class OneRecordTranslator:
    """A message is one record, which takes as many bytes as the test says."""

    def __init__(self, record_bytes: int = 0) -> None:
        self._bytes = record_bytes

    def translate(self, publish: Publish, arrival: IngestContext) -> TranslatedPublish:
        record = ProducerRecord("t", arrival.client_id, publish.payload, [])
        return TranslatedPublish([record], [("t", 1)], bytes=self._bytes)


class HeldReports:
    """A producer whose reports come when the test says so."""

    outstanding, max_outstanding = 0, 1_000

    def __init__(self) -> None:
        self.held: list[tuple[bytes, Callable[[KafkaError | None], None]]] = []
        self.stored: list[bytes] = []

    async def room(self) -> None:
        """The producer always accepts records."""

    def produce(self, _topic: str, *, value: bytes, on_delivery: Callable[[KafkaError | None], None], **_: Any) -> None:
        self.held.append((value, on_delivery))

    def report(self, error: KafkaError | None = None) -> None:
        """Report the outcome of all records."""
        held, self.held = self.held, []
        # In reverse order: acknowledgements keep their order nevertheless.
        for value, on_delivery in reversed(held):
            if error is None:
                self.stored.append(value)
            on_delivery(error)


async def until(done: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, "it is so", done)


def bridge_to(
    mosquitto: Broker,
    kafka: HeldReports,
    metrics: Metrics,
    health: Health,
    translator: OneRecordTranslator,
    **more: Any,
) -> Bridge:
    return Bridge(
        BridgeSettings(
            port=mosquitto.tls_port,
            cafile=str(mosquitto.cafile),
            username=USER,
            password=cast(Any, PASSWORD),
            receive_maximum=WINDOW,
        ),
        client_id="bridge-0",
        filters=["devices/+/temperature"],
        tls=ssl.create_default_context(cafile=str(mosquitto.cafile)),
        translator=cast(Any, translator),
        producer=cast(Any, kafka),
        metrics=metrics,
        health=health,
        **more,
    )


async def test_no_more_bytes_wait_for_kafka_than_may_and_the_order_stays(mosquitto: Broker) -> None:
    kafka, metrics, stop = HeldReports(), Metrics(), Stop()
    large = OneRecordTranslator(record_bytes=1_000)
    bridge = bridge_to(mosquitto, kafka, metrics, Health(), large, max_outstanding_bytes=5_000)
    running = asyncio.create_task(bridge.run(stop))
    await until(lambda: metrics.connection_attempts["accepted"] == 1)
    numbers = [str(number) for number in range(50)]
    await asyncio.to_thread(mosquitto.publish, "d", numbers)
    await until(lambda: metrics.messages_received[1] == WINDOW)
    assert [value for value, _ in kafka.held] == [number.encode() for number in numbers[:5]]
    assert metrics.gauges["outstanding_bytes"]() == 5_000
    produced: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        while metrics.acknowledged[1] < len(numbers):
            assert len(kafka.held) <= 5
            produced += [value for value, _ in kafka.held]
            kafka.report()
            await asyncio.sleep(0.01)
    assert produced == [number.encode() for number in numbers]
    assert metrics.gauges["outstanding_bytes"]() == 0
    stop.set()
    await running


async def test_nothing_is_acknowledged_that_kafka_has_not(mosquitto: Broker) -> None:
    kafka, metrics, health, stop = HeldReports(), Metrics(), Health(), Stop()
    bridge = bridge_to(mosquitto, kafka, metrics, health, OneRecordTranslator())
    running = asyncio.create_task(bridge.run(stop))
    await until(lambda: metrics.connection_attempts["accepted"] == 1)
    numbers = [str(number) for number in range(50)]
    await asyncio.to_thread(mosquitto.publish, "d", numbers)

    await until(lambda: len(kafka.held) == WINDOW)
    first = [value for value, _ in kafka.held]
    assert first == [number.encode() for number in numbers[:WINDOW]]
    assert metrics.messages_received[1] == WINDOW, "the broker keeps the rest"
    assert metrics.acknowledged[1] == 0

    # What Kafka refuses is not acknowledged; it comes again, in its order, on a new connection.
    kafka.report(KafkaError(KafkaError._MSG_TIMED_OUT))
    await until(lambda: metrics.connection_attempts["accepted"] == 2 and len(kafka.held) == WINDOW)
    assert [value for value, _ in kafka.held] == first
    assert metrics.acknowledged[1] == 0

    # A report that comes when the connection is gone acknowledges nothing, on the next connection neither.
    await asyncio.to_thread(mosquitto.save)
    mosquitto.kill()
    await until(lambda: "broker" in health.problems())
    kafka.report()
    assert metrics.acknowledged[1] == 0
    await asyncio.to_thread(mosquitto.start)
    await until(lambda: len(kafka.held) == WINDOW)
    assert [value for value, _ in kafka.held] == first

    async with asyncio.timeout(WAIT_S):
        while metrics.acknowledged[1] < len(numbers):
            kafka.report()
            await asyncio.sleep(0.01)
    assert set(kafka.stored) == {number.encode() for number in numbers}
    assert health.problems() == {"start": "starting"}
    stop.set()
    await running
    assert metrics.connections_closed == {"not stored": 1, "connection lost": 1, "stopped": 1}
