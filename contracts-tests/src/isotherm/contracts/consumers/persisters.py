"""What each persister needs, with the connectors of `examples/`: fields, identities, dates, revisions of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pact import match

from isotherm.connector.config import files as config
from isotherm.connector.config.validation import Validated
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import AS_WRITTEN, Need, UnusableError, expect
from isotherm.contracts.paths import EXAMPLES
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.configuration import check
from isotherm.persisters.records.decoding import key_decoder, value_decoder
from isotherm.persisters.records.documents import to_json
from isotherm.persisters.records.projection import Projector
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.plugin import SinkKind
from isotherm.schemas import schema

ELASTICSEARCH, CASSANDRA, HAZELCAST = "persisters-elasticsearch", "persisters-cassandra", "persisters-hazelcast"
CONNECTORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ELASTICSEARCH: ("elasticsearch", ("demo/temperatures-to-elasticsearch.properties",)),
    CASSANDRA: (
        "scylla",
        ("demo/readings-to-cassandra.properties", "mqtt-cassandra/conf/cassandra-sink-temperature.properties"),
    ),
    HAZELCAST: ("hazelcast", ("demo/coap-to-hazelcast.properties",)),
}
"""Each persister's kind of sink and the connectors that it is deployed with."""
_ANY_TOPIC = "name=any\nconnector.class=elasticsearch\ntopics={0}\nconnect.elastic.url=http://127.0.0.1:9200\n\
connect.elastic.kcql=INSERT INTO readings SELECT * FROM {0} WITHINDEXSUFFIX=-{{YYYY.MM.DD}}\n"
_ENVIRONMENT = {
    "ELASTICSEARCH_URL": "http://127.0.0.1:9200",
    "CASSANDRA_HOST": "127.0.0.1",
    "CASSANDRA_PORT": "9042",
    "CASSANDRA_REPLICATION": "1",
    "HAZELCAST_MEMBER": "127.0.0.1:5701",
}


@cache
def _connectors(consumer: str) -> tuple[SinkKind, tuple[Validated, ...]]:
    kind_name, files = CONNECTORS[consumer]
    kind = installed_sinks()[kind_name]
    read = [config.read(EXAMPLES / Path(file)) for file in files]
    if consumer == ELASTICSEARCH:
        # A persister drains any topic: this is the plainest way to say so.
        read += [config.parse(_ANY_TOPIC.format(topic), form="properties") for topic in ("thermostat.data", "alerts")]
    return kind, tuple(check(kind, one.resolved(_ENVIRONMENT)) for one in read)


def rows(harness: Harness, consumer: str, found: Message) -> list[Row]:
    """The rows that a persister makes of a message, through the statements of all its connectors.

    Raises UnusableError with the reason of a dead letter.
    """
    kind, connectors = _connectors(consumer)
    statements = [statement for connector in connectors for statement in connector.statements]
    values, keys = value_decoder("auto", harness.registry), key_decoder("auto", harness.registry)
    project = Projector(statements, values, keys, kind.conventions)
    headers = [(name, text.encode()) for name, text in found.headers.items()]
    prepared = project(Record(found.topic, 0, 0, scenario.TAKEN_IN_MS, found.key.encode(), found.value, headers))
    if prepared.failed is not None:
        raise UnusableError(f"dead letter: {prepared.failed.stage}: {prepared.failed.error}")
    if not prepared.rows:
        raise UnusableError(f"filtered: {prepared.filtered}")
    for row in prepared.rows:
        to_json(row.values)
    return list(prepared.rows)


def _need(
    consumer: str,
    provider: str,
    name: str,
    topic: str,
    record: str,
    value: Mapping[str, Any],
    row: tuple[str, str, int, int | None],
    newest: int = 1,
) -> Need:
    """`row` is what the message becomes: target, id, event time and, where it has one, revision.

    `newest` is the newest version of the schema; what it added is not needed of earlier releases.
    """
    target, identity, event_time_ms, revision = row

    def becomes_a_row(harness: Harness, found: Message) -> object:
        (made,) = rows(harness, consumer, found)
        expect("target", made.target, target)
        expect("id", made.id, identity)
        expect("event time", made.event_time_ms, event_time_ms)
        expect("has a revision", made.revision is not None, revision is not None)
        return made.target, made.id, made.event_time_ms, made.revision, made.values

    # Every field of the record becomes one of the row.
    pinned = tuple(one["name"] for one in schema(record, newest)["fields"] if one["name"] not in value)
    return Need(
        consumer,
        provider,
        name,
        topic,
        record,
        1,
        None,
        value,
        becomes_a_row,
        fields=AS_WRITTEN,
        pinned=pinned,
    )


def _reading(device_id: str, metric: str, unit: str, event_time_ms: int, sequence: int) -> Mapping[str, Any]:
    return {
        "device_id": device_id,
        "metric": metric,
        "value": match.number(21.5),
        "unit": unit,
        "event_time": event_time_ms,
        "ingest_time": scenario.TAKEN_IN_MS,
        "sequence": sequence,
        # Columns of the table, also when there is nothing in them.
        "attributes": {},
    }


_END_MS = scenario.START_MS + scenario.WINDOW_MS
_SPAN = {"window_start": scenario.START_MS, "window_end": _END_MS}
_REVISION = match.integer(1_767_225_675_000)
_NUMBERS = {name: match.number(1.5) for name in ("mean", "min", "max")}
_AGGREGATE = {
    "device_id": scenario.DEVICE,
    "metric": "temperature",
    **_SPAN,
    "count": match.integer(3),
    "sum": match.number(1.5),
    **_NUMBERS,
    "stddev": match.number(1.5),
    "revision": _REVISION,
}
_ESCAPED = {**_AGGREGATE, "device_id": scenario.OTHER_DEVICE}
_GROUP = {
    "attribute": "region",
    "group": "north",
    "metric": "temperature",
    **_SPAN,
    "device_count": match.integer(1),
    "count": match.integer(3),
    **_NUMBERS,
    "revision": _REVISION,
}
_IN_STORE = f"-temperature-{scenario.START_MS}-{_END_MS}"
_AGGREGATED, _DAY = "temperatures.aggregated", "2026.01.01"


def _aggregate(consumer: str, target: str) -> tuple[Need, Need]:
    device, other = scenario.DEVICE, scenario.OTHER_DEVICE
    plain, escaped = ((target, f"{name}{_IN_STORE}", scenario.START_MS, 1) for name in (device, other))
    common = (_AGGREGATED, "TemperatureAggregate")
    return (
        _need(consumer, "aggregator", scenario.WINDOW, *common, _AGGREGATE, plain),
        _need(consumer, "aggregator", scenario.WINDOW_ESCAPED, *common, _ESCAPED, escaped),
    )


def _readings(consumer: str, topic: str, provider: str, name: str, row: str, value: Mapping[str, Any]) -> Need:
    identity = "-".join(str(value[part]) for part in ("device_id", "metric", "event_time", "sequence"))
    return _need(
        consumer, provider, name, topic, "SensorReading", value, (row, identity, int(value["event_time"]), None)
    )


def _alert(name: str, state: str, at_ms: int, closed_ms: int | None, measured: float) -> Need:
    alert_id = f"{scenario.DEVICE}/above/temperature/{scenario.MEASURED_MS}"
    value = {
        "alert_id": alert_id,
        "device_id": scenario.DEVICE,
        "rule": "above",
        "severity": match.type("warning"),
        "state": state,
        "opened_at": scenario.MEASURED_MS,
        "updated_at": at_ms,
        "closed_at": closed_ms,
        "metric": "temperature",
        "value": measured,
        "threshold": 28.0,
        "message": match.type("temperature 29.5 Cel is above 28.0 Cel"),
    }
    row = (f"readings-{_DAY}", f"{alert_id}-{state}", at_ms, None)
    return _need(ELASTICSEARCH, "alerts", name, "alerts", "Alert", value, row, newest=2)


_COAP_EVENT_MS = 1_486_997_194_029
_COAP_FIELDS = {
    "ingest_time": scenario.TAKEN_IN_MS,
    "code": "2.05",
    "source": match.type("localhost:5633"),
    "uri_path": "sensors",
    "etags": [],
    "max_age": match.integer(2),
    "content_format": match.integer(50),
    "payload": match.type("{}"),
}


def _coap(name: str, value: Mapping[str, Any], observe: str) -> Need:
    row = ("dev", f"localhost:5633-sensors-{observe}-{scenario.TAKEN_IN_MS}", scenario.TAKEN_IN_MS, None)
    fields = {**_COAP_FIELDS, **value}
    return _need(HAZELCAST, "coap-ingest", name, "coap_sensor_topic", "CoapMessage", fields, row)


_TEMPERATURE = _reading("kitchen", "temperature", "Cel", scenario.TAKEN_IN_MS, 0)
_BRIGHTNESS = _reading(scenario.DEVICE, "brightness", "lx", scenario.MEASURED_MS, 17)
_THERMOSTAT = _reading(scenario.DEVICE, "temperature", "Cel", scenario.MEASURED_MS, 17)
_COAP_TEMPERATURE = _reading("Sensor4", "temperature", "Cel", _COAP_EVENT_MS, 0)
_COAP_BRIGHTNESS = _reading("Sensor4", "brightness", "lx", _COAP_EVENT_MS, 0)

NEEDS = (
    *_aggregate(ELASTICSEARCH, f"temperatures-aggregated-{_DAY}"),
    _need(
        ELASTICSEARCH,
        "aggregator",
        scenario.GROUP,
        "temperatures.grouped",
        "TemperatureGroup",
        _GROUP,
        (f"temperatures-{_DAY}", f"region-north{_IN_STORE}", scenario.START_MS, 1),
    ),
    _readings(ELASTICSEARCH, "thermostat.data", "mqtt-proxy", scenario.READING, f"readings-{_DAY}", _THERMOSTAT),
    _readings(
        ELASTICSEARCH,
        "thermostat.data",
        "coap-ingest",
        scenario.COAP_READING,
        "readings-2017.02.13",
        {**_COAP_TEMPERATURE, "attributes": {}},
    ),
    _alert(scenario.ALERT_OPENED, "opened", scenario.MEASURED_MS, None, 29.5),
    _alert(scenario.ALERT_CLOSED, "closed", scenario.MEASURED_MS + 1, scenario.MEASURED_MS + 1, 21.5),
    *_aggregate(CASSANDRA, "temperatures_aggregated"),
    _readings(CASSANDRA, "brightness", "mqtt-proxy", scenario.BRIGHTNESS, "brightness", _BRIGHTNESS),
    _readings(CASSANDRA, "brightness", "coap-ingest", scenario.COAP_BRIGHTNESS, "brightness", _COAP_BRIGHTNESS),
    _readings(CASSANDRA, "temperature", "mqtt-proxy", scenario.TEMPERATURE_BY_REGEX, "temperature", _TEMPERATURE),
    _readings(CASSANDRA, "temperature", "coap-ingest", scenario.COAP_TEMPERATURE, "temperature", _COAP_TEMPERATURE),
    *_aggregate(HAZELCAST, "temperatures"),
    _coap(scenario.COAP_MESSAGE, {"observe": 7, "is_notification": True}, "7"),
    _coap(scenario.COAP_ANSWER, {"observe": None, "is_notification": False}, ""),
)
