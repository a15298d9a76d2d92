"""A server whose Kafka reports when the test says so, with the compiled way of plain publishes or without."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from confluent_kafka import KafkaError
from mqtt_dormant import dormant
from mqtt_model import Wire, WriterThatTheTestDecides, state_record
from mqtt_packets import connect_packet, publish_packet
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from isotherm.mqtt_proxy.access.acl import Acl, parse_acl
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.assembly import build_server
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.transactional_writer import TransactionalWriter, WriteResult
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.configuration import build_router, build_rules
from isotherm.mqtt_proxy.ingest.inflight_gate import InflightGate
from isotherm.mqtt_proxy.ingest.translation import Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.service import READING
from isotherm.mqtt_proxy.sessions.store import SessionStore
from isotherm.mqtt_proxy.settings import LimitSettings, ProxySettings
from isotherm.proofs.kafka.clients.direct_librdkafka import direct_producer
from isotherm.servicekit.avro import encoder
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.tracing.ingest_traces import IngestTraces
from isotherm.servicekit.tracing.root_sampling import RootSampling
from isotherm.servicekit.tracing.settings import TracingSettings
from isotherm.servicekit.tracing.spans import open_tracer

NOW_MS = 1_767_225_600_000
ROUTES = """
INSERT INTO thermostat.data SELECT id AS device_id, t AS value, ts AS event_time, seq AS sequence, u AS unit
    FROM devices/+/temperature;
INSERT INTO all SELECT * FROM `plain/#`;
INSERT INTO raw.texts SELECT * FROM `raw/#` WITHFORMAT RAW;
INSERT INTO twice SELECT * FROM `twice/#`;
INSERT INTO all SELECT v AS value, note FROM `twice/#`;
INSERT INTO all SELECT * FROM homes/+/temperature;
INSERT INTO all SELECT * FROM filtered/+/temperature WHERE value > 1 AND _.topic <> 'filtered/none/temperature';
INSERT INTO raw.texts SELECT * FROM homes/special/temperature WITHFORMAT RAW
"""
TARGETS = ("thermostat.data", "temperature", "all", "twice")
TOPIC = "devices/attic/temperature"


ENCODERS = dict.fromkeys(TARGETS, encoder(READING, 7))
ROUTER = build_router(ProxySettings(routes=ROUTES, allow_anonymous=True))


_ONLY_COMPILED = ("isotherm_mqtt_proxy_topic_cache_bytes",)
"""Metrics of the compiled way alone."""


def plain(number: int, qos: int = 1, topic: str = TOPIC, *, version: int = 4) -> bytes:
    """A PUBLISH of a small object that names no device; its value and time follow from the `number`."""
    payload = json.dumps({"t": number / 4, "value": number, "ts": NOW_MS + number}).encode()
    properties = b"\0" if version == 5 else b""
    return publish_packet(topic, payload, flags=qos << 1, packet_id=number if qos else None, properties=properties)


def _seen(headers: Iterable[Any]) -> tuple[Any, ...]:
    """Headers without what is drawn by chance."""
    return tuple(("traceparent", "") if isinstance(one, tuple) and one[0] == "traceparent" else one for one in headers)


def _traces(ratio: float, spans: InMemorySpanExporter) -> IngestTraces:
    """Traces that begin at publishes which are the same in every world."""
    draws = random.Random(7)
    settings = TracingSettings(endpoint="http://127.0.0.1:4318/v1/traces")
    tracer = open_tracer(settings, "x", CollectorRegistry(), instance="x", exporter=spans)
    return IngestTraces(tracer, RootSampling(ratio, draws.random), 1_000_000, lambda: 0.0)


class ChangingAccess(AccessControl):
    """Has the rules that the test gives it."""

    rules: Acl | None = None

    @property
    def acl(self) -> Acl | None:
        return self.rules


class ScriptedKafka:
    """A producer that keeps what it gets; while `refusal` is set, it raises it after `room` more records."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []
        self.waiting: list[Any] = []
        self.refusal: Exception | None = None
        self.room = 0

    def produce(self, topic: str, *, value: Any, key: Any, headers: Any, on_delivery: Any) -> None:
        if self.refusal is not None:
            if not self.room:
                raise self.refusal
            self.room -= 1
        self.records.append((topic, key, value, _seen(headers)))
        self.waiting.append(on_delivery)

    def poll(self, _timeout_s: float) -> int:
        return 0


class HeldWrites(Executor):
    """The writer's thread: it holds the one open transaction until the test says how it ends."""

    def __init__(self) -> None:
        self.tried: list[list[tuple[Any, ...]]] = []
        self.committed: list[tuple[Any, ...]] = []
        self._open: Future[Any] | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert self._open is None, "two transactions at a time"
        self._open = Future()
        self.tried.append([(record.topic, record.key, record.value, _seen(record.headers)) for record in args[0]])
        return self._open

    def end(self, result: WriteResult) -> None:
        if self._open is None:
            return
        if result is WriteResult.COMMITTED:
            self.committed += self.tried[-1]
        ended, self._open = self._open, None
        ended.set_result(result)


class PlainWorld:
    """One server with one client, which is connected; everything that can be seen of it is in `seen`.

    With `is_direct` the compiled way produces with librdkafka's functions, which call the scripted Kafka; a `kafka`
    takes its place.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_compiled: bool,
        is_direct: bool = False,
        kafka: LoopProducer | None = None,
        version: int = 4,
        acl: str = "",
        max_outstanding: int = 50_000,
        is_clean: bool = True,
        sample_ratio: float = 0.0,
        **settings: Any,
    ) -> None:
        self.spans = InMemorySpanExporter()
        self.traces = _traces(sample_ratio, self.spans) if sample_ratio else None
        self._loop = loop
        self._is_direct = is_direct
        self._is_clean = is_clean
        self.writes = HeldWrites()
        self.failures: list[Mapping[str, Any]] = []
        loop.set_exception_handler(lambda _loop, context: self.failures.append(context))
        self.kafka = ScriptedKafka()
        self.producer = kafka or LoopProducer(cast(Any, self.kafka), max_outstanding=max_outstanding)
        self.metrics = Metrics()
        self._acl = acl
        # Below the smallest limits that an operator may set.
        limits = LimitSettings().model_copy(update=settings.pop("limits", {}))
        given = ProxySettings(**{"routes": ROUTES, "allow_anonymous": True} | settings)
        self._settings = given.model_copy(update={"limits": limits})
        with patch.dict(os.environ, {"ISOTHERM_PURE_PYTHON": "" if is_compiled else "1"}):
            loop.run_until_complete(self._connect(version))
        self.turn()
        # A session that outlives its connection is claimed first.
        self.end_transaction(WriteResult.COMMITTED)
        self.answers = bytes(self.wire.received)

    async def _connect(self, version: int) -> None:
        settings, metrics, limits = self._settings, self.metrics, self._settings.limits
        transactions = Transactions(
            cast(TransactionalWriter, WriterThatTheTestDecides()),
            executor=self.writes,
            session_record=state_record,
            witness=state_record("\0witness", None),
            max_records=1_000,
            linger_s=0,
            metrics=metrics,
            on_fatal=lambda failure: None,
        )
        pipeline = IngestPipeline(
            translator=Translator(ROUTER, ENCODERS, build_rules(settings), traces=self.traces),
            producer=self.producer,
            transactions=transactions,
            gate=InflightGate(limits.outstanding_records, limits.outstanding_bytes, metrics),
            metrics=metrics,
            clock=lambda: 0.0,
            refuse_invalid=settings.invalid_publish == "refuse",
        )
        self.access = ChangingAccess(settings, metrics)
        self.change_acl(self._acl)
        bounds = settings.session
        sessions = SessionStore(bounds.maximum, dormant({}, NOW_MS), maximum_per_sender=bounds.most_per_sender)
        self.gate, self.sessions = pipeline.gate, sessions
        self.server = build_server(settings, pipeline=pipeline, sessions=sessions, access=self.access)
        if self._is_direct:
            self.producer.use_direct(cast(Any, direct_producer))
        self.server.open()
        self.wire, self.connection = Wire(), Connection(self.server)
        self.connection.connection_made(self.wire)
        expiry = b"\5\x11\0\0\1\0" if version == 5 and not self._is_clean else None
        flags = 2 if self._is_clean else 0
        self.connection.data_received(
            connect_packet("c", version=version, keep_alive=0, flags=flags, properties=expiry)
        )

    @property
    def plain(self) -> Any:
        return self.connection._publishes.plain

    def change_acl(self, rules: str) -> None:
        self.access.rules = parse_acl(rules.splitlines()) if rules else None

    def receive(self, chunk: bytes) -> None:
        clock = SimpleNamespace(time=lambda: NOW_MS / 1000)
        with patch("isotherm.mqtt_proxy.server.connection.time", clock):
            self._loop.call_soon(self.connection.data_received, chunk)
            self.turn()

    def report(self, codes: Iterable[int | None]) -> None:
        """Report records in their order, each as stored (None) or with the code of an error."""
        clock = SimpleNamespace(time=lambda: NOW_MS / 1000)
        with patch("isotherm.mqtt_proxy.server.connection.time", clock):
            self._loop.call_soon(self._report, list(codes))
            self.turn()

    def _report(self, codes: list[int | None]) -> None:
        for code in codes:
            if self.kafka.waiting:
                self.kafka.waiting.pop(0)(None if code is None else KafkaError(code), None)
                if self.producer.direct is not None:
                    self.producer.direct.drain()
        self.producer.on_polled()

    def end_transaction(self, result: WriteResult) -> None:
        """Let the open transaction end, if there is one."""
        # Publishes that waited for it are handled now.
        clock = SimpleNamespace(time=lambda: NOW_MS / 1000)
        with patch("isotherm.mqtt_proxy.server.connection.time", clock):
            self._loop.call_soon(self.writes.end, result)
            self.turn()

    def turn(self) -> None:
        for _ in range(8):
            self._loop.run_until_complete(asyncio.sleep(0))
        assert not self.failures, self.failures[0]

    @property
    def seen(self) -> dict[str, Any]:
        """Everything that Kafka, the client and Prometheus see."""
        samples = {
            (sample.name, *sample.labels.items()): sample.value
            for metric in self.metrics.collect()
            for sample in metric.samples
            if sample.value and sample.name not in _ONLY_COMPILED
        }
        return {
            "records": self.kafka.records,
            "answers": bytes(self.wire.received),
            "closed": self.wire.closed,
            "metrics": samples,
            "outstanding": self.producer.outstanding,
            "held": len(self.connection._held),
            "buffered": self.connection._protocol.buffered,
            "silent since": self.connection._protocol.packets_received,
            "tried": [list(records) for records in self.writes.tried],
            "committed": list(self.writes.committed),
            "gate": (self.gate.records, self.gate.bytes),
            "session": self._session,
        }

    @property
    def _session(self) -> tuple[object, ...]:
        session = self.sessions.get("c")
        if session is None:
            return ()
        committed = list(session.committed.items())
        return dict(session.in_flight), set(session.releasing), committed, bool(session.undecided)
