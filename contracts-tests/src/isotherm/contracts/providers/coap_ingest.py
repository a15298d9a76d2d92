"""coap-ingest as a provider: notifications through its queue, routes and forwarder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.connectors.connector_keys import DEFINITION
from isotherm.coap_ingest.connectors.plan import ConnectorPlan, plan_for
from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue
from isotherm.coap_ingest.ingest.encoders import schema_of
from isotherm.coap_ingest.ingest.forwarder import Forwarder
from isotherm.coap_ingest.ingest.outlets import Outlet
from isotherm.coap_ingest.ingest.queued_notification import QueuedNotification
from isotherm.coap_ingest.metrics import PREFIX, Metrics
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
from isotherm.servicekit.producer.delivery import LoopProducer

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
    """Return the records of a notification over the demo's statements and over two more, and of a polled response."""
    settings = CoapIngestSettings()
    demo = files.read(EXAMPLES / "demo" / "coap-source.properties").resolved({"COAP_SERVER": "localhost:5633"})
    plain = files.parse(_PLAIN, form="properties")
    raw, reading = _forwarded(harness, plan_for(demo, settings), _DOCUMENT, observe=7)
    temperature, brightness = _forwarded(harness, plan_for(plain, settings), _LIGHT, observe=7)
    answer, _ = _forwarded(harness, plan_for(demo, settings), _DOCUMENT, observe=None)
    return {
        scenario.COAP_MESSAGE: raw,
        scenario.COAP_READING: reading,
        scenario.COAP_TEMPERATURE: temperature,
        scenario.COAP_BRIGHTNESS: brightness,
        scenario.COAP_ANSWER: answer,
        **_of_itself(harness),
    }


def _of_itself(harness: Harness) -> Mapping[str, Message]:
    """Return what a process with the demo's file publishes on the control topics."""
    written = files.read(EXAMPLES / "demo" / "coap-source.properties")
    counted = CollectorRegistry()
    Metrics(counted)
    owned, plugin = announcements(harness.registry, written, DEFINITION, version="0.9.0")
    return {
        scenario.HEARTBEAT: heartbeat(harness, written.name, State.RUNNING, lambda: counts_of(counted, f"{PREFIX}_")),
        scenario.CONNECTOR: message(*owned),
        scenario.PLUGIN: message(*plugin),
    }


def _forwarded(harness: Harness, connector: ConnectorPlan, payload: str, *, observe: int | None) -> Sequence[Message]:
    (server,) = connector.observe.servers
    routes = [rule.route_for_server(server) for rule in connector.rules]
    outlets = [Outlet(route, harness.registry.encoder(route.topic.name, schema_of(route.topic))) for route in routes]
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
        queue: BoundedQueue[QueuedNotification] = BoundedQueue(10, 1_000_000)
        keys = {(connector.name, route.resource.uri): outlets for route in routes}
        producer = LoopProducer(recorder.as_producer())
        dead_letter_topics = {connector.name: connector.dead_letter_topic}
        forwarder = Forwarder(queue, producer, keys, dead_letter_topics, Metrics(CollectorRegistry()))
        running = asyncio.create_task(forwarder.run())
        queue.reserve(1_000)
        item = QueuedNotification(connector.name, notification)
        queue.put(item, len(notification.payload), reserved=1_000)
        await forwarder.settled()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return recorder.messages

    return asyncio.run(forward())
