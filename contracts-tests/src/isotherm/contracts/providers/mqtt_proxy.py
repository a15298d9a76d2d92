"""The MQTT proxy: publishes through its router, its translator and its session records, and its own status."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry

from isotherm.connector.distributed.publishing import plugin_messages
from isotherm.connector.standalone.reporting import counts_of
from isotherm.connector.state.status import State
from isotherm.contracts.harness import (
    Harness,
    Message,
    heartbeat,
    message,
)
from isotherm.contracts.pact import scenario
from isotherm.contracts.paths import EXAMPLES
from isotherm.mqtt_proxy.bridge.connector_class import DEFINITION
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.ingest.configuration import build_router, build_rules
from isotherm.mqtt_proxy.ingest.translation import IngestContext, Translator
from isotherm.mqtt_proxy.metrics import PREFIX, Metrics
from isotherm.mqtt_proxy.service import READING, SESSION
from isotherm.mqtt_proxy.sessions.records import to_record
from isotherm.mqtt_proxy.sessions.store import StoredState
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit.settings import load

_REGEX_LIST = "temperature:.*temperature, brightness:.*brightness"


def messages(harness: Harness) -> Mapping[str, Message]:
    """Readings over the demo's routes and the documents' regex list, and the state of a session."""
    at = {"ts": scenario.MEASURED_MS, "seq": 17}
    demo = _translator(harness, _settings(EXAMPLES / "demo" / "mqtt-proxy.toml"))
    document = _translator(harness, _settings(overrides=["allow_anonymous=true", f"topic_regex_list={_REGEX_LIST}"]))
    device = scenario.DEVICE
    return {
        scenario.READING: _published(demo, f"devices/{device}/temperature", {"id": device, "t": 21.5, **at}),
        scenario.BRIGHTNESS: _published(demo, f"devices/{device}/brightness", {"id": device, "b": 310, **at}),
        scenario.TEMPERATURE_BY_REGEX: _published(document, "home/kitchen/temperature", {"value": 19.25}),
        scenario.SESSION: _session(harness),
        scenario.HEARTBEAT: _heartbeat(harness),
        scenario.PLUGIN: _plugin(harness),
    }


def _settings(file: Path | None = None, overrides: list[str] | None = None) -> ProxySettings:
    return load(ProxySettings, SERVICE, environ=os.environ, file=file, overrides=overrides or ())


def _translator(harness: Harness, settings: ProxySettings) -> Translator:
    router = build_router(settings)
    encoders = {topic: harness.registry.encoder(topic, READING) for topic in router.targets}
    return Translator(router, encoders, build_rules(settings))


def _published(translator: Translator, topic: str, payload: Mapping[str, object]) -> Message:
    publish = Publish(topic, json.dumps(payload).encode(), qos=2)
    (record,) = translator.translate(publish, IngestContext("kitchen", scenario.TAKEN_IN_MS)).records
    return message(record.topic, record.key, record.value, record.headers)


def _session(harness: Harness) -> Message:
    topic = _settings(EXAMPLES / "demo" / "mqtt-proxy.toml").session.topic
    state = StoredState(epoch=3, expiry_s=86_400, expires_at_ms=scenario.START_MS, committed={7: 2_771_284_651})
    record = to_record("simulator-1", state, owner=0, now_ms=scenario.TAKEN_IN_MS)
    return message(topic, "simulator-1", harness.registry.encoder(topic, SESSION)(record))


def _plugin(harness: Harness) -> Message:
    """What a worker says of its class."""
    ((topic, key, value),) = plugin_messages(harness.registry, [DEFINITION], "0.9.0")
    return message(topic, key, value)


def _heartbeat(harness: Harness) -> Message:
    counted = CollectorRegistry()
    counted.register(Metrics())
    return heartbeat(harness, SERVICE, State.RUNNING, lambda: counts_of(counted, f"{PREFIX}_"))
