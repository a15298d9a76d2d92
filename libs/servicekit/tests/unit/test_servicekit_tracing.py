"""Tracing: which messages are traced, what becomes of spans, and what a service that does not trace imports."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from isotherm.servicekit.settings import SettingsError, load
from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces
from isotherm.servicekit.tracing.ingest_traces import IngestTraces
from isotherm.servicekit.tracing.root_sampling import RootSampling
from isotherm.servicekit.tracing.settings import LEAST_RATIO, IngestTracingSettings, TracingSettings
from isotherm.servicekit.tracing.spans import Tracer, end_span, open_tracer
from isotherm.servicekit.tracing.trace_headers import carrier_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
REJECTED = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=2))
SETTINGS = TracingSettings(endpoint="http://127.0.0.1:4318/v1/traces")


class Traced:
    """A tracer whose spans are kept in memory, and its metrics."""

    def __init__(self, exporter: SpanExporter | None = None, settings: TracingSettings = SETTINGS) -> None:
        self.memory = InMemorySpanExporter()
        self.registry = CollectorRegistry()
        self.tracer: Tracer = open_tracer(
            settings, "mqtt-proxy", self.registry, instance="one", exporter=exporter or self.memory
        )
        self.now_s = 0.0

    def traces(self, ratio: float = 0.0, per_s: int = 100) -> IngestTraces:
        return IngestTraces(self.tracer, RootSampling(ratio), per_s, lambda: self.now_s)

    def spans(self) -> Sequence[ReadableSpan]:
        self.tracer.close()
        return self.memory.get_finished_spans()

    def count(self, outcome: str) -> float | None:
        return self.registry.get_sample_value("isotherm_spans_total", {"outcome": outcome})


class TestCarrier:
    def test_the_last_of_several_counts(self) -> None:
        pairs: list[tuple[str, str | bytes | None]] = [
            ("traceparent", b"first"),
            ("other", b"x"),
            ("traceparent", SAMPLED),
            ("tracestate", b"a=1"),
        ]
        assert carrier_of(pairs) == {"traceparent": SAMPLED, "tracestate": "a=1"}

    def test_a_state_alone_is_nothing(self) -> None:
        assert carrier_of([("tracestate", "a=1"), ("traceparent", None)]) == {}

    def test_what_is_too_long_is_left_out(self) -> None:
        assert carrier_of([("traceparent", SAMPLED), ("tracestate", "a" * 513)]) == {"traceparent": SAMPLED}
        assert carrier_of([("traceparent", "0" * 129)]) == {}

    @given(
        st.lists(st.tuples(st.sampled_from(["traceparent", "tracestate", "x"]), st.none() | st.text() | st.binary()))
    )
    def test_whatever_a_device_sends_is_read(self, pairs: list[tuple[str, str | bytes | None]]) -> None:
        carrier = carrier_of(pairs)
        assert set(carrier) <= {"traceparent", "tracestate"}
        assert not carrier or "traceparent" in carrier


class TestRootSampling:
    @pytest.mark.parametrize("ratio", [0.5, 0.1, 0.01])
    def test_it_draws_its_share(self, ratio: float) -> None:
        sampling = RootSampling(ratio)
        messages = int(20_000 / ratio)
        drawn = sum(sampling.is_due() for _ in range(messages))
        # 20,000 are expected, with a standard deviation of at most 141: eight of them.
        assert abs(drawn - 20_000) < 1_150

    def test_none_and_all(self) -> None:
        never, always = RootSampling(0.0), RootSampling(1.0)
        assert not any(never.is_due() for _ in range(1_000))
        assert never.left == 0
        assert all(always.is_due() for _ in range(1_000))

    @given(st.floats(LEAST_RATIO, 1.0), st.floats(0.0, 1.0, exclude_max=True))
    def test_the_next_one_is_always_ahead(self, ratio: float, draw: float) -> None:
        sampling = RootSampling(ratio, lambda: draw)
        assert 1 <= sampling.left < 2**63


class TestIngest:
    def test_a_sampled_context_is_continued_into_the_records(self) -> None:
        traced = Traced()
        trace = traced.traces().begin("mqtt publish", {"traceparent": SAMPLED, "tracestate": "a=1"}, lambda: {"n": 1})
        assert trace is not None
        headers = dict(trace.headers_for("thermostat.data", 3))
        trace.end()
        send, publish = traced.spans()
        assert trace.id == TRACE
        assert (send.name, send.kind, publish.kind) == ("send thermostat.data", SpanKind.PRODUCER, SpanKind.SERVER)
        assert publish.parent is not None
        assert f"{publish.parent.span_id:016x}" == PARENT
        assert send.parent == publish.context
        assert send.context is not None
        assert headers == {"traceparent": f"00-{TRACE}-{send.context.span_id:016x}-01", "tracestate": "a=1"}
        assert publish.attributes == {"n": 1}
        assert publish.status.status_code is StatusCode.UNSET

    def test_what_is_not_stored_is_an_error(self) -> None:
        traced = Traced()
        trace = traced.traces(1.0).begin("mqtt publish", {}, dict)
        assert trace is not None
        trace.headers_for("t", 1)
        trace.end("Broker: Message size too large")
        trace.end()
        spans = traced.spans()
        assert [span.status.status_code for span in spans] == [StatusCode.ERROR] * 2
        assert spans[0].status.description == "Broker: Message size too large"

    def test_a_context_that_is_not_sampled_is_passed_on(self) -> None:
        traced = Traced()
        trace = traced.traces(1.0).begin("mqtt publish", {"traceparent": NOT_SAMPLED}, dict)
        assert trace is not None
        assert trace.id is None
        assert trace.headers_for("t", 1) == [("traceparent", NOT_SAMPLED)]
        trace.end()
        assert not traced.spans()

    def test_beyond_the_rate_a_context_is_passed_on_as_not_sampled(self) -> None:
        traced = Traced()
        traces = traced.traces(per_s=2)
        begun = [traces.begin("mqtt publish", {"traceparent": SAMPLED}, dict) for _ in range(5)]
        assert [trace is not None and trace.id for trace in begun] == [TRACE, None, None, None, None]
        assert begun[4] is not None
        assert begun[4].headers_for("t", 1) == [("traceparent", NOT_SAMPLED)]
        traced.now_s = 1.0
        again = traces.begin("mqtt publish", {"traceparent": SAMPLED}, dict)
        assert again is not None
        assert again.id == TRACE

    @pytest.mark.parametrize("text", ["", "x", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", SAMPLED[:-1]])
    def test_no_valid_context_is_none(self, text: str) -> None:
        traced = Traced()
        assert traced.traces().begin("mqtt publish", {"traceparent": text}, dict) is None

    def test_a_later_version_is_passed_on_as_this_one_reads_it(self) -> None:
        later = f"01-{TRACE}-{PARENT}-00-more"
        trace = Traced().traces().begin("mqtt publish", {"traceparent": later}, dict)
        assert trace is not None
        assert trace.headers_for("t", 1) == [("traceparent", NOT_SAMPLED)]

    @pytest.mark.parametrize("flags", ["00", "01"])
    def test_a_state_that_is_none_is_left_out_and_not_logged(
        self, flags: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        carrier = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": "!!,a=1,=,b"}
        traces = Traced().traces()
        for _ in range(100):
            trace = traces.begin("mqtt publish", carrier, dict)
            assert trace is not None
            assert "!!" not in str(trace.headers_for("t", 1))
        assert not caplog.records

    def test_a_device_takes_no_trace_that_begins_here(self) -> None:
        traced = Traced()
        traces = traced.traces(1.0, per_s=10)
        for _ in range(100):
            traces.begin("mqtt publish", {"traceparent": SAMPLED}, dict)
        begun = [traces.begin("mqtt publish", {}, dict) for _ in range(10)]
        assert sum(trace is not None for trace in begun) == 5
        # 95 contexts and five messages that were to begin a trace.
        assert traced.count("dropped") == 100

    def test_it_begins_when_the_message_arrived(self) -> None:
        traced = Traced()
        trace = traced.traces(1.0).begin("coap notification", {}, dict, arrived_ms=1_767_225_600_000)
        assert trace is not None
        trace.headers_for("refused", 1)
        trace.refuse("too large")
        trace.headers_for("dead letters", 1)
        trace.end()
        first, second, whole = traced.spans()
        assert whole.start_time == 1_767_225_600_000_000_000
        assert (first.status.description, second.status.status_code) == ("too large", StatusCode.UNSET)


class TestConsumed:
    def test_a_span_begins_at_kafkas_timestamp(self) -> None:
        traced = Traced()
        consumed = ConsumedTraces(traced.tracer, {"isotherm.sink": "http"})
        context = consumed.context_of([("traceparent", SAMPLED.encode())])
        assert context is not None
        assert consumed.record(context, "t", 2, 7, since_ms=1_767_225_600_000, error="no") == TRACE
        (span,) = traced.spans()
        assert (span.name, span.kind) == ("process t", SpanKind.CONSUMER)
        assert span.start_time == 1_767_225_600_000_000_000
        assert span.attributes is not None
        assert span.attributes["messaging.kafka.offset"] == 7
        assert span.attributes["isotherm.sink"] == "http"
        assert span.status.description == "no"

    def test_a_timestamp_of_tomorrow_gives_no_negative_span(self) -> None:
        traced = Traced()
        consumed = ConsumedTraces(traced.tracer, {})
        context = consumed.context_of([("traceparent", SAMPLED)])
        assert context is not None
        consumed.record(context, "t", 0, 0, since_ms=9_999_999_999_999)
        (span,) = traced.spans()
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time

    def test_others_have_none(self) -> None:
        consumed = ConsumedTraces(Traced().tracer, {})
        assert consumed.context_of([]) is None
        assert consumed.context_of([("traceparent", NOT_SAMPLED)]) is None


class FailingExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


class TestCounts:
    def make(self, traced: Traced, number: int) -> None:
        for _ in range(number):
            end_span(traced.tracer.start("x", SpanKind.INTERNAL, None, {}))

    def test_exported(self) -> None:
        traced = Traced()
        self.make(traced, 30)
        assert len(traced.spans()) == 30
        assert (traced.count("exported"), traced.count("failed"), traced.count("dropped")) == (30, 0, 0)

    def test_failed(self) -> None:
        traced = Traced(FailingExporter())
        self.make(traced, 30)
        traced.tracer.close()
        assert (traced.count("exported"), traced.count("failed"), traced.count("dropped")) == (0, 30, 0)

    def test_every_span_has_one_outcome_when_too_many_wait(self) -> None:
        traced = Traced(settings=TracingSettings(endpoint=SETTINGS.endpoint, queue_spans=512))
        self.make(traced, 20_000)
        exported = len(traced.spans())
        assert traced.count("exported") == exported
        assert (traced.count("dropped") or 0) + exported == 20_000

    def test_an_unsampled_span_is_none(self) -> None:
        traced = Traced()
        context = traced.tracer.context_of({"traceparent": NOT_SAMPLED})
        end_span(traced.tracer.start("x", SpanKind.INTERNAL, context, {}))
        assert not traced.spans()
        assert traced.count("exported") == 0


class BreakingExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise OSError("broken")


class TestEnd:
    def test_what_breaks_is_a_failure(self) -> None:
        traced = Traced(BreakingExporter())
        for _ in range(30):
            end_span(traced.tracer.start("x", SpanKind.INTERNAL, None, {}), "\ud800 no text")
        traced.tracer.close()
        assert traced.count("failed") == 30

    def test_what_a_collector_does_not_take_before_the_end_is_counted(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
            registry = CollectorRegistry()
            tracer = open_tracer(TracingSettings(endpoint=endpoint), "x", registry, instance="one")
            for _ in range(600):
                end_span(tracer.start("x", SpanKind.INTERNAL, None, {}))
            tracer.close()
            counts = {
                outcome: registry.get_sample_value("isotherm_spans_total", {"outcome": outcome})
                for outcome in ("exported", "failed", "dropped")
            }
        assert sum(count or 0 for count in counts.values()) == 600, counts
        assert counts["exported"] == 0


class TestCollector:
    """What the exporter takes for a success, from a server of the test's own."""

    @pytest.mark.parametrize(
        ("status", "body", "exported"),
        [
            (200, b"", 5),
            (200, REJECTED.SerializeToString(), 3),
            (200, b"x" * 1_000_000, 5),
            (302, b"", 0),
            (400, b"no", 0),
        ],
    )
    def test_answers(self, status: int, body: bytes, exported: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.send_header("Location", "https://elsewhere.example/")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        registry = CollectorRegistry()
        settings = TracingSettings(endpoint=f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
        tracer = open_tracer(settings, "x", registry, instance="one")
        for _ in range(5):
            end_span(tracer.start("x", SpanKind.INTERNAL, None, {}))
        tracer.close()
        server.shutdown()
        server.server_close()
        assert registry.get_sample_value("isotherm_spans_total", {"outcome": "exported"}) == exported
        assert registry.get_sample_value("isotherm_spans_total", {"outcome": "failed"}) == 5 - exported


class TestSettings:
    @pytest.mark.parametrize(
        "endpoint", ["localhost:4318", "ftp://x/y", "http://", "http://x:4318", "http://x:99999/y", "http://[x/y"]
    )
    def test_what_is_no_endpoint(self, endpoint: str) -> None:
        with pytest.raises(ValidationError, match="endpoint"):
            TracingSettings(endpoint=endpoint)

    @pytest.mark.parametrize(
        "override",
        [
            "endpoint=http://user:s3cret@x/v1/traces",
            "endpoint=http://u:s3cret@[x",
            "endpoint=http://x/v1/traces?api_key=s3cret",
            "headers=Authorization Bearer s3cret",
            "headers.Authorization= s3cret\n",
            "headers.Authorization=s3cr\u00e9t s3cret",
        ],
    )
    def test_a_secret_in_the_wrong_place_is_not_shown(self, override: str) -> None:
        with pytest.raises(SettingsError) as refused:
            load(IngestTracingSettings, "x", environ={}, overrides=[override.replace(" s3cret\n", "a\nb s3cret")])
        assert "s3cret" not in str(refused.value)
        assert override.partition("=")[0].partition(".")[0] in str(refused.value)

    @pytest.mark.parametrize("ratio", [5e-324, 1e-10, -0.1, 1.1])
    def test_what_is_no_share(self, ratio: float) -> None:
        with pytest.raises(ValidationError, match="sample_ratio"):
            IngestTracingSettings(sample_ratio=ratio)

    def test_a_file_that_is_missing(self) -> None:
        with pytest.raises(ValidationError, match=r"ssl_ca_location: there is no file '/nowhere\.pem'"):
            TracingSettings(ssl_ca_location="/nowhere.pem")

    def test_values_of_headers_are_not_shown(self) -> None:
        settings = IngestTracingSettings.model_validate({"headers": {"Authorization": "Bearer s3cret"}})
        assert "s3cret" not in repr(settings)
