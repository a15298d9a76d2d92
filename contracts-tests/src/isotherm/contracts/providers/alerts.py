"""The alerts service as a provider: readings pass its processor, up to the bytes for its producer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import Producer

from isotherm.alerts import service
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.input.reading_converter import ReadingConverter
from isotherm.alerts.live_rules.live_rules import sources_of
from isotherm.alerts.live_rules.rule_records import TrialRequest
from isotherm.alerts.live_rules.trial_runner import TrialClients, TrialRunner
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.alerts.stream.outputs import Outputs
from isotherm.alerts.stream.processor import Processor
from isotherm.contracts import seam
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.servicekit.health import Health

SETTINGS = AlertsSettings.model_validate(
    {"rules": [{"kind": "above", "metric": "temperature", "threshold": 28, "hysteresis": 1}]}
)
PARTITIONS = 16
"""Partitions of the topics of readings, and so of the changelog: enough that partitioners differ for the scenario."""


def processor(harness: Harness, devices: DeviceTable, producer: Producer, metrics: Metrics) -> Processor:
    """Return the service's own processor with its parts, which writes to `producer`."""
    engine = RuleEngine(SETTINGS.rule_book(), devices.default_bounds, SETTINGS.reorder_ms)
    store = DeviceStateStore()
    store.own(range(PARTITIONS))
    outputs = Outputs(SETTINGS, harness.registry, metrics, producer)
    return Processor(
        engine,
        devices,
        store,
        outputs,
        metrics,
        SETTINGS.max_skew_ms,
        SETTINGS.max_publish_delay_ms,
        now_ms=lambda: scenario.TAKEN_IN_MS,
    )


def messages(harness: Harness) -> Mapping[str, Message]:
    """Return an alert of a thermostat that opens and closes, its newest state, a dead letter, and statuses."""
    metrics = Metrics()
    with seam.recorded_kafka(harness) as found:
        producer = service.outputs_producer(SETTINGS)
        devices = DeviceTable(SETTINGS.rule_book(), {})
        devices.put(scenario.DEVICE, {"home": None, "region": "north", "model": None, "thresholds": {}})
        asyncio.run(_live(processor(harness, devices, producer, metrics)))
        opened, closed = [one for one in found if one.topic == SETTINGS.alerts_topic]
        (state,) = [one for one in found if one.topic == SETTINGS.latest_topic]
        asyncio.run(_dead_letter(harness, metrics))
        dead = found[-1]
        del found[:]
        _answer(harness)
        outcome = found[-1]
        del found[:]
        statuses = seam.reported(_running(metrics)._reporter(), found)
    return {
        scenario.ALERT_OPENED: opened,
        scenario.ALERT_CLOSED: closed,
        scenario.DEVICE_STATE: state,
        scenario.DEAD_LETTER: dead,
        scenario.RULE_OUTCOME: outcome,
        **statuses,
    }


async def _live(service: Processor) -> None:
    for index, value in enumerate((29.5, 21.5)):
        at_ms = scenario.MEASURED_MS + index
        reading = Reading(scenario.DEVICE, "temperature", value, "Cel", at_ms, scenario.TAKEN_IN_MS, index + 1)
        await service.process("thermostat.data", 0, reading)
    await service.drain()


async def _dead_letter(harness: Harness, metrics: Metrics) -> None:
    dead = service._dead_letter_producer(SETTINGS, SETTINGS.name)
    topic = SETTINGS.dead_letter_topic
    converter = ReadingConverter(harness.registry, dead, topic, SETTINGS.name, metrics, Health())
    headers = [("mqtt.topic", b"devices/dev-0001/temperature")]
    record = source("thermostat.data", 0, scenario.DEVICE, b'{"t":21.5}', headers)
    assert await converter.convert(record) is None


def _answer(harness: Harness) -> None:
    """Answer a request to check a rule."""
    clients = service._rule_clients(SETTINGS)
    runner = TrialRunner(
        SETTINGS.rules_topic,
        SETTINGS.input_topics,
        SETTINGS.groups_topic,
        TrialClients(clients.trial, clients.outcomes, harness.registry),
        sources_of(SETTINGS),
        lambda rule: cast(Any, rule),
        lambda: True,
        SETTINGS.name,
        now_ms=lambda: scenario.START_MS,
    )
    runner.request(TrialRequest("trial/1", scenario.RULE_DEFINITION, 0, "user", scenario.START_MS))
    runner._answer_next()
    runner._write(clients.outcomes())


def source(topic: str, partition: int, key: str, value: bytes, headers: object) -> Any:
    """Return a record as the stream reads it."""
    return SimpleNamespace(
        topic=topic,
        partition=partition,
        offset=4,
        timestamp=scenario.TAKEN_IN_MS / 1000,
        key=key.encode(),
        value=value,
        headers=headers,
    )


def _running(metrics: Metrics) -> service.Alerts:
    """Return the service as it is when it has recovered."""
    alerts = service.Alerts(SETTINGS)
    alerts._metrics = metrics
    alerts._runner = cast(Any, SimpleNamespace(is_recovered=lambda: True, is_paused=lambda: False))
    return alerts
