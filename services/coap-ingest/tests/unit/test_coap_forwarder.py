"""What the forwarder does when Kafka refuses a record, by the connector's error policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Producer
from prometheus_client import CollectorRegistry

import payloads
from coap_ingest.connector_class import plan
from coap_ingest.forwarder import Forwarder, Outlet, RetriesExhaustedError
from coap_ingest.intake import Intake
from coap_ingest.keeper import Arrived
from coap_ingest.metrics import Metrics
from coap_ingest.notification import Notification
from connector.config import parse
from servicekit.delivery import LoopProducer

CONNECTOR = """\
name = c
connector.class = coap-source
connect.coap.uri = coap://a
connect.coap.kcql = INSERT INTO thermostat.data SELECT t AS value FROM r
connect.coap.retry.interval = 1
"""


class Refusing:
    """A producer whose deliveries fail so many times, for a reason that may pass."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.attempts = 0
        self.written: list[tuple[str, bytes]] = []
        self._reports: list[Callable[[], None]] = []

    def produce(self, topic: str, value: bytes, on_delivery: Callable[[Any, Any], None], **_: object) -> None:
        self.attempts += 1
        self.left -= 1
        if self.left < 0:
            self.written.append((topic, value))
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED) if self.left >= 0 else None
        self._reports.append(lambda: on_delivery(error, None))

    def poll(self, _timeout: float) -> int:
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return len(reports)


def forwarder(policy: str, kafka: Refusing, payload: bytes = b'{"t": 1, "unit": "Cel"}') -> Forwarder:
    made = plan(parse(CONNECTOR + policy), units={"t": "Cel"}, limits=payloads.Limits(), dead_letter_topic="letters")
    route = made.rules[0].named(made.servers[0])
    intake: Intake[Arrived] = Intake(10, 10_000)
    outlets = {("c", route.resource.uri): [Outlet(route, lambda record: str(record["value"]).encode())]}
    producer = LoopProducer(cast("Producer", kafka))
    made_forwarder = Forwarder(
        intake, producer, outlets, {"c": "letters"}, Metrics(CollectorRegistry()), {"c": made.errors}
    )
    said = Notification(
        resource=route.resource,
        arrived_ms=1,
        rtt_ms=0,
        code="2.05",
        raw_code=69,
        message_type="NON",
        message_id=1,
        token=b"t",
        destination="",
        payload=payload,
        content_format=50,
    )
    intake.reserve(len(payload))
    intake.put(Arrived("c", said), len(payload), reserved=len(payload))
    return made_forwarder


async def test_retry_ends_the_service_after_its_attempts() -> None:
    kafka = Refusing(times=100)
    made = forwarder("connect.coap.error.policy = RETRY\nconnect.coap.max.retries = 3\n", kafka)
    with pytest.raises(RetriesExhaustedError, match=r"thermostat\.data: refused 4 times"):
        await asyncio.wait_for(made.run(), 60)
    assert kafka.attempts == 4


@pytest.mark.parametrize("policy", ["NOOP", "THROW"])
async def test_other_policies_try_until_kafka_takes_it(policy: str) -> None:
    kafka = Refusing(times=30)
    made = forwarder(f"connect.coap.error.policy = {policy}\nconnect.coap.max.retries = 3\n", kafka)
    running = asyncio.create_task(made.run())
    await asyncio.wait_for(made.settled(), 60)
    running.cancel()
    assert kafka.written == [("thermostat.data", b"1.0")]
    assert not made.halted.done()


@pytest.mark.parametrize(
    ("policy", "halts"),
    [
        ("connect.coap.error.policy = NOOP", False),
        ("connect.coap.error.policy = RETRY", False),
        ("connect.coap.error.policy = THROW", True),
        ("connect.coap.error.policy = THROW\nerrors.tolerance = all", False),
    ],
)
async def test_a_payload_that_cannot_be_used_is_a_dead_letter_under_every_policy_and_throw_asks_for_the_end(
    policy: str, halts: bool
) -> None:
    kafka = Refusing(times=0)
    made = forwarder(policy + "\n", kafka, b"no reading")
    running = asyncio.create_task(made.run())
    await asyncio.wait_for(made.settled(), 60)
    running.cancel()
    assert kafka.written == [("letters", b"no reading")]
    assert made.halted.done() == halts
