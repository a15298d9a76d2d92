"""Traces of requests and notifications: continued from an option, begun by chance, and handed on with the records."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiocoap import POST, Context, Message  # type: ignore[import-untyped]  # no types there
from aiocoap.optiontypes import OpaqueOption  # type: ignore[import-untyped]  # no types there
from coap_world import BOTH, World, opened, stop
from otlp_collector import Collector, collecting

from isotherm.coap_ingest.coap.options import TRACEPARENT
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

RAW, READINGS = "coap_sensor_topic", "thermostat.data"
PARENT = "b7ad6b7169203331"
REQUESTS = 60


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as made:
        monkeypatch.setenv("ISOTHERM_COAP_INGEST__TRACING__ENDPOINT", made.endpoint)
        yield made


@pytest.fixture
def world(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int], collector: Collector
) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


async def test_the_context_of_a_request_goes_on_with_its_records(world: World, collector: Collector) -> None:
    reader = world.reader(READINGS, RAW)
    ingest = world.listening(BOTH.format("`devices/*`"))
    run = uuid.uuid4().hex[:8]
    client = await Context.create_client_context(transports=["udp6"])
    answers = {}
    for number in range(REQUESTS):
        body = {"sensorId": f"{run}-{number}", "temperature": number / 10} if number % 3 else {"sensorId": []}
        uri = f"coap://127.0.0.1:{world.port}/devices/{number}"
        request = Message(code=POST, uri=uri, payload=json.dumps(body).encode(), content_format=50)
        if number % 2:
            flags = "00" if number % 10 == 1 else "01"
            context = f"00-{number:032x}-{PARENT}-{flags}".encode()
            request.opt.add_option(OpaqueOption(TRACEPARENT, context))
        answers[number] = (await client.request(request).response).code.dotted
    await client.shutdown()
    records = reader.rest()
    assert stop(ingest) == 0

    assert {answers[number] for number in range(0, REQUESTS, 3)} == {"4.00"}
    sampled = {number for number in range(REQUESTS) if number % 2 and number % 10 != 1}
    found = {int(trace, 16): spans for trace, spans in collector.by_trace().items()}
    assert set(found) == sampled
    in_topics: dict[int, set[tuple[str, str]]] = {}
    for record in records:
        number = int(record.headers["coap.uri"].rpartition("/")[2])
        assert ("traceparent" in record.headers) == bool(number % 2)
        if number % 2:
            _, trace, parent, flags = record.headers["traceparent"].split("-")
            assert int(trace, 16) == number
            assert flags == ("01" if number in sampled else "00")
            in_topics.setdefault(number, set()).add((record.topic, parent))
    for number in sampled:
        (request_span,) = [span for span in found[number] if span.kind == "server"]
        sends = [span for span in found[number] if span.kind == "producer"]
        assert (request_span.service, request_span.name, request_span.parent) == ("coap-ingest", "coap request", PARENT)
        assert bool(request_span.error) == (answers[number] == "4.00")
        assert {(span.name.removeprefix("send "), span.id) for span in sends} == in_topics.get(number, set())
        assert {span.parent for span in sends} <= {request_span.id}


def test_a_trace_may_begin_at_a_notification(world: World, collector: Collector) -> None:
    reader = world.reader(RAW)
    world.simulator("--rate", "50", "--max-age", "2")
    ingest = world.ingest(BOTH.format("sensors"), "tracing.sample_ratio=1.0", "tracing.traces_per_s=1000")
    reader.until(lambda seen: len(seen) >= REQUESTS)
    assert stop(ingest) == 0
    in_topic = {record.headers["traceparent"].split("-")[1] for record in reader.rest()}
    found = collector.by_trace()
    assert len(in_topic) >= REQUESTS
    assert in_topic == set(found)
    for spans in found.values():
        assert sorted(span.name for span in spans) == ["coap notification", f"send {RAW}", f"send {READINGS}"]
        assert not any(span.error for span in spans)
