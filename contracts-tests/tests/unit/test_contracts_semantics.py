"""Promises of topic files beyond Avro, checked on what providers write and on the examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from isotherm import schemas as catalog
from isotherm.contracts.harness import Harness
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.semantics import violations
from isotherm.contracts.providers import Messages
from isotherm.servicekit.avro import split

# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

EXAMPLES = [example for topic in catalog.topics() for example in catalog.examples(topic.name)]
AGGREGATE = catalog.schema("TemperatureAggregate", 1)


def test_real_messages_keep_every_promise(harness: Harness, produced: Mapping[str, Messages]) -> None:
    for provider, messages in produced.items():
        for name, message in messages.items():
            if name == scenario.DEAD_LETTER:
                continue  # Its topic is named by a connector, and it holds what could not be read.
            topic = catalog.topic(message.topic)
            writer = harness.registry.schema(split(message.value)).json
            value = harness.decode(message.value)
            assert provider in set(topic.writers) - topic.planned_writers, f"{provider} writes {topic.name}"
            broken = violations(topic, writer, message.key, value, message.headers, provider)
            assert broken == [], f"{provider}, {name}"


def test_every_writer_that_is_not_planned_is_seen_writing(produced: Mapping[str, Messages]) -> None:
    seen = {
        (message.topic, provider)
        for provider, messages in produced.items()
        for name, message in messages.items()
        if name != scenario.DEAD_LETTER
    }
    declared = {
        (topic.name, writer) for topic in catalog.topics() for writer in set(topic.writers) - topic.planned_writers
    }
    assert seen == declared


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.topic}/{example.name}")
def test_examples_keep_every_promise(example: catalog.Example) -> None:
    topic = catalog.topic(example.topic)
    assert topic.record is not None
    assert topic.version is not None
    schema = catalog.schema(topic.record, topic.version)
    defaults = {field["name"]: field["default"] for field in schema["fields"] if "default" in field}
    value = {**defaults, **example.value}
    # An example does not say who wrote it: one of the writers must have been able to.
    answers = [violations(topic, schema, example.key, value, example.headers, writer) for writer in topic.writers]
    assert [] in answers, answers


def _of(topic: str, **changes: Any) -> list[str]:
    example = catalog.examples(topic)[-1]
    declared = catalog.topic(topic)
    assert declared.record is not None
    key, headers = changes.pop("key", example.key), changes.pop("headers", example.headers)
    schema = catalog.schema(declared.record, 1)
    return violations(declared, schema, key, {**example.value, **changes}, headers, declared.writers[0])


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (_of("thermostat.data", key="temperature"), "key: 'temperature' instead of 'dev-0001'"),
        (_of("thermostat.data", event_time=1_767_225_612), "event_time: 1767225612 is no epoch milliseconds"),
        (_of("thermostat.data", unit="Far"), "unit: temperature in 'Far' instead of 'Cel'"),
        (_of("thermostat.data", sequence=-1), "sequence: -1 is below 0"),
        (_of("thermostat.data", headers={"mqtt.topic": "a", "mqtt.qos": "1"}), "header mqtt.client_id: missing"),
        (_of("thermostat.data", device_id="", key=""), "device_id: empty, and part of the identity"),
        (_of("temperatures.aggregated", min=30.0), "min, mean, max: [30.0, 21.0, 22.0] do not ascend"),
        (_of("temperatures.aggregated", count=0), "count: 0 is below 1"),
        (_of("temperatures.aggregated", window_start=1_767_225_600_500), "is not aligned to windows of 59500 ms"),
        (_of("temperatures.aggregated", key="a|b"), "key: 'a|b' instead of 'dev-0001|temperature|"),
        (_of("isotherm.status", state="BUSY"), "state: 'BUSY' is none of UNASSIGNED, RUNNING"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_promise_is_named(broken: list[str], says: str) -> None:
    assert any(says in line for line in broken), broken


def test_a_header_that_no_topic_file_knows_is_named() -> None:
    headers = {**catalog.examples("thermostat.data")[-1].headers, "x-debug": "1"}
    assert _of("thermostat.data", headers=headers) == ["header x-debug: not declared"]


@pytest.mark.parametrize(("provider", "name"), [("aggregator", "a finished window")])
def test_revision_and_key_of_a_window_order_its_corrections(
    harness: Harness, produced: Mapping[str, Messages], provider: str, name: str
) -> None:
    """The revision is the batch's time in epoch milliseconds, so a later batch's is higher."""
    value = harness.decode(produced[provider][name].value)
    assert value["revision"] > value["window_end"] > value["window_start"]
    assert AGGREGATE["isotherm.revision"] == "revision"
