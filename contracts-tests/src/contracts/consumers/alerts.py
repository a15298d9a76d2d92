"""What the alerts service needs: readings to look at, what is known of their devices, and what is wanted of itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pact import match

from alerts import webhook
from alerts.intake import Intake
from alerts.known import KnownDevices
from alerts.known_follower import READER as DEVICE
from alerts.metrics import Metrics
from connector.publishing import CONNECTORS
from contracts import scenario
from contracts.bench import Bench, Message, RecordingProducer
from contracts.consumers.standalone import obeys
from contracts.needs import Need, UnusableError, expect
from contracts.providers.alerts import PARTITION, SETTINGS, processor
from servicekit.avro import Decoder
from servicekit.health import Health

_TOPIC = SETTINGS.input_topics[0]


def _looks(bench: Bench, found: Message) -> None:
    recorder, metrics = RecordingProducer(), Metrics()

    async def take() -> None:
        intake = Intake(bench.registry, recorder.as_producer(), "dead", SETTINGS.name, metrics, Health())
        record = SimpleNamespace(
            topic=found.topic, partition=PARTITION, offset=0, key=found.key.encode(), value=found.value, headers=[]
        )
        reading = await intake.reading(record)
        if reading is None:
            raise UnusableError("dead letter")
        # Its partition, and so its memory, goes by the key.
        expect("device_id", reading.device_id, found.key)
        service = processor(bench, KnownDevices(SETTINGS.rule_book(), {}), recorder, metrics)
        await service.take(found.topic, PARTITION, reading)

    asyncio.run(take())
    changes = [one for one in recorder.messages if one.topic == SETTINGS.changelog]
    expect("memories written", len(changes), 1)


def _knows(bench: Bench, found: Message) -> None:
    known = KnownDevices(SETTINGS.rule_book(), {})
    expect("unknown thresholds", known.put(found.key, Decoder(bench.registry, DEVICE)(found.value).record), [])
    device = known.get(found.key)
    if device is None:
        raise UnusableError("nothing is known of it")
    expect("home", device.attributes["home"], bench.decode(found.value)["home"])


def _reading(provider: str, name: str, key: str, event_time_ms: int, sequence: int) -> Need:
    value: Mapping[str, Any] = {
        "device_id": key,
        "metric": "temperature",
        "value": match.number(21.5),
        # Thresholds are in it.
        "unit": "Cel",
        "event_time": event_time_ms,
        "ingest_time": scenario.TAKEN_IN_MS,
        "sequence": sequence,
    }
    return Need("alerts", provider, name, _TOPIC, "SensorReading", 1, key, value, _looks)


def _posts(bench: Bench, found: Message) -> None:
    key, body = webhook.post_of(Decoder(bench.registry, webhook.READER)(found.value).record)
    expect("key", key, f"{scenario.DEVICE}/above/temperature/{scenario.MEASURED_MS}/opened")
    expect("opened_at", json.loads(body)["opened_at"], "2026-01-01T00:00:12+00:00")


NEEDS = (
    Need(
        "alerts",
        "alerts",
        scenario.ALERT_OPENED,
        SETTINGS.alerts_topic,
        "Alert",
        1,
        key=scenario.DEVICE,
        value={
            "alert_id": f"{scenario.DEVICE}/above/temperature/{scenario.MEASURED_MS}",
            "device_id": scenario.DEVICE,
            "rule": "above",
            "severity": match.type("warning"),
            "state": "opened",
            "opened_at": scenario.MEASURED_MS,
            "message": match.type("temperature 29.5 Cel is above 28.0 Cel"),
        },
        process=_posts,
    ),
    _reading("mqtt-proxy", scenario.READING, scenario.DEVICE, scenario.MEASURED_MS, 17),
    _reading("coap-ingest", scenario.COAP_READING, "Sensor4", 1_486_997_194_029, 0),
    Need(
        "alerts",
        "cli",
        scenario.DEVICE_KNOWN,
        SETTINGS.devices_topic,
        "Device",
        1,
        key=scenario.DEVICE,
        value={"home": "home-01", "region": "north", "model": "T1", "thresholds": {}},
        process=_knows,
    ),
    Need(
        "alerts",
        "cli",
        scenario.DEVICE_UNKNOWN,
        SETTINGS.devices_topic,
        "Device",
        1,
        key=scenario.OTHER_DEVICE,
        value={"home": None, "region": None, "model": None, "thresholds": {}},
        process=_knows,
    ),
    Need(
        "alerts",
        "persisters",
        scenario.CONNECTOR,
        CONNECTORS,
        "ConnectorConfig",
        2,
        key="coap-to-hazelcast",
        value={"name": "coap-to-hazelcast", "target_state": "STARTED", "restart_count": match.integer(0)},
        process=obeys,
    ),
)
