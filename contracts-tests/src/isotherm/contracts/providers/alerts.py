"""The alerts service as a provider: readings pass its processor, up to the bytes for its producer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.metrics import PREFIX, Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.alerts.stream.outputs import Outputs
from isotherm.alerts.stream.processor import Processor
from isotherm.connector.standalone.reporting import counts_of
from isotherm.connector.state.status import State
from isotherm.contracts.harness import (
    Harness,
    Message,
    RecordingProducer,
    heartbeat,
)
from isotherm.contracts.pact import scenario

SETTINGS = AlertsSettings.model_validate(
    {"rules": [{"kind": "above", "metric": "temperature", "threshold": 28, "hysteresis": 1}]}
)
PARTITION = 0


def processor(harness: Harness, devices: DeviceTable, recorder: RecordingProducer, metrics: Metrics) -> Processor:
    """Return the service's own processor with its parts, which writes to a recorder."""
    engine = RuleEngine(SETTINGS.rule_book(), devices.default_bounds, SETTINGS.reorder_ms)
    store = DeviceStateStore()
    store.own([PARTITION])
    outputs = Outputs(SETTINGS, harness.registry, metrics, recorder.as_producer())
    return Processor(engine, devices, store, outputs, metrics, SETTINGS.max_skew_ms, SETTINGS.max_publish_delay_ms)


def messages(harness: Harness) -> Mapping[str, Message]:
    """Return an alert of a thermostat that opens and closes, the device's newest state, and a heartbeat."""
    recorder, metrics = RecordingProducer(), Metrics()
    asyncio.run(_live(processor(harness, DeviceTable(SETTINGS.rule_book(), {}), recorder, metrics)))
    opened, closed = [one for one in recorder.messages if one.topic == SETTINGS.alerts_topic]
    (state,) = [one for one in recorder.messages if one.topic == SETTINGS.latest_topic]
    return {
        scenario.ALERT_OPENED: opened,
        scenario.ALERT_CLOSED: closed,
        scenario.DEVICE_STATE: state,
        scenario.HEARTBEAT: heartbeat(
            harness, SETTINGS.name, State.RUNNING, lambda: counts_of(metrics.registry, PREFIX)
        ),
    }


async def _live(service: Processor) -> None:
    for index, value in enumerate((29.5, 21.5)):
        at_ms = scenario.MEASURED_MS + index
        reading = Reading(scenario.DEVICE, "temperature", value, "Cel", at_ms, scenario.TAKEN_IN_MS, index + 1)
        await service.process("thermostat.data", PARTITION, reading)
    await service.drain()
