"""coap-ingest: notifications through its queue, its routes and its forwarder, as they come from the sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from isotherm.coap_ingest.connectors.connector_class import Plan, plan
from prometheus_client import CollectorRegistry

from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.connectors.connector_keys import DEFINITION
from isotherm.coap_ingest.ingest.bounded_queue import Intake
from isotherm.coap_ingest.ingest.forwarder import Forwarder, Outlet
from isotherm.coap_ingest.metrics import PREFIX, Metrics
from isotherm.coap_ingest.observe.resource_observer import Arrived
from isotherm.coap_ingest.service import _schema
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.config import files
from isotherm.connector.distributed.publishing import announcements
from isotherm.connector.standalone.reporting import counts_of
from isotherm.connector.state.status import State
from isotherm.contracts.harness import (
    Harness,
    Message,
    RecordingProducer,
    heartbeat,
    message,
)
from isotherm.contracts.pact import scenario
from isotherm.contracts.paths import EXAMPLES
from isotherm.servicekit.delivery import LoopProducer

_DOCUMENT = (
    '{"sensorId":"Sensor4","timestamp":1486997194029,"temperature":23.60440030439427,"message":"Sensor message 98"}'
)
_LIGHT = '{"sensorId":"Sensor4","timestamp":1486997194029,"temperature":23.5,"brightness":310}'
_PLAIN = """
name=coap-readings
connector.class=com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector
connect.coap.uri=coap://localhost:5633
connect.coap.kcql=INSERT INTO temperature SELECT sensorId AS device_id, temperature AS value, timestamp AS event_time \
FROM sensors; INSERT INTO brightness SELECT sensorId AS device_id, brightness AS value, timestamp AS event_time \
FROM sensors
"""


def messages(harness: Harness) -> Mapping[str, Message]:
    """A notification of the documents' sensor over the demo's statements, and over two more; a polled response."""
    settings = CoapIngestSettings()
    demo = files.read(EXAMPLES / "demo" / "coap-source.properties").resolved({"COAP_SERVER": "localhost:5633"})
    plain = files.parse(_PLAIN, form="properties")
    raw, reading = _forwarded(harness, _plan(demo, settings), _DOCUMENT, observe=7)
    temperature, brightness = _forwarded(harness, _plan(plain, settings), _LIGHT, observe=7)
    answer, _ = _forwarded(harness, _plan(demo, settings), _DOCUMENT, observe=None)
    return {
        scenario.COAP_MESSAGE: raw,
        scenario.COAP_READING: reading,
        scenario.COAP_TEMPERATURE: temperature,
        scenario.COAP_BRIGHTNESS: brightness,
        scenario.COAP_ANSWER: answer,
        **_of_itself(harness),
    }


def _of_itself(harness: Harness) -> Mapping[str, Message]:
    """What a process with the demo's file says on the control topics."""
    written = files.read(EXAMPLES / "demo" / "coap-source.properties")
    counted = CollectorRegistry()
    Metrics(counted)
    owned, plugin = announcements(harness.registry, written, DEFINITION, version="0.9.0")
    return {
        scenario.HEARTBEAT: heartbeat(harness, written.name, State.RUNNING, lambda: counts_of(counted, f"{PREFIX}_")),
        scenario.CONNECTOR: message(*owned),
        scenario.PLUGIN: message(*plugin),
    }


def _plan(connector: files.ConnectorConfig, settings: CoapIngestSettings) -> Plan:
    letters = settings.dead_letter_topic
    return plan(connector, units=settings.units, limits=settings.limits(), dead_letter_topic=letters)


def _forwarded(harness: Harness, connector: Plan, payload: str, *, observe: int | None) -> Sequence[Message]:
    (server,) = connector.servers
    routes = [rule.named(server) for rule in connector.rules]
    outlets = [Outlet(route, harness.registry.encoder(route.topic.name, _schema(route.topic))) for route in routes]
    notification = Notification(
        resource=routes[0].resource,
        arrived_ms=scenario.TAKEN_IN_MS,
        rtt_ms=998,
        code="2.05",
        raw_code=69,
        message_type="NON",
        message_id=62517,
        token=bytes.fromhex("d77d"),
        destination="127.0.0.1:40000",
        payload=payload.encode(),
        observe=observe,
        max_age_s=2,
        content_format=50,
    )

    async def forward() -> Sequence[Message]:
        recorder = RecordingProducer()
        intake: Intake[Arrived] = Intake(10, 1_000_000)
        keys = {(connector.name, route.resource.uri): outlets for route in routes}
        producer = LoopProducer(recorder.as_producer())
        letters = {connector.name: connector.dead_letter_topic}
        forwarder = Forwarder(intake, producer, keys, letters, Metrics(CollectorRegistry()))
        running = asyncio.create_task(forwarder.run())
        intake.reserve(1_000)
        intake.put(Arrived(connector.name, notification), len(notification.payload), reserved=1_000)
        await forwarder.settled()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return recorder.messages

    return asyncio.run(forward())
