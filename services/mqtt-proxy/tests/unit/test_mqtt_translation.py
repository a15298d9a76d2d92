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
from mqtt_rules import UNITS, ingest_rules

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.refusals import refusal_reason
from isotherm.mqtt_proxy.ingest.routes import (
    Route,
    Router,
    kcql_routes,
    regex_routes,
)
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import (
    IngestContext,
    Translator,
)
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.schemas import schema
from isotherm.servicekit.avro import encoder, parse
from isotherm.servicekit.throttling.rates import Rate

READING = schema("SensorReading", 1)
NOW_MS = 1_767_225_600_000


def translator(routes: list[Route], **rules: Any) -> Translator:
    encoders = dict.fromkeys(("thermostat.data", "temperature", "brightness", "a_b"), encoder(READING, 7))
    return Translator(Router(routes, first_match_only=False), encoders, ingest_rules(**rules))


def kcql(text: str, **rules: Any) -> Translator:
    return translator(kcql_routes(text, device_level=None, metrics=frozenset(UNITS)), **rules)


def translate(
    of: Translator, topic: str, payload: object, *, username: str | None = None, now_ms: int = NOW_MS, **publish: Any
) -> TranslatedPublish:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    context = IngestContext("client", now_ms, username)
    return of.translate(Publish(topic, data, publish.pop("qos", 1), **publish), context)


def decoded(record: ProducerRecord) -> Mapping[str, Any]:
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
    assert (result.readings, result.dead_letters) == ([("thermostat.data", 1)], [])


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
    context = IngestContext("client", NOW_MS)
    publish = Publish("devices/d/temperature", b'[{"value":1},{"value":2}]', 0)
    records = [*of.translate(publish, context).records, *of.translate(publish, context).records]
    context.ingest_ms = NOW_MS + 1
    records += of.translate(publish, context).records
    assert [decoded(record)["sequence"] for record in records] == [0, 1, 2, 3, 0, 1]


def test_two_connections_of_one_device_have_different_identities_in_one_millisecond() -> None:
    of = kcql("INSERT INTO thermostat.data SELECT * FROM devices/+/temperature")
    publish = Publish("devices/d/temperature", b"21.5", 1)
    records = [record for _ in range(3) for record in of.translate(publish, IngestContext("d", NOW_MS)).records]
    assert [decoded(record)["sequence"] for record in records] == [0, 1, 2]


def test_a_condition_leaves_readings_out_and_they_are_counted() -> None:
    of = kcql(f"{DOCUMENTED} WHERE t > 20 AND _.topic LIKE '%/d1/%'; INSERT INTO temperature SELECT t AS value FROM #")
    result = translate(of, "devices/d1/temperature", [{"t": 20}, {"t": 21}, {"t": 22}])
    stored = [(record.topic, decoded(record)["value"]) for record in result.records]
    everything = [("temperature", value) for value in (20.0, 21.0, 22.0)]
    assert stored == [("thermostat.data", 21.0), ("thermostat.data", 22.0), *everything]
    assert (result.readings, result.filtered) == (
        [("thermostat.data", 2), ("temperature", 3)],
        [("thermostat.data", 1)],
    )
    metrics = Metrics()
    metrics.count_stored(result, 1, 0.0)
    assert metrics.filtered == {"thermostat.data": 1}


def test_a_publish_of_which_nothing_is_left_is_stored_without_records_and_is_valid() -> None:
    result = translate(kcql(f"{DOCUMENTED} WHERE t > 20"), "devices/d1/temperature", [{"t": 20}, {"id": "x"}])
    assert (result.records, result.readings, result.filtered) == ([], [], [("thermostat.data", 2)])
    assert (result.invalid_reason, result.dropped) == (None, False)


def test_a_condition_that_does_not_fit_a_reading_makes_a_dead_letter() -> None:
    result = translate(kcql(f"{DOCUMENTED} WHERE t > 20"), "devices/d1/temperature", [{"t": 21}, {"t": "warm"}])
    assert (result.dead_letters, result.filtered) == (["reading"], [])
    message = str(dict(result.records[0].headers)["__connect.errors.exception.message"])
    assert 'item 1: "t": is a text, and WHERE compares it with a number' in message


def test_a_condition_reads_the_user_properties() -> None:
    of = kcql(f"{DOCUMENTED} WHERE _header.site = 'north'")
    for site, number in (("north", 1), ("south", 0)):
        properties = {Property.USER_PROPERTY: [("site", site)]}
        assert len(translate(of, "devices/d1/temperature", {"t": 1}, properties=properties).records) == number


def test_the_compiled_way_is_not_taken_with_a_condition() -> None:
    for text, is_plain in ((DOCUMENTED, True), (f"{DOCUMENTED} WHERE t > 20", False)):
        route = kcql(text).plain_route("devices/d1/temperature", IngestContext("client", NOW_MS))
        assert (route is not None) is is_plain


def test_every_matching_route_gets_the_publish() -> None:
    of = kcql(f"{DOCUMENTED}; INSERT INTO temperature SELECT t AS value FROM devices/#")
    result = translate(of, "devices/d1/temperature", [{"t": 1}, {"t": 2}])
    assert [record.topic for record in result.records] == ["thermostat.data"] * 2 + ["temperature"] * 2
    assert result.readings == [("thermostat.data", 2), ("temperature", 2)]


def dead_letter(result: TranslatedPublish, payload: bytes) -> dict[str, str]:
    (dead,) = [record for record in result.records if record.topic == "dead"]
    assert dead.value == payload, "the original bytes"
    return {name: value.decode() if isinstance(value, bytes) else str(value) for name, value in dead.headers}


@pytest.mark.parametrize(
    ("topic", "payload", "reason", "message"),
    [
        ("devices/d/temperature", b"{broken", "payload", ""),
        ("devices/d/temperature", b"", "payload", ""),
        ("devices/d/temperature", b"\xff\xfe", "payload", ""),
        ("devices/d/temperature", b"[]", "payload", "no reading"),
        ("devices/d/temperature", b'{"t": "warm"}', "reading", "raw route (WITHFORMAT RAW)"),
        ("devices/d/temperature", b"on", "payload", "raw route (WITHFORMAT RAW)"),
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
    assert result.dead_letters == [reason]
    assert headers["__connect.errors.topic"] == topic
    assert headers["__connect.errors.connector.name"] == "mqtt-proxy"
    assert headers["__connect.errors.task.id"] == "3"
    assert headers["__connect.errors.stage"] in ("VALUE_CONVERTER", "TRANSFORMATION")
    assert message in headers["__connect.errors.exception.message"]
    assert headers["__connect.errors.exception.class.name"]
    assert "__connect.errors.exception.stacktrace" not in headers, "it takes ten times as long, and shows our code"
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
    assert translate(of, "a/c", {"v": 1, "u": "Cel"}).dead_letters == ["no topic"]


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


def size(record: ProducerRecord) -> int:
    """The bytes of a record itself, without what anybody needs beside it."""
    headers = sum(len(name) + len(value or "") for name, value in record.headers)
    return len(record.key or "") + len(record.value or b"") + headers


def test_properties_of_an_array_are_charged_for_each_item() -> None:
    of = kcql("INSERT INTO thermostat.data SELECT * FROM devices/+/temperature", readings_per_publish=1_000)
    properties = {Property.USER_PROPERTY: [("n", "x" * 400)] * 10}
    result = translate(of, "devices/d/temperature", [{"value": 1}] * 1_000, properties=properties)
    assert len(result.records) == 1_000
    assert result.bytes >= sum(map(size, result.records)) > 4_000_000


@pytest.mark.parametrize(
    ("properties", "detail"),
    [
        ({Property.USER_PROPERTY: [("n", str(number)) for number in range(5)]}, "5 user properties, at most 4"),
        ({Property.USER_PROPERTY: [("", "")] * 13_000}, "13000 user properties, at most 4"),
        ({Property.USER_PROPERTY: [("n", "1"), ("m", "x" * 99)]}, "102 bytes of properties, at most 100"),
        ({Property.USER_PROPERTY: [("n", "1"), ("m", "\u00e4" * 49)]}, "101 bytes of properties, at most 100"),
        ({Property.CORRELATION_DATA: b"x" * 101}, "101 bytes of properties, at most 100"),
        ({Property.RESPONSE_TOPIC: "x" * 101}, "101 bytes of properties, at most 100"),
    ],
)
def test_too_many_properties_are_a_dead_letter_with_as_many_as_may_be(
    properties: dict[Property, Any], detail: str
) -> None:
    of = kcql(DOCUMENTED, user_properties=4, property_bytes=100)
    result = translate(of, "devices/d/temperature", {"t": 1}, properties=properties)
    headers = dead_letter(result, b'{"t": 1}')
    assert result.dead_letters == ["properties"]
    assert refusal_reason("properties") is Reason.QUOTA_EXCEEDED
    assert headers["__connect.errors.exception.message"] == f"{detail} are allowed"
    kept = [(name, value) for name, value in result.records[0].headers if name.startswith("mqtt.user.")]
    given = properties.get(Property.USER_PROPERTY, [])
    assert kept == [(f"mqtt.user.{name}", value) for name, value in given[: len(kept)]]
    assert len(kept) == min(4, len(given)) or detail.startswith("10")
    assert result.bytes >= size(result.records[0])


# -- who may speak for which device

ANY = "INSERT INTO thermostat.data SELECT * FROM devices/+/temperature"
SENML = b'[{"bn":"victim:","n":"temperature","u":"Cel","v":1}]'


def keys(result: TranslatedPublish) -> list[object]:
    return [record.key for record in result.records if record.topic != "dead"]


@pytest.mark.parametrize(
    ("policy", "username", "payload"),
    [
        ("topic", "anna", {"value": 1, "device_id": "victim"}),
        ("topic", None, {"value": 1, "device_id": "victim"}),
        ("topic", "anna", [{"value": 1}, {"value": 1, "device_id": "victim"}]),
        ("topic", "anna", {"value": 1, "device_id": ["a"]}),
        ("user", "a", {"value": 1, "device_id": "victim"}),
        ("user", "anna", {"value": 1}),
        ("user", None, {"value": 1}),
    ],
)
def test_nobody_speaks_for_another_device(policy: str, username: str | None, payload: object) -> None:
    result = translate(kcql(ANY, device_id=policy), "devices/a/temperature", payload, username=username)
    assert keys(result) == []
    assert result.dead_letters == ["identity"]
    headers = dead_letter(result, json.dumps(payload).encode())
    assert headers.get("mqtt.username") == username
    message = headers["__connect.errors.exception.message"]
    assert "speak for 'a' only" in message or "identity.device_id=user" in message
    assert refusal_reason("identity") is Reason.NOT_AUTHORIZED


def test_base_name_of_senml_speaks_for_no_other_device() -> None:
    senml = {Property.CONTENT_TYPE: "application/senml+json"}
    result = translate(kcql(ANY, device_id="topic"), "devices/a/temperature", SENML, properties=senml)
    assert (keys(result), result.dead_letters) == ([], ["identity"])
    result = translate(kcql(ANY, device_id="topic"), "devices/victim/temperature", SENML, properties=senml)
    assert keys(result) == ["victim"]


@pytest.mark.parametrize(
    ("policy", "route", "topic", "username", "payload", "device"),
    [
        ("payload", ANY, "devices/a/temperature", "anna", {"value": 1, "device_id": "x"}, "x"),
        ("topic", ANY, "devices/a/temperature", "anna", {"value": 1}, "a"),
        ("topic", ANY, "devices/7/temperature", "anna", {"value": 1, "device_id": 7}, "7"),
        ("topic", "INSERT INTO temperature SELECT * FROM #", "x/y", "anna", {"value": 1}, "anna"),
        ("topic", "INSERT INTO temperature SELECT * FROM #", "x/y", "anna", {"value": 1, "device_id": "anna"}, "anna"),
        ("user", ANY, "devices/anna/temperature", "anna", {"value": 1}, "anna"),
        ("user", "INSERT INTO temperature SELECT * FROM #", "x/y", "anna", [{"value": 1, "device_id": "anna"}], "anna"),
    ],
)
def test_device_by_policy(policy: str, route: str, topic: str, username: str, payload: object, device: str) -> None:
    result = translate(kcql(route, device_id=policy), topic, payload, username=username)
    assert keys(result) == [device]
    assert decoded(result.records[0])["device_id"] == device
    assert ("mqtt.username", username) in result.records[0].headers


def test_a_client_without_a_name_is_no_device_where_the_route_names_none() -> None:
    of = kcql("INSERT INTO temperature SELECT * FROM #", device_id="topic")
    result = translate(of, "x/y", {"value": 1})
    assert (keys(result), result.dead_letters) == ([], ["identity"])
    assert "nor does the route name" in dead_letter(result, b'{"value": 1}')["__connect.errors.exception.message"]


# -- many invalid publishes


def test_dead_letters_beyond_the_rate_are_counted() -> None:
    of, metrics = kcql(DOCUMENTED, dead_letters=Rate(10, 100)), Metrics()
    records = 0
    for _ in range(1_000):
        result = translate(of, "devices/d/temperature", b'{"t": "warm"}')
        records += len(result.records)
        assert result.invalid_reason == "reading"
        metrics.count_stored(result, 1, 0.0)
    assert records == 10
    assert (metrics.dead_letters, metrics.dead_letters_unstored) == ({"reading": 10}, {"reading": 990})
    later = translate(of, "devices/d/temperature", b"{", now_ms=NOW_MS + 10_000)
    assert later.dead_letters == ["payload"], "one more after a tenth of the time"


def test_dead_letter_is_small() -> None:
    result = translate(kcql(DOCUMENTED), "devices/d1/temperature", b'{"t": "warm", "id": "d1"}')
    assert size(result.records[0]) < 600


ROUTES = f"{DOCUMENTED}; INSERT INTO temperature SELECT * FROM #; INSERT INTO $ SELECT a.b AS value FROM +/b"
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
    result = EVERYTHING.translate(Publish(topic, payload, 1), IngestContext("c", NOW_MS))
    assert result.bytes >= sum(map(size, result.records))
    assert result.records, "nothing is silent"
    dead = [record for record in result.records if record.topic == "dead"]
    assert len(dead) == len(result.dead_letters)
    assert all(record.value == payload for record in dead)
    assert sum(count for _topic, count in result.readings) == len(result.records) - len(dead)


BOUND = kcql(ROUTES, device_id="topic")


@given(
    st.sampled_from(["devices/a/temperature", "a/b", "x", "//"]),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(["id", "device_id"]), st.sampled_from(["victim", 1, None, ["victim"]])),
)
def test_whatever_the_payload_says_the_device_is_the_topic_s_or_the_user(
    topic: str, payload: bytes, said: dict[str, object]
) -> None:
    for data in (payload, json.dumps({"t": 1, "value": 1, **said}).encode()):
        result = BOUND.translate(Publish(topic, data, 1), IngestContext("c", NOW_MS, "anna"))
        assert set(keys(result)) <= {topic.split("/")[1], "anna"} if topic.startswith("devices") else {"anna", "a", "x"}


def test_a_connection_keeps_no_long_topic() -> None:
    """The topics of 10,000 connections could take 640 MB, and all of them are dead letters."""
    context = IngestContext("client", NOW_MS)
    kcql(ROUTES).translate(Publish("t" * 60_000, b"1", 1), context)
    assert context._headers == []
