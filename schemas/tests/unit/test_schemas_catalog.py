"""The parts of the catalog agree with each other: topics, schemas, examples."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import fastavro
import pytest

from isotherm import schemas as catalog

TOPICS = catalog.topics()
WRITTEN = [topic for topic in TOPICS if topic.record is not None]
EXAMPLES = [example for topic in WRITTEN for example in catalog.examples(topic.name)]
SERVICES = {"mqtt-proxy", "coap-ingest", "aggregator", "persisters", "alerts", "console", "cli", "demo"}


def _schema(topic_name: str) -> dict[str, Any]:
    topic = catalog.topic(topic_name)
    assert topic.record is not None
    assert topic.version is not None
    return catalog.schema(topic.record, topic.version)


def _instants(schema: Mapping[str, Any]) -> set[str]:
    def is_instant(kind: object) -> bool:
        if isinstance(kind, list):
            return any(is_instant(branch) for branch in kind)
        return isinstance(kind, dict) and kind.get("logicalType") == "timestamp-millis"

    return {field["name"] for field in schema["fields"] if is_instant(field["type"])}


def test_the_book_is_not_empty() -> None:
    assert len(TOPICS) >= 15
    assert len(EXAMPLES) >= 15


@pytest.mark.parametrize("record", catalog.records())
def test_every_schema_belongs_to_a_topic_and_parses(record: str) -> None:
    assert any(topic.record == record for topic in TOPICS)
    assert catalog.versions(record)[0] == 1
    for version in catalog.versions(record):
        fastavro.parse_schema(catalog.schema(record, version), named_schemas={})


@pytest.mark.parametrize("record", catalog.records())
def test_identity_event_time_and_revision_name_fields_of_the_record(record: str) -> None:
    for version in catalog.versions(record):
        schema = catalog.schema(record, version)
        names = {field["name"] for field in schema["fields"]}
        assert schema["isotherm.identity"]
        assert set(schema["isotherm.identity"]) <= names
        if "isotherm.event_time" in schema:
            assert schema["isotherm.event_time"] in _instants(schema)
        if "isotherm.revision" in schema:
            assert schema["isotherm.revision"] in names


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_topic_names_known_services_and_existing_versions(topic: catalog.Topic) -> None:
    assert set(topic.writers) | {reader.service for reader in topic.readers} <= SERVICES
    assert topic.owner in SERVICES
    assert topic.planned_writers <= set(topic.writers)
    assert topic.planned_readers <= {reader.service for reader in topic.readers}
    assert topic.partitions > 0
    assert topic.config["cleanup.policy"] in {"compact", "delete", "compact,delete"}
    if topic.record is None:
        return
    assert topic.version == catalog.versions(topic.record)[-1]
    assert topic.compatibility == "FULL_TRANSITIVE"
    assert topic.writers
    for reader in topic.readers:
        assert reader.version in catalog.versions(topic.record)


@pytest.mark.parametrize("topic", WRITTEN, ids=lambda topic: topic.name)
def test_every_written_topic_has_examples(topic: catalog.Topic) -> None:
    assert catalog.examples(topic.name)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.topic}/{example.name}")
def test_example_survives_its_schema(example: catalog.Example) -> None:
    schema = _schema(example.topic)
    names = {field["name"] for field in schema["fields"]}
    # What an older writer wrote lacks the fields that came later; each of them has a default.
    optional = {field["name"] for field in schema["fields"] if "default" in field}
    assert set(example.value) <= names
    assert names - set(example.value) <= optional
    parsed = fastavro.parse_schema(schema, named_schemas={})
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, dict(example.value), strict_allow_default=True)
    buffer.seek(0)
    again = fastavro.schemaless_reader(buffer, parsed, None)
    assert isinstance(again, dict)
    assert set(again) == names
    for name in _instants(schema) & {name for name, value in example.value.items() if value is not None}:
        assert int(again[name].timestamp() * 1000) == example.value[name]


@pytest.mark.parametrize("record", catalog.records())
def test_every_field_is_in_some_example(record: str) -> None:
    shown = {
        name
        for topic in WRITTEN
        if topic.record == record
        for example in catalog.examples(topic.name)
        for name in example.value
    }
    declared = {field["name"] for field in catalog.schema(record, catalog.versions(record)[-1])["fields"]}
    assert declared - shown == set(), f"no example of {record} shows these fields"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.topic}/{example.name}")
def test_example_has_the_declared_key(example: catalog.Example) -> None:
    key = catalog.topic(example.topic).key
    if "field" in key:
        assert example.key == example.value[key["field"]]
    elif "|" in key["format"]:
        parts = [name.removesuffix("_ms") for name in key["format"].split("|")]
        assert example.key == "|".join(quote(str(example.value[part]), safe=" /:") for part in parts)
    else:
        assert example.key


def test_topics_joined_on_the_device_have_equal_partition_counts() -> None:
    joined = ("thermostat.data", "devices", "devices.latest", "temperatures.aggregated")
    assert len({catalog.topic(name).partitions for name in joined}) == 1


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(LookupError, match="no schema Nothing v1"):
        catalog.schema("Nothing", 1)
    with pytest.raises(LookupError, match="nowhere"):
        catalog.topic("nowhere")
    assert catalog.versions("Nothing") == ()
    assert catalog.examples("nowhere") == ()
