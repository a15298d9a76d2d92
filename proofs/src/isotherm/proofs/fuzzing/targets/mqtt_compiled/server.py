"""A connection without a socket, and what Kafka gets of it: what is compared with the compiled way and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException

import isotherm.schemas
from isotherm.mqtt_proxy.access.acl import Acl, parse_acl
from isotherm.mqtt_proxy.access.authentication import PublishPermissions
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.transaction_batcher import TransactionBatch, TransactionBatcher
from isotherm.mqtt_proxy.hotpath.plain_ingest import PlainIngest
from isotherm.mqtt_proxy.ingest.inflight_gate import InflightGate
from isotherm.mqtt_proxy.ingest.routes import Router, kcql_routes
from isotherm.mqtt_proxy.ingest.translation import DevicePolicy, IngestContext, Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.protocol.events import Event, Failure, Release
from isotherm.mqtt_proxy.protocol.held_events import HeldEvents
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.protocol.topic_aliases import TopicAliases
from isotherm.mqtt_proxy.server.publish_handler import PublishHandler
from isotherm.mqtt_proxy.sessions.store import Session
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWrite
from isotherm.proofs.fuzzing.target import expect
from isotherm.proofs.fuzzing.targets.mqtt import RULES
from isotherm.proofs.kafka.clients.direct_librdkafka import direct_producer
from isotherm.servicekit.avro import encoder
from isotherm.servicekit.producer.delivery import LoopProducer

NOW_MS = 1_790_000_000_000
CONNECTS = (
    b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c",
    b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c",
)
"""A CONNECT of MQTT 3.1.1, and one of MQTT 5."""
FEED_ALL = -1
"""The step that lets a server receive everything that is left."""
_ROUTES = kcql_routes(
    """
INSERT INTO readings SELECT t AS value, id AS device_id, u AS unit, ts AS event_time, seq AS sequence
    FROM devices/+/temperature;
INSERT INTO plain SELECT * FROM `plain/#`;
INSERT INTO raw.texts SELECT * FROM `raw/#` WITHFORMAT RAW;
INSERT INTO plain SELECT * FROM homes/+/temperature;
INSERT INTO raw.texts SELECT * FROM homes/special/temperature WITHFORMAT RAW
""",
    device_level=None,
    metrics=frozenset({"temperature"}),
)
_ENCODE = encoder(isotherm.schemas.schema("SensorReading", 1), 1)
_ACLS: tuple[Acl | None, ...] = (
    None,
    parse_acl(["topic write devices/+/temperature", "topic write plain/#"]),
    parse_acl(["topic write nothing"]),
)
_ERRORS = (KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._QUEUE_FULL)
_REFUSALS: tuple[Exception | None, ...] = (None, BufferError(), KafkaException(KafkaError(KafkaError._STATE)))
_LAST_ENDS = 64
"""So many transactions end behind the last step, at most."""
_RATE = 3
"""So many publishes may come between two refills, with a rate."""
_NO_RATE = 1_000_000
"""More publishes than an input holds."""
_POLICIES: tuple[DevicePolicy, ...] = ("payload", "topic", "user", "user")


def compare(found: PlainServer, expected: PlainServer) -> None:
    """Raise FindingError where Kafka, the client or the server's counts see something else."""
    for what in ("records", "tried", "answers", "closed", "session", "state"):
        expect(getattr(found, what) == getattr(expected, what), f"other {what}")


def compare_at_end(found: Sequence[PlainServer], expected: PlainServer) -> None:
    """Let Kafka take and store everything, and compare all that is left of it."""
    expected.finish()
    for server in found:
        server.finish()
        compare(server, expected)
        expect(server.counted() == expected.counted(), "other metrics")
        expect(server.is_at_rest or bool(server.closed), "something is still in flight")


class _Producer(LoopProducer):
    """Passes on reports when the script says so, instead of an event loop."""

    def _expect_reports(self) -> None:
        """Do nothing."""


class _Rate:
    """A rate of publishes (`server.publish_rates.PublishRates`) that only the script refills."""

    def __init__(self, resume: Callable[[], None]) -> None:
        self._resume = resume
        self._left = _RATE
        self.is_exceeded = False

    def must_wait(self) -> bool:
        """Return whether the next publish must wait."""
        self.is_exceeded |= self._left <= 0
        return self.is_exceeded

    def count(self, _payload_bytes: int) -> None:
        """Count a publish."""
        self._left -= 1

    def refill(self, publishes: int = _RATE) -> None:
        """Let so many publishes come again."""
        self._left = publishes
        if self.is_exceeded:
            self.is_exceeded = False
            self._resume()


class PlainServer:
    """One connection of a client, with what Kafka gets of it.

    `terms` has a bit for each of MQTT 5, a durable session, an ACL, small bounds of unfinished publishes, of records
    and bytes in flight, of the producer, connections that end when they are denied, and refused invalid publishes.
    `more` has one for a rate, two for where devices may come from, and one for a verified user. With `is_direct` the
    compiled way produces without confluent-kafka's binding.
    """

    def __init__(
        self,
        terms: int,
        more: int = 0,
        *,
        is_compiled: bool,
        is_direct: bool = False,
        receive_maximum: int = 1_000,
        max_records: int = 1_000,
    ) -> None:
        self.records: list[tuple[Any, ...]] = []
        self.tried: list[tuple[Any, ...]] = []
        self.answers = b""
        self.closed: list[tuple[Any, ...]] = []
        self._waiting: list[Callable[[KafkaError | None, Any], None]] = []
        self._refusal: Exception | None = None
        self._room = 0
        self._is_resumed = False
        self._held = HeldEvents()
        self._batcher = TransactionBatcher(max_records)
        self._batch: TransactionBatch | None = None
        self._session = Session("client", durable=bool(terms & 2))
        self.acl = _ACLS[1] if terms & 4 else None
        self.closes_on_denial = bool(terms & 64)
        self._receive_maximum = 3 if terms & 8 else receive_maximum
        self._rate = _Rate(self.resume) if more & 1 else None
        username = "attic" if more & 8 else None
        self._protocol = ServerProtocol(max_packet_bytes=8_192, topic_aliases=TopicAliases(4))
        self._metrics = Metrics()
        producer = _Producer(cast(Any, self), max_outstanding=4 if terms & 32 else 50_000)
        self._producer = producer
        pipeline = IngestPipeline(
            translator=Translator(
                Router(_ROUTES, first_match_only=False),
                dict.fromkeys(("readings", "plain"), _ENCODE),
                replace(RULES, device_id=_POLICIES[more >> 1 & 3]),
            ),
            producer=producer,
            transactions=cast(Any, self),
            gate=InflightGate(*((5, 6_000) if terms & 16 else (1_000_000, 1_000_000_000)), self._metrics),
            metrics=self._metrics,
            clock=lambda: 0.0,
            refuse_invalid=bool(terms & 128),
        )
        self._gate = pipeline.gate
        self._handler = PublishHandler(
            pipeline,
            self._protocol,
            cast(Any, self),
            context=IngestContext("client", NOW_MS, username),
            access=cast(Any, self),
            rates=cast(Any, self._rate),
            receive_maximum=self._receive_maximum,
            on_sent=self.resume,
            plain_ingest=PlainIngest(pipeline, 1_000_000) if is_compiled else None,
        )
        if is_direct:
            producer.use_direct(direct_producer)
        self._handler.permissions = PublishPermissions("client", username)
        self._handler.attach(self._session)

    # -- what the test does

    def take(self, step: int, chunk: bytes) -> None:
        """Do what a byte of the script says."""
        action, how = step & 7, step >> 3
        if step == FEED_ALL or action < 3:
            self.receive(chunk)
        elif action == 3:
            self._report([None] * (how + 1))
        elif action == 4:
            self._report([None] * (how >> 2 & 3) + [_ERRORS[how % len(_ERRORS)], None])
        elif action == 5:
            self.end(how % 4)
        elif action == 6:
            self._refusal, self._room = _REFUSALS[how % 3], how // 3
        else:
            self.acl = _ACLS[how % 3]
            self._refill()

    def receive(self, chunk: bytes) -> None:
        """Handle bytes of the client."""
        if not self.closed:
            self._protocol.feed(chunk)
            self._pump()

    def finish(self) -> None:
        """Let Kafka take and store everything."""
        self._refusal = None
        self._refill(_NO_RATE)
        for _ in range(_LAST_ENDS):
            self.report_all()
            self.end(0)
            if self.is_at_rest:
                break

    def report_all(self) -> None:
        """Let Kafka report that it has everything that was produced."""
        self._report([None] * len(self._waiting))

    def _refill(self, publishes: int = _RATE) -> None:
        if self._rate is not None:
            self._rate.refill(publishes)
            self._pump_if_resumed()

    def _report(self, codes: Sequence[int | None]) -> None:
        for code in codes:
            if self._waiting:
                self._waiting.pop(0)(None if code is None else KafkaError(code), None)
                if self._producer.direct is not None:
                    self._producer.direct.drain()
        self._producer.on_polled()
        self._pump_if_resumed()

    def end(self, how: int) -> None:
        """End the open transaction and begin the next: 0 and 1 commit it, 2 aborts it, 3 refuses one of its records."""
        batch, self._batch = self._batch, None
        if batch is not None:
            if how == 3:
                self._batcher.retry_refused(batch, "too large")
            else:
                self._batcher.decide(batch, Outcome.ABORTED if how == 2 else Outcome.COMMITTED)
        self._begin()
        self._pump_if_resumed()

    def _begin(self) -> None:
        if self._batch is None:
            self._batch = self._batcher.take()
            if self._batch is not None:
                records = [record for write in self._batch.writes for record in write.records]
                states = [(name, state and dict(state.committed)) for name, state in self._batch.changes()]
                self.tried.append((*records, *states))

    # -- what it sees

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits for Kafka."""
        return not (self._waiting or self._batch or self._batcher.has_work or self._gate.records)

    @property
    def session(self) -> tuple[Any, ...]:
        """The QoS 2 state of the client, and whether a write is undecided; how many are depends on what one holds."""
        session = self._session
        return dict(session.in_flight), set(session.releasing), [*session.committed.items()], session.undecided > 0

    @property
    def state(self) -> tuple[Any, ...]:
        """What the server counts."""
        return (
            self._gate.records,
            self._gate.bytes,
            self._gate.is_congested,
            self._producer.outstanding,
            len(self._held),
            self._protocol.buffered,
            self._protocol.packets_received,
            self._batcher.outstanding_records,
        )

    def counted(self) -> dict[tuple[Any, ...], float]:
        """Return the metrics that are not zero."""
        return {
            (sample.name, *sample.labels.items()): sample.value
            for metric in self._metrics.collect()
            for sample in metric.samples
            if sample.value
        }

    # -- the producer of librdkafka, the transactions, the access control and the port of the client

    def produce(self, topic: str, *, value: Any, key: Any, headers: Any, on_delivery: Any) -> None:
        """Take a record, or raise what the script says."""
        if self._refusal is not None:
            if not self._room:
                raise self._refusal
            self._room -= 1
        self.records.append((topic, key, value, tuple(headers)))
        self._waiting.append(on_delivery)

    def submit(self, write: SessionWrite) -> None:
        """Store a session write with the next transaction, which begins when the present read is handled."""
        self._batcher.add(write)

    def count_denied(self, **_what: object) -> None:
        """Count nothing."""

    def close(self, reason: object, detail: str) -> None:
        """End the connection."""
        if not self.closed:
            self.closed.append((reason, detail))
            self._protocol.disconnect(cast(Any, reason))
            self.flush()
            self._handler.close()
            self._gate.forget(cast(Any, self))

    def flush(self) -> None:
        """Send what waits."""
        self.answers += self._protocol.take_outgoing()

    def resume(self) -> None:
        """Handle held publishes when the present call has ended."""
        self._is_resumed = True

    # -- server.connection, without a socket

    def _pump_if_resumed(self) -> None:
        if self._is_resumed:
            self._pump()
        self.flush()

    def _pump(self) -> None:
        self._is_resumed = False
        plain, waiting = self._handler.plain, self._held.events
        while not self.closed:
            if waiting:
                self._handle_held()
            if plain is not None and not waiting:
                if not plain.take():
                    plain = None
                elif plain.has_taken_all:
                    break
            event = self._protocol.next_event()
            if event is None:
                break
            if type(event) is not Failure and (waiting or (type(event) is Publish and self._must_wait())):
                self._held.add(event)
            else:
                self._handle(event)
        self.flush()
        self._begin()

    def _must_wait(self) -> bool:
        if self._rate is not None and self._rate.must_wait():
            return True
        if self._gate.is_congested:
            self._gate.park(cast(Any, self))
            return True
        return len(self._handler.pubacks) > self._receive_maximum

    def _handle_held(self) -> None:
        while self._held and not self.closed:
            if type(self._held.first()) is Publish and self._must_wait():
                return
            self._handle(self._held.take())

    def _handle(self, event: Event) -> None:
        if isinstance(event, Publish):
            self._handler.publish(event)
        elif isinstance(event, Release):
            self._handler.release(event.packet_id)
        elif isinstance(event, Failure):
            self.close(event.reason, event.detail)
        elif self._protocol.was_accepted:
            self.close(0, "DISCONNECT")
        else:
            self._protocol.accept(session_present=False)
