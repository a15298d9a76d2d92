"""The MQTT proxy: publishes through its router, its translator and its session records, and its own status."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from isotherm.connector.attestation.attester import Attester
from isotherm.connector.commands.records import SENDING, STEP_SCHEMA, STEPS, CommandStep
from isotherm.connector.commands.steps import StepWriter
from isotherm.contracts import seam
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.paths import EXAMPLES
from isotherm.mqtt_proxy import kafka_clients
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.bridge.connector_class import MqttClasses
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.commands.command_answers import CommandAnswers
from isotherm.mqtt_proxy.commands.command_topics import CommandTopics
from isotherm.mqtt_proxy.hotpath import attested_runs
from isotherm.mqtt_proxy.ingest.configuration import build_router, build_rules
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.translation import IngestContext, Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.pod_service import CLAIMS
from isotherm.mqtt_proxy.pods import records as pod_records
from isotherm.mqtt_proxy.service import READING
from isotherm.mqtt_proxy.session_source import SESSION
from isotherm.mqtt_proxy.sessions.records import to_record
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.sessions.store import StoredState, Subscription
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit.health import Health
from isotherm.servicekit.settings import load

IN_FLIGHT = StoredState(
    epoch=3,
    expiry_s=86_400,
    expires_at_ms=scenario.START_MS,
    committed={7: 2_771_284_651},
    owner=0,
)
SUBSCRIBED = StoredState(
    epoch=2,
    expiry_s=86_400,
    expires_at_ms=scenario.START_MS,
    owner=0,
    subscriptions=(Subscription("devices/dev-0001/commands/#", 1, 7),),
)
WITH_WILL = StoredState(
    epoch=4,
    expiry_s=3_600,
    expires_at_ms=None,
    owner=0,
    username="kitchen",
    will=Publish("devices/dev-0001/gone", b"bye", qos=1, retain=True, properties={Property.CONTENT_TYPE: "text/plain"}),
    will_due_ms=scenario.START_MS,
)
_REGEX_LIST = "temperature:.*temperature, brightness:.*brightness"


def messages(harness: Harness) -> Mapping[str, Message]:
    """Readings over the demo's routes and the documents' regex list, a dead letter, a session, and statuses."""
    at = {"ts": scenario.MEASURED_MS, "seq": 17}
    settings = _settings(EXAMPLES / "demo" / "mqtt-proxy.toml")
    demo = _translator(harness, settings)
    document = _translator(harness, _settings(overrides=["allow_anonymous=true", f"topic_regex_list={_REGEX_LIST}"]))
    device = scenario.DEVICE
    name = ServerName(settings.name)
    with seam.recorded_kafka(harness) as found:
        producer = kafka_clients.build_producer(settings, name.transactional_id(0))
        _produce(producer, _published(demo, f"devices/{device}/temperature", {"id": device, "t": 21.5, **at}))
        _produce(producer, _published(demo, f"devices/{device}/brightness", {"id": device, "b": 310, **at}))
        _produce(producer, _published(document, "home/kitchen/temperature", {"value": 19.25}))
        _produce(producer, _published(demo, f"devices/{device}/temperature", {"id": device, "t": "warm", **at}))
        transactional = kafka_clients.build_transactional_producer(settings, name.transactional_id(0))
        _produce(
            transactional, [_session(harness, settings, name, state) for state in (IN_FLIGHT, WITH_WILL, SUBSCRIBED)]
        )
        _produce(kafka_clients.build_claims_producer(settings, "pod"), [_claim(harness, settings, name)])
        asyncio.run(_attest(harness, settings))
        asyncio.run(_step(harness, settings))
        reading, brightness, temperature, dead, session, will, subscribed, *others = found
        claim, attested, sending, answered = others
        reports = [seam.connector_report("bridge")]
        plugin, worker, reported = seam.announced(SERVICE, MqttClasses(settings), reports, found)
        del found[:]
        statuses = _statuses(settings, name, found)
    return {
        scenario.READING: reading,
        scenario.BRIGHTNESS: brightness,
        scenario.TEMPERATURE_BY_REGEX: temperature,
        scenario.DEAD_LETTER: dead,
        scenario.SESSION: session,
        scenario.SESSION_WITH_WILL: will,
        scenario.SESSION_SUBSCRIBED: subscribed,
        scenario.CLAIM: claim,
        scenario.STEP_SENDING: sending,
        scenario.STEP_ANSWERED: answered,
        scenario.ATTESTED: attested,
        scenario.PLUGIN: plugin,
        scenario.WORKER: worker,
        scenario.WORKERS_CONNECTOR: reported,
        **statuses,
    }


def _settings(file: Path | None = None, overrides: list[str] | None = None) -> ProxySettings:
    return load(ProxySettings, SERVICE, environ=os.environ, file=file, overrides=overrides or ())


def _translator(harness: Harness, settings: ProxySettings) -> Translator:
    router = build_router(settings)
    encoders = {topic: harness.registry.encoder(topic, READING) for topic in router.targets}
    return Translator(router, encoders, build_rules(settings))


def _published(translator: Translator, topic: str, payload: Mapping[str, object]) -> Iterable[ProducerRecord]:
    publish = Publish(topic, json.dumps(payload).encode(), qos=2)
    return translator.translate(publish, IngestContext("kitchen", scenario.TAKEN_IN_MS)).records


def _produce(producer: Producer, records: Iterable[ProducerRecord]) -> None:
    for record in records:
        producer.produce(record.topic, value=record.value, key=record.key, headers=list(record.headers))


def _session(harness: Harness, settings: ProxySettings, name: ServerName, state: StoredState) -> ProducerRecord:
    topic = settings.session.topic
    record = to_record("simulator-1", state, owner=0, now_ms=scenario.TAKEN_IN_MS)
    return ProducerRecord(topic, name.session_key("simulator-1"), harness.registry.encoder(topic, SESSION)(record), [])


async def _attest(harness: Harness, settings: ProxySettings) -> None:
    attester = Attester(
        harness.registry,
        SERVICE,
        seam.WORKER,
        interval_ms=settings.attestations.interval_ms,
        is_attested=lambda _topic: True,
        make_runs=attested_runs,
    )
    producer = kafka_clients.build_loop_producer(settings, "a-client")
    await seam.attest(attester, producer)
    producer.close()


async def _step(harness: Harness, settings: ProxySettings) -> None:
    """Write that a command is about to be sent, and what its device answers."""
    producer = kafka_clients.build_loop_producer(settings, "a-client")
    encode = harness.registry.encoder(STEPS, STEP_SCHEMA)
    steps = _StepsAt(producer, encode, service=SERVICE, worker=seam.WORKER)
    steps.write(steps.step(scenario.DEVICE, scenario.COMMAND_ID, SENDING, 1), lambda _is_stored: None)
    topics = CommandTopics(settings.commands.topic, settings.commands.response_topic)
    answers = CommandAnswers(topics, steps, AccessControl(settings, Metrics()))
    topic = topics.response_topic(scenario.DEVICE, scenario.COMMAND_ID)
    assert topic is not None
    publish = Publish(topic, b'{"ok":true}', 1, properties={Property.CONTENT_TYPE: "application/json"})
    record = answers.record(publish, client_id=scenario.DEVICE, username=None)
    assert record is not None
    _produce(producer.producer, [record])
    producer.close()


class _StepsAt(StepWriter):
    """Steps that are done at the scenario's time."""

    def step(self, *names: Any, **more: Any) -> CommandStep:
        return super().step(*names, **more)._replace(at_ms=scenario.TAKEN_IN_MS)


def _claim(harness: Harness, settings: ProxySettings, name: ServerName) -> ProducerRecord:
    topic, incarnation = settings.pods.topic, "mqtt-0/5f2b"
    (texts,) = pod_records.batches([("beat",), ("claim", 64, "simulator-1", "kitchen", False)])
    record = pod_records.to_record(incarnation, 7, texts, scenario.TAKEN_IN_MS)
    value = harness.registry.encoder(topic, CLAIMS)(record)
    return ProducerRecord(topic, pod_records.Keys(name).pod(incarnation), value, [])


def _statuses(settings: ProxySettings, name: ServerName, found: list[Message]) -> Mapping[str, Message]:
    health, metrics, registry = Health(), Metrics(), CollectorRegistry()
    registry.register(metrics)
    health.ready()
    target = kafka_clients.build_target_state(settings, name.connector, health, metrics)
    target._follower._current.set()
    return seam.reported(target.reporter(registry), found)
