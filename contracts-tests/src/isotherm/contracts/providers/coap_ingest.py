"""coap-ingest as a provider: notifications through its queue, routes and forwarder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from isotherm.coap_ingest import pipeline as pipeline_module
from isotherm.coap_ingest import service
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.connectors.classes import CoapClasses
from isotherm.coap_ingest.connectors.plan import ConnectorPlan, plan_for
from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue
from isotherm.coap_ingest.ingest.encoders import schema_of
from isotherm.coap_ingest.ingest.forwarder import Forwarder
from isotherm.coap_ingest.ingest.outlets import Outlet
from isotherm.coap_ingest.ingest.queued_notification import QueuedNotification
from isotherm.coap_ingest.ingest.routes import SERVICE
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.pipeline import Pipeline
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.config import files
from isotherm.connector.state.status import State
from isotherm.contracts import seam
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.paths import EXAMPLES
from isotherm.servicekit.health import Health

_DOCUMENT = (
    '{"sensorId":"Sensor4","timestamp":1486997194029,"temperature":23.60440030439427,"message":"Sensor message 98"}'
)
_LIGHT = '{"sensorId":"Sensor4","timestamp":1486997194029,"temperature":23.5,"brightness":310}'
_UNREADABLE = '{"sensorId":"Sensor4","temperature":"warm"}'
_PLAIN = """
name=coap-readings
connector.class=com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector
connect.coap.uri=coap://localhost:5633
connect.coap.kcql=INSERT INTO temperature SELECT sensorId AS device_id, temperature AS value, timestamp AS event_time \
FROM sensors; INSERT INTO brightness SELECT sensorId AS device_id, brightness AS value, timestamp AS event_time \
FROM sensors
"""


def messages(harness: Harness) -> Mapping[str, Message]:
    """Return the records of notifications over the demo's statements and two more, of a response, and statuses."""
    settings = CoapIngestSettings()
    written = files.read(EXAMPLES / "demo" / "coap-source.properties")
    demo = plan_for(written.resolved({"COAP_SERVER": "localhost:5633"}), settings)
    plain = plan_for(files.parse(_PLAIN, form="properties"), settings)
    with seam.recorded_kafka(harness) as found:
        asyncio.run(_forward(harness, settings, demo, _DOCUMENT, observe=7))
        asyncio.run(_forward(harness, settings, plain, _LIGHT, observe=7))
        asyncio.run(_forward(harness, settings, demo, _DOCUMENT, observe=None))
        asyncio.run(_forward(harness, settings, demo, _UNREADABLE, observe=7))
        asyncio.run(_attest(harness, settings, plain))
        raw, reading, temperature, brightness, answer, _, _, dead, attested = found
        reports = [seam.connector_report(written.name)]
        _, worker, reported = seam.announced(SERVICE, CoapClasses(settings), reports, found)
        del found[:]
        connectors = service.connector_files(settings, [demo], [written])
        (follower,) = connectors._followers
        registry = CollectorRegistry()
        Metrics(registry)
        reporter = connectors._reporter(lambda: State.RUNNING, registry, written, follower)
        statuses = seam.reported(reporter, found)
        owned, plugin = found[:2]
    return {
        scenario.COAP_MESSAGE: raw,
        scenario.COAP_READING: reading,
        scenario.COAP_TEMPERATURE: temperature,
        scenario.COAP_BRIGHTNESS: brightness,
        scenario.COAP_ANSWER: answer,
        scenario.DEAD_LETTER: dead,
        scenario.ATTESTED: attested,
        scenario.CONNECTOR: owned,
        scenario.PLUGIN: plugin,
        scenario.WORKER: worker,
        scenario.WORKERS_CONNECTOR: reported,
        **statuses,
    }


async def _attest(harness: Harness, settings: CoapIngestSettings, connector: ConnectorPlan) -> None:
    with patch.object(pipeline_module, "SchemaRegistry", lambda _settings: harness.registry):
        encoders = {"thermostat.data": lambda _reading: b""}
        pipeline = Pipeline(settings, [connector], encoders, Metrics(CollectorRegistry()), Health())
    producer = pipeline._make_producer("producer", 0)
    await seam.attest(pipeline._attester, producer)
    producer.close()
    pipeline._producer_failed.cancel()


async def _forward(
    harness: Harness, settings: CoapIngestSettings, connector: ConnectorPlan, payload: str, *, observe: int | None
) -> None:
    """Let the pipeline's own forwarder and producer take one notification."""
    (server,) = connector.observe.servers
    routes = [rule.route_for_server(server) for rule in connector.rules]
    metrics = Metrics(CollectorRegistry())
    outlets = [
        Outlet(route, harness.registry.encoder(route.topic.name, schema_of(route.topic)), metrics.count_filtered)
        for route in routes
    ]
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
    queue: BoundedQueue[QueuedNotification] = BoundedQueue(10, 1_000_000)
    keys = {(connector.name, route.resource.uri): outlets for route in routes}
    pipeline = Pipeline(settings, [connector], {}, metrics, Health())
    producer = pipeline._make_producer("producer", 0)
    forwarder = Forwarder(queue, producer, keys, {connector.name: connector.dead_letter_topic}, metrics)
    running = asyncio.create_task(forwarder.run())
    queue.reserve(1_000)
    queue.put(QueuedNotification(connector.name, notification), len(notification.payload), reserved=1_000)
    await forwarder.settled()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    producer.close()
    pipeline._producer_failed.cancel()
