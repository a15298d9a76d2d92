"""Every example and generated records pass the real decoding and processing of every consumer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isotherm import schemas as catalog
from isotherm.aggregator.frames import readings
from isotherm.contracts.compatibility.generated_records import values
from isotherm.contracts.consumers import (
    NEEDS,
    aggregator,
    demo,
    persisters,
)
from isotherm.contracts.harness import Harness, Message
from isotherm.mqtt_proxy.session_source import SESSION
from isotherm.mqtt_proxy.sessions.records import from_record, to_record
from isotherm.servicekit.avro import Decoder

# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

by_chance = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
DRAINED = sorted(
    {(need.consumer, need.topic) for need in NEEDS if need.consumer.startswith("persisters-")}
    | {(persisters.ELASTICSEARCH, "alerts")}
)
"""The topics that each persister reads; alerts, too, although no provider writes them yet."""
TOPICS = sorted({topic for _, topic in DRAINED})


def _message(harness: Harness, topic: str, value: Mapping[str, Any], key: str, headers: Mapping[str, str]) -> Message:
    declared = catalog.topic(topic)
    assert declared.record is not None
    assert declared.version is not None
    return Message(topic, key, harness.encode(topic, declared.record, declared.version, value), headers)


def _examples(harness: Harness, topic: str) -> list[Message]:
    found = catalog.examples(topic)
    assert found
    return [_message(harness, topic, one.value, one.key, one.headers) for one in found]


def _schema(topic: str) -> Mapping[str, Any]:
    declared = catalog.topic(topic)
    assert declared.record is not None
    assert declared.version is not None
    return catalog.schema(declared.record, declared.version)


@pytest.mark.parametrize(("consumer", "topic"), DRAINED)
def test_examples_become_rows(harness: Harness, consumer: str, topic: str) -> None:
    for message in _examples(harness, topic):
        (row,) = persisters.rows(harness, consumer, message)
        assert row.values is not None
        assert set(row.values) == {field["name"] for field in _schema(topic)["fields"]}


@pytest.mark.parametrize(("consumer", "topic"), DRAINED)
def test_records_by_chance_become_rows(harness: Harness, consumer: str, topic: str) -> None:
    @by_chance
    @given(values(_schema(topic)))
    def becomes_a_row(record: Mapping[str, Any]) -> None:
        message = _message(harness, topic, record, "key", {})
        (row,) = persisters.rows(harness, consumer, message)
        assert row.values == harness.decode(message.value)

    becomes_a_row()


def test_every_topic_of_the_demo_is_identified(harness: Harness) -> None:
    for topic in sorted({need.topic for need in demo.NEEDS}):
        for message in _examples(harness, topic):
            demo.identifies(harness, message)


@by_chance
@given(value=values(catalog.schema("SensorReading", 1)))
def test_readings_by_chance_are_identified(harness: Harness, value: Mapping[str, Any]) -> None:
    demo.identifies(harness, _message(harness, "thermostat.data", value, "key", {}))


def test_sessions_are_restored(harness: Harness) -> None:
    for message in _examples(harness, "isotherm.mqtt.sessions"):
        record = Decoder(harness.registry, SESSION)(message.value).record
        assert from_record(record).committed == {7: 2771284651, 8: 11259375}


@by_chance
@given(value=values(SESSION))
def test_sessions_by_chance_come_back(harness: Harness, value: Mapping[str, Any]) -> None:
    message = _message(harness, "isotherm.mqtt.sessions", value, "key", {})
    state = from_record(Decoder(harness.registry, SESSION)(message.value).record)
    again = to_record(value["client_id"], state, owner=value["owner"], now_ms=value["updated_at"])
    committed = {entry["packet_id"]: entry["crc32"] for entry in value["committed"]}
    assert {entry["packet_id"]: entry["crc32"] for entry in again["committed"]} == committed
    assert {name: again[name] for name in ("epoch", "expiry_s", "expires_at")} == {
        name: value[name] for name in ("epoch", "expiry_s", "expires_at")
    }


def test_example_readings_and_devices_reach_the_aggregation(harness: Harness) -> None:
    # Whether a reading is late is told by its ingest time and the broker's append time.
    examples = zip(_examples(harness, "thermostat.data"), catalog.examples("thermostat.data"), strict=True)
    found = [
        aggregator.read(harness, [message], datetime.fromtimestamp(example.value["ingest_time"] / 1000, UTC))
        for message, example in examples
    ]
    assert [verdict for ((_, verdict),) in found] == [None, None]
    devices = aggregator.read_devices(harness, _examples(harness, "devices"))
    assert {row["device_id"]: row["room"] for row in devices} == {
        "dev-0001": "kitchen",
        "dev-0002": None,
        "dev-0003": None,
    }


@settings(by_chance, max_examples=3)
@given(sent=st.lists(values(catalog.schema("SensorReading", 1)), min_size=20, max_size=40))
def test_readings_by_chance_are_aggregated_or_refused_with_a_reason(
    harness: Harness, sent: list[Mapping[str, Any]]
) -> None:
    messages = [_message(harness, "thermostat.data", value, "key", {}) for value in sent]
    found = aggregator.read(harness, messages)
    assert len(found) == len(sent)
    for value, (reading, verdict) in zip(sent, found, strict=True):
        assert verdict is None or verdict in readings.REASONS
        assert verdict not in ("no-value", "not-framed", "unknown-schema", "corrupt"), json.dumps(value)
        assert (reading["device_id"], reading["metric"]) == (value["device_id"], value["metric"])
        assert reading["value"] == value["value"]
