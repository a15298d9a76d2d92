"""Each way to break a promise, applied to what a provider wrote, fails the contract of some consumer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import pacts, scenario
from isotherm.contracts.paths import PACTS
from isotherm.contracts.providers import Messages
from isotherm.contracts.schema_catalog import JsonSchema
from isotherm.servicekit.avro import split

# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

Change = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes a record and its writer's schema."""


class Mutation(NamedTuple):
    """A change in one message, and the findings that the reports must contain."""

    provider: str
    scenario: str
    says: tuple[str, ...]
    change: Change = lambda _record, _schema: None
    key: str | None = None
    without_header: str | None = None


def _field(schema: JsonSchema, name: str) -> dict[str, Any]:
    (found,) = (field for field in schema["fields"] if field["name"] == name)
    assert isinstance(found, dict)
    return found


def _rename(name: str, to: str) -> Change:
    def change(record: dict[str, Any], schema: dict[str, Any]) -> None:
        record[to] = record.pop(name)
        _field(schema, name)["name"] = to
        schema["isotherm.identity"] = [to if one == name else one for one in schema["isotherm.identity"]]

    return change


def _set(**values: Any) -> Change:
    return lambda record, _schema: record.update(values)


def _in_seconds(*names: str) -> Change:
    return lambda record, _schema: record.update({name: record[name] // 1000 for name in names})


def _remove(name: str) -> Change:
    def change(record: dict[str, Any], schema: dict[str, Any]) -> None:
        del record[name]
        schema["fields"].remove(_field(schema, name))

    return change


def _as_number(name: str) -> Change:
    def change(record: dict[str, Any], schema: dict[str, Any]) -> None:
        record[name] = 7
        _field(schema, name).update(type=["null", "string", "long"])

    return change


MUTATIONS = {
    "rename a field": Mutation(
        "mqtt-proxy",
        scenario.READING,
        ("aggregator needs of mqtt-proxy", "persisters-elasticsearch needs of mqtt-proxy", "field value"),
        _rename("value", "reading"),
    ),
    "rename a field that has a default": Mutation(
        "coap-ingest",
        scenario.COAP_MESSAGE,
        ("persisters-hazelcast needs of coap-ingest", "$.value.payload"),
        _rename("payload", "body"),
    ),
    "change the unit": Mutation(
        "mqtt-proxy",
        scenario.READING,
        ("aggregator needs of mqtt-proxy", "$.value.unit", "'Far'"),
        _set(unit="Far", value=70.7),
    ),
    "seconds for milliseconds": Mutation(
        "coap-ingest",
        scenario.COAP_READING,
        ("aggregator needs of coap-ingest", "$.value.event_time"),
        _in_seconds("event_time", "ingest_time"),
    ),
    "seconds for a window's milliseconds": Mutation(
        "aggregator",
        scenario.WINDOW,
        ("persisters-cassandra needs of aggregator", "$.value.window_start", "$.value.window_end"),
        _in_seconds("window_start", "window_end"),
    ),
    "drop a header": Mutation(
        "coap-ingest",
        scenario.COAP_READING,
        ("demo needs of coap-ingest", "$.headers", "coap.uri"),
        without_header="coap.uri",
    ),
    "change the key": Mutation(
        "mqtt-proxy", scenario.READING, ("aggregator needs of mqtt-proxy", "$.key"), key="temperature"
    ),
    "do not escape the key": Mutation(
        "aggregator",
        scenario.WINDOW_ESCAPED,
        ("persisters-elasticsearch needs of aggregator", "$.key"),
        key=f"{scenario.OTHER_DEVICE}|temperature|{scenario.START_MS}|{scenario.START_MS + scenario.WINDOW_MS}",
    ),
    "remove a field without a default": Mutation(
        "aggregator",
        scenario.GROUP,
        ("persisters-elasticsearch needs of aggregator", "field device_count"),
        _remove("device_count"),
    ),
    "remove a field with a default that is needed": Mutation(
        "mqtt-proxy",
        scenario.READING,
        ("persisters-elasticsearch needs of mqtt-proxy", "$.value.sequence"),
        _remove("sequence"),
    ),
    "widen a union": Mutation(
        "cli",
        scenario.DEVICE_KNOWN,
        ("aggregator needs of cli", "cannot read it"),
        _as_number("room"),
    ),
    "narrow what a session remembers": Mutation(
        "mqtt-proxy", scenario.SESSION, ("mqtt-proxy needs of mqtt-proxy", "$.value.committed"), _set(committed=[])
    ),
}
HARMLESS = {
    "add a field with a default": Mutation(
        "mqtt-proxy",
        scenario.READING,
        (),
        lambda record, schema: schema["fields"].append({"name": "quality", "type": "string", "default": "good"}),
    ),
    "remove a field with a default that nobody needs": Mutation(
        "cli", scenario.DEVICE_KNOWN, (), _remove("thresholds")
    ),
    "another order of the fields": Mutation(
        "mqtt-proxy", scenario.READING, (), lambda _record, schema: schema["fields"].reverse()
    ),
    "another number": Mutation("mqtt-proxy", scenario.READING, (), _set(value=-3.25)),
}


def _problems(harness: Harness, produced: Mapping[str, Messages], mutation: Mutation) -> list[str]:
    before = produced[mutation.provider][mutation.scenario]
    schema = json.loads(json.dumps(harness.registry.schema(split(before.value)).json))
    record = harness.decode(before.value)
    mutation.change(record, schema)
    harness.registry.register(before.topic, schema)
    value = harness.registry.encoder(before.topic, schema)(record)
    headers = {name: said for name, said in before.headers.items() if name != mutation.without_header}
    after = Message(before.topic, mutation.key or before.key, value, headers)
    messages = {**produced[mutation.provider], mutation.scenario: after}
    return pacts.verify(PACTS, mutation.provider, messages, harness, harness.catalog).problems


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_mutation_is_caught(harness: Harness, produced: Mapping[str, Messages], mutation: Mutation) -> None:
    problems = _problems(harness, produced, mutation)
    text = "\n".join(problems)
    for part in mutation.says:
        assert part in text, text
    assert all(repr(mutation.scenario) in line for line in problems)


@pytest.mark.parametrize("mutation", HARMLESS.values(), ids=HARMLESS)
def test_change_that_hurts_nobody_passes(
    harness: Harness, produced: Mapping[str, Messages], mutation: Mutation
) -> None:
    assert _problems(harness, produced, mutation) == []
