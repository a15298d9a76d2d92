"""The catalog against the code: every topic in code or configuration is declared, and every pinned version is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from isotherm import kcql
from isotherm import schemas as catalog
from isotherm.aggregator.frames import devices, readings
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.alerts.input import decoding, device_table_follower
from isotherm.alerts.live_rules import group_mean_follower, rule_records
from isotherm.alerts.notifications import route_runner, silence_follower
from isotherm.alerts.settings import AlertsSettings
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.attestation import attester
from isotherm.connector.commands import records as commands
from isotherm.connector.distributed import publishing, worker_status
from isotherm.connector.receipts import receipt
from isotherm.connector.state import readback, target_follower
from isotherm.console.devices import alerts as console_alerts
from isotherm.console.devices import device_states as console_devices
from isotherm.console.devices import provisioned as console_provisioned
from isotherm.console.devices import rules as console_rules
from isotherm.console.devices import silences as console_silences
from isotherm.console.devices import windows as console_windows
from isotherm.console.reconciliation import findings
from isotherm.console.trace import model as console_trace
from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.paths import EXAMPLES, ROOT
from isotherm.mqtt_proxy import pod_service, session_source
from isotherm.mqtt_proxy.settings import ProxySettings

TOPICS = {topic.name for topic in catalog.topics()}
DEAD_LETTERS = ".dead-letters"
# Words of the same shape that are something else: schema properties, structures in a Hazelcast cluster, a property of
# Iceberg's snapshots, files.
NO_TOPICS = {
    "isotherm.identity",
    "isotherm.event_time",
    "isotherm.revision",
    "isotherm.intents",
    "isotherm.markers",
    "isotherm.sinks",
    "isotherm.offsets",
    # Attributes of spans.
    "isotherm.aggregator",
    "isotherm.coap.code",
    "isotherm.connector",
    "isotherm.mqtt.qos",
    "isotherm.sink",
    "isotherm.task",
    "alerts.toml",
    "alerts.html",
    "devices.html",
}
SHAPE = re.compile(r"(isotherm|thermostat|temperatures|devices|alerts)(\.[a-z]+)+")
FOLDERS = [
    folder
    for pattern in ("services/*/src", "libs/*/src", "cli/src", "demo/src")
    for folder in ROOT.glob(f"{pattern}/isotherm/*")
    if folder.is_dir()
]
SOURCES = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))
PACKAGES = {f"isotherm.{folder.name}" for folder in FOLDERS}
"""Dotted names that begin with one of these are modules and not topics."""
PINNED: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("aggregator", "thermostat.data"): readings.READER,
    ("aggregator", "thermostat.late"): readings.READER,
    ("aggregator", "devices"): devices.READER,
    ("aggregator", "isotherm.connectors"): target_follower.READER,
    ("alerts", "thermostat.data"): decoding.READER,
    ("alerts", "temperatures.aggregated"): decoding.WINDOW_READER,
    ("alerts", "devices"): device_table_follower.READER,
    ("alerts", "alerts"): route_runner.READER,
    ("alerts", "isotherm.silences"): silence_follower.READER,
    ("alerts", "isotherm.rules"): rule_records.SCHEMA,
    ("alerts", "temperatures.grouped"): group_mean_follower.READER,
    ("console", "isotherm.rules"): console_rules.SCHEMA,
    ("console", "isotherm.silences"): console_silences.SCHEMA,
    ("alerts", "isotherm.connectors"): target_follower.READER,
    ("console", "isotherm.connectors"): target_follower.READER,
    ("console", "isotherm.plugins"): publishing.PLUGIN_SCHEMA,
    ("console", "isotherm.status"): worker_status.SCHEMA,
    ("console", "alerts"): console_alerts.SCHEMA,
    ("console", "devices"): console_provisioned.SCHEMA,
    ("console", "devices.latest"): console_devices.SCHEMA,
    ("console", "temperatures.aggregated"): console_windows.SCHEMA,
    ("console", "isotherm.attestations"): attester.SCHEMA,
    ("console", "isotherm.unreconciled"): findings.SCHEMA,
    ("console", "isotherm.receipts"): receipt.SCHEMA,
    ("console", "device.commands"): commands.COMMAND_SCHEMA,
    ("console", "isotherm.commands.open"): commands.OPEN_SCHEMA,
    ("console", "isotherm.commands.steps"): commands.STEP_SCHEMA,
    ("console", "device.command-outcomes"): commands.OUTCOME_SCHEMA,
    **{("console", topic): console_trace.SCHEMA for topic in (*console_trace.READING_TOPICS, console_trace.LATE_TOPIC)},
    ("mqtt-proxy", "isotherm.commands.open"): commands.OPEN_SCHEMA,
    ("mqtt-proxy", "isotherm.mqtt.claims"): pod_service.CLAIMS,
    ("mqtt-proxy", "isotherm.mqtt.sessions"): session_source.SESSION,
    ("mqtt-proxy", "isotherm.connectors"): target_follower.READER,
    ("coap-ingest", "isotherm.connectors"): target_follower.READER,
    ("persisters", "isotherm.connectors"): target_follower.READER,
    ("persisters", "isotherm.readback.requests"): readback.REQUEST_SCHEMA,
    ("console", "isotherm.readback.answers"): readback.ANSWER_SCHEMA,
}
"""What readers pin in their code. The others (persisters, the demo) read with the writer's own schema."""


def test_every_topic_that_code_names_is_declared() -> None:
    named = {
        (node.value, str(path.relative_to(ROOT)))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SHAPE.fullmatch(node.value)
    }
    assert {"thermostat.data", "temperatures.aggregated", "isotherm.status"} <= {name for name, _ in named}
    topics = {one for one in named if ".".join(one[0].split(".")[:2]) not in PACKAGES}
    assert [one for one in sorted(topics) if one[0] not in TOPICS | NO_TOPICS] == []


def _topics_in(settings: type[BaseModel]) -> Iterator[str]:
    for name, field in settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _topics_in(type(field.default))
        elif (name == "topic" or name.endswith("_topic")) and field.default is not None:
            # A topic of MQTT has placeholders.
            if "{" not in field.default:
                yield str(field.default)
        elif name.endswith("_topics"):
            yield from field.default


@pytest.mark.parametrize("settings", [AggregatorSettings, AlertsSettings, CoapIngestSettings, ProxySettings])
def test_every_topic_that_settings_default_to_is_declared(settings: type[BaseModel]) -> None:
    found = set(_topics_in(settings))
    assert found
    assert {name for name in found if not name.endswith(DEAD_LETTERS)} <= TOPICS


def _statements(path: Path) -> Iterator[tuple[kcql.Statement, bool]]:
    """The statements in a file, and whether their target is a topic (a source) or their source is (a sink)."""
    text = path.read_text(encoding="utf-8").replace("\\\n", "")
    if path.suffix == ".toml":
        for routes in re.findall(r'^routes\s*=\s*"""(.*?)"""', text, re.DOTALL | re.MULTILINE):
            yield from ((statement, True) for statement in kcql.parse(routes))
    for line in re.findall(r'kcql"?\s*[=:]\s*"?(.*?)"?,?$', text, re.MULTILINE):
        yield from ((statement, "coap" in path.name and "source" in path.name) for statement in kcql.parse(line))


def test_every_topic_that_the_examples_name_is_declared() -> None:
    found = {
        (statement.target if is_source else statement.source, path.name)
        for path in sorted(EXAMPLES.rglob("*"))
        if path.suffix in (".properties", ".json", ".toml")
        for statement, is_source in _statements(path)
    }
    assert {name for name, _ in found} >= {"thermostat.data", "coap_sensor_topic", "temperatures.grouped"}
    assert [one for one in found if one[0] not in TOPICS] == []


@pytest.mark.parametrize(("reader", "topic"), PINNED)
def test_code_pins_the_version_that_the_topic_file_says(reader: str, topic: str) -> None:
    declared = catalog.topic(topic)
    (version,) = (one.version for one in declared.readers if one.service == reader)
    assert declared.record is not None
    assert PINNED[reader, topic] == catalog.schema(declared.record, version)


def test_every_reader_either_pins_in_code_or_reads_as_it_was_written() -> None:
    readers = {(need.service, need.topic) for need in NEEDS if need.record}
    assert {service for service, topic in readers - set(PINNED)} == {"persisters", "demo"}


def test_a_service_that_does_not_exist_is_only_planned() -> None:
    exists = {path.name for path in ROOT.glob("services/*") if (path / "pyproject.toml").is_file()} | {"cli", "demo"}
    for topic in catalog.topics():
        for name in {*topic.writers, *(reader.service for reader in topic.readers)} - exists:
            planned = name not in topic.writers or name in topic.planned_writers
            assert planned, f"{topic.name}: {name} does not exist and is not planned"
            assert name not in {one.service for one in topic.readers} - topic.planned_readers, topic.name
