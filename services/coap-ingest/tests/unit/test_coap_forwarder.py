"""The forwarder when Kafka refuses records or a producer breaks, under each error policy."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from isotherm import payloads
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.connectors.plan import compile_plan
from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue
from isotherm.coap_ingest.ingest.forwarder import Forwarder, RetriesExhaustedError
from isotherm.coap_ingest.ingest.outlets import Outlet
from isotherm.coap_ingest.ingest.queued_notification import QueuedNotification
from isotherm.coap_ingest.ingest.routes import Encode
from isotherm.coap_ingest.metrics import Metrics
from isotherm.connector.config.files import parse
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.tracing.ingest_traces import IngestTraces
from isotherm.servicekit.tracing.root_sampling import RootSampling
from isotherm.servicekit.tracing.settings import TracingSettings
from isotherm.servicekit.tracing.spans import open_tracer

CONNECTOR = """\
name = c
connector.class = coap-source
connect.coap.uri = coap://a
connect.coap.kcql = INSERT INTO thermostat.data SELECT t AS value FROM r
connect.coap.retry.interval = 1
"""


class Refusing:
    """A producer whose deliveries fail `times` times with an error, by default a transient one."""

    def __init__(self, times: int, code: int = KafkaError.TOPIC_AUTHORIZATION_FAILED) -> None:
        self.left, self.code = times, code
        self.headers: list[list[tuple[str, Any]]] = []
        self.attempts = 0
        self.written: list[tuple[str, bytes]] = []
        self._reports: list[Callable[[], None]] = []

    def produce(self, topic: str, value: bytes, on_delivery: Callable[[Any, Any], None], **more: Any) -> None:
        self.attempts += 1
        self.left -= 1
        if self.left < 0:
            self.written.append((topic, value))
            self.headers.append(more["headers"])
        error = KafkaError(self.code) if self.left >= 0 else None
        self._reports.append(lambda: on_delivery(error, None))

    def poll(self, _timeout: float) -> int:
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return len(reports)


class Breaking:
    """A producer that breaks after some records, as librdkafka does, and is replaced after some refusals.

    It may report what it did not store `backwards`: librdkafka promises no order.
    """

    def __init__(self, breaks_after: Sequence[int], refusals: int, *, backwards: bool) -> None:
        self.written: list[bytes] = []
        self._backwards = backwards
        self._breaks_after = list(breaks_after)
        self._refusals = self._refusals_left = refusals
        self._taken = 0
        self._is_broken = False
        self._reports: list[Callable[[], None]] = []
        self._failures: list[Callable[[], None]] = []

    def produce(self, _topic: str, value: bytes, on_delivery: Callable[[Any, Any], None], **_: object) -> None:
        if self._is_broken and self._refusals_left:
            self._refusals_left -= 1
            raise KafkaException(KafkaError(KafkaError._FATAL))
        if self._is_broken:
            self._is_broken, self._refusals_left, self._taken = False, self._refusals, 0
        self._taken += 1
        if self._breaks_after and self._taken > self._breaks_after[0]:
            # The next call of produce meets the error before the reports arrive.
            self._is_broken = self._taken > self._breaks_after[0] + 1
            self._failures.append(lambda: on_delivery(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER), None))
        else:
            self.written.append(value)
            self._reports.append(lambda: on_delivery(None, None))

    def poll(self, _timeout: float) -> int:
        reports = [*self._reports, *(reversed(self._failures) if self._backwards else self._failures)]
        self._reports, self._failures = [], []
        if self._breaks_after and self._taken > self._breaks_after[0]:
            self._is_broken = True
            self._breaks_after.pop(0)
        for report in reports:
            report()
        return len(reports)


@given(st.integers(1, 60), st.lists(st.integers(0, 20), max_size=3), st.integers(1, 3), st.booleans())
@settings(deadline=None, max_examples=50)
def test_records_that_broken_producers_did_not_store_are_stored_in_order_by_their_successors(
    count: int, breaks_after: list[int], refusals: int, backwards: bool
) -> None:
    async def run() -> list[bytes]:
        kafka = Breaking(breaks_after, refusals, backwards=backwards)
        made = forwarder("", cast("Refusing", kafka), b'{"t": 0, "unit": "Cel"}')
        for number in range(1, count):
            offer(made, f'{{"t": {number}, "unit": "Cel"}}'.encode())
        running = asyncio.create_task(made.run())
        await asyncio.wait_for(made.settled(), 60)
        assert not running.done()
        running.cancel()
        return kafka.written

    with patch("isotherm.coap_ingest.ingest.forwarder.Backoff.next_ms", return_value=0.0):
        assert asyncio.run(run()) == [f"{number}.0".encode() for number in range(count)]


async def test_a_delayed_reading_keeps_its_arrival_time() -> None:
    kafka = Refusing(times=20)
    made = forwarder("", kafka, encode=lambda record: str((record["ingest_time"], record["event_time"])).encode())
    running = asyncio.create_task(made.run())
    await asyncio.wait_for(made.settled(), 60)
    running.cancel()
    assert kafka.attempts == 21
    assert kafka.written == [("thermostat.data", b"(1, 1)")]


async def test_notifications_of_one_millisecond_have_readings_of_different_identities() -> None:
    kafka = Refusing(times=0)
    made = forwarder("", kafka, encode=lambda record: str((record["event_time"], record["sequence"])).encode())
    for payload in (b'[{"t": 1, "unit": "Cel"}, {"t": 2, "unit": "Cel"}]', b'{"t": 1, "unit": "Cel"}'):
        offer(made, payload)
    running = asyncio.create_task(made.run())
    await asyncio.wait_for(made.settled(), 60)
    running.cancel()
    assert [value for _, value in kafka.written] == [b"(1, 0)", b"(1, 1)", b"(1, 2)", b"(1, 3)"]


async def test_records_that_wait_for_a_retry_are_bounded() -> None:
    kafka = Refusing(times=1_000_000)
    made = forwarder("connect.coap.error.policy = NOOP\n", kafka, limit=30)
    made._producer.max_outstanding = 5
    for _ in range(29):
        offer(made, b'{"t": 1, "unit": "Cel"}')
    running = asyncio.create_task(made.run())
    while kafka.attempts < 50:  # noqa: ASYNC110  # a producer has no event to wait for
        await asyncio.sleep(0.001)
    # Refused records keep their notifications in the queue, whose limit applies to the sockets.
    assert made._queue.reserved >= 20
    assert made.unsettled == 30
    running.cancel()


async def test_the_loop_gets_its_turn_between_groups_of_notifications() -> None:
    kafka = Refusing(times=0)
    made = forwarder("", kafka, limit=1_000)
    for _ in range(299):
        offer(made, b'{"t": 1, "unit": "Cel"}')
    running = asyncio.create_task(made.run())
    seen = [0]
    while seen[-1] < 300:
        await asyncio.sleep(0)
        seen.append(kafka.attempts)
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) == 64
    running.cancel()


def offer(made: Forwarder, payload: bytes) -> None:
    """Put one more notification of the same resource into the queue."""
    first = made._queue._items[0][0]
    assert made._queue.reserve(len(payload))
    said = replace(first.notification, payload=payload)
    made._queue.put(QueuedNotification("c", said), len(payload), reserved=len(payload))


def forwarder(
    policy: str,
    kafka: Refusing,
    payload: bytes = b'{"t": 1, "unit": "Cel"}',
    limit: int = 100,
    encode: Encode = lambda record: str(record["value"]).encode(),
    traces: IngestTraces | None = None,
) -> Forwarder:
    made = compile_plan(
        parse(CONNECTOR + policy), units={"t": "Cel"}, limits=payloads.Limits(), dead_letter_topic="dlq"
    )
    route = made.rules[0].route_for_server(made.observe.servers[0])
    queue: BoundedQueue[QueuedNotification] = BoundedQueue(limit, 10_000)
    metrics = Metrics(CollectorRegistry())
    outlets = {("c", route.resource.uri): [Outlet(route, encode, metrics.count_filtered)]}
    producer = LoopProducer(cast("Producer", kafka))
    made_forwarder = Forwarder(queue, producer, outlets, {"c": "dlq"}, metrics, {"c": made.errors}, traces=traces)
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
    queue.reserve(len(payload))
    queue.put(QueuedNotification("c", said), len(payload), reserved=len(payload))
    return made_forwarder


async def test_retry_ends_the_service_after_its_attempts() -> None:
    kafka = Refusing(times=100)
    made = forwarder("connect.coap.error.policy = RETRY\nconnect.coap.max.retries = 3\n", kafka)
    with pytest.raises(RetriesExhaustedError, match=r"thermostat\.data: refused 4 times"):
        await asyncio.wait_for(made.run(), 60)
    assert kafka.attempts == 4


@pytest.mark.parametrize("policy", ["NOOP", "THROW"])
async def test_other_policies_retry_until_kafka_accepts_the_record(policy: str) -> None:
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
async def test_an_invalid_payload_is_a_dead_letter_under_every_policy_and_throw_halts(policy: str, halts: bool) -> None:
    kafka = Refusing(times=0)
    made = forwarder(policy + "\n", kafka, b"no reading")
    running = asyncio.create_task(made.run())
    await asyncio.wait_for(made.settled(), 60)
    running.cancel()
    assert kafka.written == [("dlq", b"no reading")]
    assert made.halted.done() == halts


TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE
GOOD, BAD = b'{"t": 1, "unit": "Cel"}', b"no reading"


@pytest.mark.parametrize(
    ("payload", "refused", "dead_letter", "names", "topic"),
    [
        (GOOD, 0, None, {"coap notification", "send thermostat.data"}, "thermostat.data"),
        (BAD, 0, "payload", {"coap notification", "send dlq"}, "dlq"),
        (GOOD, 1, "refused", {"coap notification", "send thermostat.data", "send dlq"}, "dlq"),
        (BAD, 1, "payload", {"coap notification", "send dlq"}, None),
    ],
)
async def test_the_trace_of_a_notification_ends_however_it_ends(
    payload: bytes, refused: int, dead_letter: str | None, names: set[str], topic: str | None
) -> None:
    memory, kafka = InMemorySpanExporter(), Refusing(refused, TOO_LARGE)
    settings = TracingSettings(endpoint="http://127.0.0.1:4318/v1/traces")
    tracer = open_tracer(settings, "x", CollectorRegistry(), instance="x", exporter=memory)
    traces = IngestTraces(tracer, RootSampling(1.0), 100, lambda: 0.0)
    made = forwarder("", kafka, payload, traces=traces)
    running = asyncio.create_task(made.run())
    await asyncio.wait_for(made.settled(), 60)
    running.cancel()
    traces.close()
    spans = {span.name: span for span in memory.get_finished_spans()}
    assert set(spans) == names
    whole = spans["coap notification"]
    assert whole.start_time == 1_000_000
    reason = (whole.attributes or {}).get("isotherm.dead_letter.reason")
    assert (None if reason is None else str(reason).partition(":")[0]) == dead_letter
    assert bool(whole.status.description) == (topic is None)
    assert [name for name, _ in kafka.written] == ([] if topic is None else [topic])
    assert all(dict(headers)["traceparent"] for headers in kafka.headers)
