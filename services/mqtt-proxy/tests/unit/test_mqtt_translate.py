"""A publish to records: readings with their defaults and headers, or a dead letter with the original bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, cast

import fastavro
import hypothesis.strategies as st
import pytest
from hypothesis import given

from isotherm_schemas import schema
from mqtt_proxy.grouping import OutRecord
from mqtt_proxy.packets import Publish
from mqtt_proxy.properties import Property
from mqtt_proxy.routing import Route, Router, kcql_routes, regex_routes
from mqtt_proxy.translate import Arrival, Rules, Translated, Translator
from servicekit.avro import encoder, parse

READING = schema("SensorReading", 1)
UNITS = {"temperature": "Cel", "brightness": "lx"}
NOW_MS = 1_767_225_600_000


def translator(routes: list[Route], **rules: Any) -> Translator:
    encode = encoder(READING, 7)
    defaults: dict[str, Any] = {
        "units": UNITS,
        "dead_letter_topic": "dead",
        "connector": "mqtt-proxy",
        "ordinal": 3,
        "drop_unrouted": False,
        "topic_bytes": 100,
        "readings_per_publish": 5,
    }
    encoders = dict.fromkeys(("thermostat.data", "temperature", "brightness", "a_b"), encode)
    return Translator(Router(routes, first_match_only=False), encoders, Rules(**(defaults | rules)))


def kcql(text: str, **rules: Any) -> Translator:
    return translator(kcql_routes(text, device_level=None, metrics=frozenset(UNITS)), **rules)


def translate(of: Translator, topic: str, payload: object, **publish: Any) -> Translated:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return of.translate(Publish(topic, data, publish.pop("qos", 1), **publish), Arrival("client", NOW_MS))


def decoded(record: OutRecord) -> Mapping[str, Any]:
    assert record.value is not None
    assert record.value[:5] == b"\0\0\0\0\7"
    found = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), parse(READING), None)
    return cast(Mapping[str, Any], found)


DOCUMENTED = "INSERT INTO thermostat.data SELECT id AS device_id, t AS value FROM devices/+/temperature"


def test_a_reading() -> None:
    result = translate(kcql(DOCUMENTED), "devices/d1/temperature", {"t": 21.5}, qos=2, dup=True, retain=True)
    (record,) = result.records
    value = decoded(record)
    assert (record.topic, record.key) == ("thermostat.data", "d1")
    assert (value["device_id"], value["metric"], value["value"], value["unit"]) == ("d1", "temperature", 21.5, "Cel")
    assert value["event_time"] == value["ingest_time"]
    assert int(value["ingest_time"].timestamp() * 1000) == NOW_MS
    assert value["sequence"] == 0
    assert record.headers == [
        ("mqtt.topic", "devices/d1/temperature"),
        ("mqtt.qos", "2"),
        ("mqtt.client_id", "client"),
        ("mqtt.retain", "true"),
        ("mqtt.dup", "true"),
    ]
    assert (result.readings, result.misfits) == ([("thermostat.data", 1)], [])


def test_the_payload_names_the_device() -> None:
    (record,) = translate(kcql(DOCUMENTED), "devices/d1/temperature", {"t": 1, "id": "x"}).records
    assert (record.key, decoded(record)["device_id"]) == ("x", "x")


def test_the_client_is_the_device_of_a_regex_route() -> None:
    of = translator(regex_routes("temperature:.*temperature, brightness:.*brightness", device_level=None))
    (record,) = translate(of, "home/brightness", b"301").records
    value = decoded(record)
    assert (record.topic, record.key, value["metric"], value["unit"], value["value"]) == (
        "brightness",
        "client",
        "brightness",
        "lx",
        301.0,
    )


def test_items_of_an_array_keep_different_identities_also_of_the_next_publish_in_the_same_millisecond() -> None:
    of = kcql("INSERT INTO thermostat.data SELECT * FROM devices/+/temperature")
    arrival = Arrival("client", NOW_MS)
    publish = Publish("devices/d/temperature", b'[{"value":1},{"value":2}]', 0)
    records = [*of.translate(publish, arrival).records, *of.translate(publish, arrival).records]
    arrival.at(NOW_MS + 1)
    records += of.translate(publish, arrival).records
    assert [decoded(record)["sequence"] for record in records] == [0, 1, 2, 3, 0, 1]


def test_key_of_the_statement() -> None:
    of = kcql(
        "INSERT INTO thermostat.data SELECT v AS value FROM devices/+/temperature WITHKEY(room, id) KEYDELIMITER='|'"
    )
    (record,) = translate(of, "devices/d/temperature", {"v": 1, "room": "hall", "id": 7}).records
    assert record.key == "hall|7"
    assert translate(of, "devices/d/temperature", {"v": 1, "room": "hall"}).misfits == ["reading"]


def test_every_matching_route_gets_the_publish() -> None:
    of = kcql(f"{DOCUMENTED}; INSERT INTO temperature SELECT t AS value FROM devices/#")
    result = translate(of, "devices/d1/temperature", [{"t": 1}, {"t": 2}])
    assert [record.topic for record in result.records] == ["thermostat.data"] * 2 + ["temperature"] * 2
    assert result.readings == [("thermostat.data", 2), ("temperature", 2)]


def dead_letter(result: Translated, payload: bytes) -> dict[str, str]:
    letters = [record for record in result.records if record.topic == "dead"]
    (letter,) = letters
    assert letter.value == payload, "the original bytes"
    return {name: value.decode() if isinstance(value, bytes) else str(value) for name, value in letter.headers}


@pytest.mark.parametrize(
    ("topic", "payload", "reason", "message"),
    [
        ("devices/d/temperature", b"{broken", "payload", ""),
        ("devices/d/temperature", b"", "payload", ""),
        ("devices/d/temperature", b"\xff\xfe", "payload", ""),
        ("devices/d/temperature", b"[]", "payload", "no reading"),
        ("devices/d/temperature", b'{"t": "warm"}', "reading", "value"),
        ("devices/d/temperature", b'[{"t": 1}, {"x": 1}]', "reading", "item 1: value"),
        (
            "devices/d/temperature",
            b"[%s]" % b",".join([b'{"t": 1}'] * 6),
            "too many readings",
            "at most 5",
        ),
        ("devices/d/humidity", b'{"t": 1}', "no route", "devices/d/humidity"),
        ("d" * 101, b'{"t": 1}', "topic too long", "100"),
        ("\u00e4" * 51, b'{"t": 1}', "topic too long", "100"),
    ],
)
def test_what_does_not_fit_is_a_dead_letter(topic: str, payload: bytes, reason: str, message: str) -> None:
    result = translate(kcql(DOCUMENTED), topic, payload)
    headers = dead_letter(result, payload)
    assert len(result.records) == 1, "nothing of the payload is stored beside its dead letter"
    assert result.misfits == [reason]
    assert headers["__connect.errors.topic"] == topic
    assert headers["__connect.errors.connector.name"] == "mqtt-proxy"
    assert headers["__connect.errors.task.id"] == "3"
    assert headers["__connect.errors.stage"] in ("VALUE_CONVERTER", "TRANSFORMATION")
    assert message in headers["__connect.errors.exception.message"]
    assert headers["__connect.errors.exception.class.name"]
    assert headers["mqtt.topic"] == topic
    assert headers["mqtt.client_id"] == "client"


def test_one_route_fits_and_one_does_not() -> None:
    of = kcql(f"{DOCUMENTED}; INSERT INTO temperature SELECT nothing AS value FROM devices/#")
    result = translate(of, "devices/d/temperature", {"t": 4})
    assert [record.topic for record in result.records] == ["thermostat.data", "dead"]
    assert "INSERT INTO temperature" in dead_letter(result, b'{"t": 4}')["__connect.errors.exception.message"]


def test_unrouted_publishes_can_be_dropped() -> None:
    result = translate(kcql(DOCUMENTED, drop_unrouted=True), "other", b"1")
    assert (result.records, result.dropped) == ([], True)


def test_a_target_named_by_the_topic_must_exist() -> None:
    of = kcql("INSERT INTO $ SELECT v AS value, u AS unit FROM #")
    good = translate(of, "a/b", {"v": 1, "u": "Cel"})
    assert [(record.topic, decoded(record)["metric"]) for record in good.records] == [("a_b", "b")]
    assert good.readings == [("a_b", 1)]
    assert translate(of, "a/c", {"v": 1, "u": "Cel"}).misfits == ["no topic"]


def test_properties_of_mqtt5_become_headers() -> None:
    properties = {
        Property.USER_PROPERTY: [("room", "hall"), ("room", "attic")],
        Property.CONTENT_TYPE: "application/json",
        Property.CORRELATION_DATA: b"\1",
        Property.MESSAGE_EXPIRY: 60,
    }
    (record,) = translate(kcql(DOCUMENTED), "devices/d/temperature", {"t": 1}, properties=properties).records
    assert record.headers[3:] == [
        ("mqtt.content_type", "application/json"),
        ("mqtt.correlation_data", b"\1"),
        ("mqtt.message_expiry_s", "60"),
        ("mqtt.user.room", "hall"),
        ("mqtt.user.room", "attic"),
    ]


ROUTES = f"{DOCUMENTED}; INSERT INTO temperature SELECT * FROM #; INSERT INTO $ SELECT a.b AS value FROM +/b WITHKEY(k)"
EVERYTHING = kcql(ROUTES)
NAMES = ["t", "id", "value", "a", "b", "k", "unit", "event_time", "x"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["t", "id", "value", "a", "b", "k", "unit", "event_time", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["devices/d/temperature", "a/b", "x", "//", "$SYS/x", "\u2603" * 40]),
    st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()),
)
def test_every_publish_becomes_records_for_every_route_and_nothing_raises(topic: str, payload: bytes) -> None:
    result = EVERYTHING.translate(Publish(topic, payload, 1), Arrival("c", NOW_MS))
    assert result.records, "nothing is silent"
    dead = [record for record in result.records if record.topic == "dead"]
    assert len(dead) == len(result.misfits)
    assert all(record.value == payload for record in dead)
    assert sum(count for _topic, count in result.readings) == len(result.records) - len(dead)
