"""Records of notifications: CoapMessage and SensorReading."""

from __future__ import annotations

import base64
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isotherm.schemas
from isotherm import kcql, payloads
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.ingest.outlets import Outlet
from isotherm.coap_ingest.ingest.records import (
    headers,
    message_record,
    payload_text,
    reading_records,
)
from isotherm.coap_ingest.ingest.routes import compile_rules
from isotherm.servicekit.avro import encoder

SERVER = Server("coap", "localhost", 5633)
DOCUMENT = (
    b'{"sensorId":"Sensor4","timestamp":1486997194029,"temperature":23.60440030439427,"message":"Sensor message 98"}'
)
ALIASES = "SELECT sensorId AS device_id, temperature AS value, timestamp AS event_time"


def notification(**changes: Any) -> Notification:
    said: dict[str, Any] = {
        "resource": Resource(SERVER, ("sensors",)),
        "arrived_ms": 1_700_000_000_000,
        "rtt_ms": 998,
        "code": "2.05",
        "raw_code": 69,
        "message_type": "NON",
        "message_id": 62517,
        "token": bytes.fromhex("d77d"),
        "destination": "127.0.0.1:40000",
        "payload": DOCUMENT,
        "observe": 7,
        "max_age_s": 2,
        "content_format": 0,
    }
    return Notification(**{**said, **changes})


def test_the_record_of_the_document_has_every_field_of_the_schema() -> None:
    schema = isotherm.schemas.schema("CoapMessage", 1)
    record = message_record(notification())

    assert list(record) == [field["name"] for field in schema["fields"]]
    assert len(record) == 35  # the documents' 34 and the payload in base64
    assert encoder(schema, 1)(record)
    assert (record["message_id"], record["type"], record["raw_code"], record["rtt"]) == (62517, "NON", 69, 998)
    assert (record["source"], record["token"], record["max_age"]) == ("localhost:5633", "d77d", 2)
    assert (record["uri_host"], record["uri_port"], record["uri_path"]) == ("localhost", 5633, "sensors")
    assert record["payload"] == DOCUMENT.decode()


def test_absent_and_repeated_options_have_the_predecessors_values() -> None:
    resource = Resource(SERVER, ("a", "b c"), ("unit=cel", "x"))
    record = message_record(
        notification(
            resource=resource,
            message_type=None,
            message_id=None,
            observe=None,
            max_age_s=None,
            content_format=None,
            etags=(b"\x01\xff",),
            location_path=("p", "q"),
            block2="1/0/1024",
        )
    )
    assert (record["type"], record["message_id"], record["is_notification"]) == (None, None, False)
    assert (record["max_age"], record["content_format"], record["accept"]) == (60, -1, -1)
    assert (record["etags"], record["location_path"], record["block2"]) == (["01ff"], "p/q", "1/0/1024")
    assert (record["uri_path"], record["uri_query"]) == ("a/b c", "unit=cel&x")


def test_a_confirmable_message_was_acknowledged_by_us() -> None:
    record = message_record(notification(message_type="CON"))
    assert (record["is_confirmable"], record["is_acknowledged"]) == (True, True)


@pytest.mark.parametrize(
    ("payload", "content_format", "text"),
    [
        (b"21.5", 0, "21.5"),
        ("21 °C\n".encode(), None, "21 °C\n"),
        (b"\x00\x01", None, None),
        (b"\xff", 0, None),
        (b"abc", 60, None),
        (b"abc", 42, None),
        (b"abc", 9999, "abc"),
        (b"", None, ""),
    ],
)
def test_a_payload_is_text_where_it_is_text(payload: bytes, content_format: int | None, text: str | None) -> None:
    assert payload_text(payload, content_format) == text


@given(st.binary(max_size=50), st.none() | st.integers(0, 65535))
def test_every_payload_is_kept_as_text_or_base64(payload: bytes, content_format: int | None) -> None:
    record = message_record(notification(payload=payload, content_format=content_format))
    if record["payload_base64"] is None:
        assert record["payload"].encode() == payload
    else:
        assert record["payload"] is None
        assert base64.b64decode(record["payload_base64"]) == payload


def test_headers_say_where_it_came_from() -> None:
    assert headers(notification()) == [
        ("coap.uri", "coap://localhost:5633/sensors"),
        ("coap.code", "2.05"),
        ("coap.content_format", "0"),
        ("coap.observe", "7"),
    ]
    assert len(headers(notification(content_format=None, observe=None))) == 2


def read(kcql_text: str, **changes: Any) -> list[dict[str, Any]]:
    (rule,), problems = compile_rules(kcql.parse(kcql_text), key="kcql", units={"co2": "ppm"}, limits=payloads.Limits())
    assert not problems
    route = rule.route_for_server(SERVER)
    assert route.rules is not None
    records, _ = reading_records(
        notification(resource=route.resource, **changes), route.rules, payloads.SequenceGenerator()
    )
    return records


def test_the_documents_payload_becomes_a_reading_by_kcql() -> None:
    assert read(f"INSERT INTO thermostat.data {ALIASES} FROM sensors") == [
        {
            "device_id": "Sensor4",
            "metric": "temperature",
            "value": 23.60440030439427,
            "unit": "Cel",
            "event_time": 1486997194029,
            "ingest_time": 1_700_000_000_000,
            "sequence": 0,
            "attributes": {},
        }
    ]


def test_a_bare_number_is_a_reading_of_the_server_named_by_the_path() -> None:
    (reading,) = read("INSERT INTO thermostat.data SELECT * FROM room/co2", payload=b"412")
    assert (reading["device_id"], reading["metric"], reading["unit"]) == ("localhost:5633", "co2", "ppm")
    assert reading["event_time"] == reading["ingest_time"] == 1_700_000_000_000


def test_the_topics_name_is_the_metric_where_it_is_one() -> None:
    (reading,) = read("INSERT INTO brightness SELECT * FROM room/light", payload=b"412")
    assert (reading["metric"], reading["unit"]) == ("brightness", "lx")


def test_values_of_the_payload_come_before_defaults() -> None:
    payload = b'{"device_id":"d","metric":"humidity","unit":"%RH","value":40,"event_time":"2026-01-31T12:00:00Z","a":1}'
    (reading,) = read("INSERT INTO thermostat.data SELECT * FROM sensors IGNORE a", payload=payload)
    assert (reading["metric"], reading["unit"], reading["attributes"]) == ("humidity", "%RH", {})


SENML = "INSERT INTO thermostat.data SELECT device_id, metric, value FROM sensors"


def test_items_of_a_senml_pack_without_time_get_their_index() -> None:
    pack = [{-2: "dev:1:", 0: "temperature", 2: 21.5}, {0: "temperature", 2: 22.5}]
    found = read(SENML, payload=cbor2.dumps(pack), content_format=112)
    assert [(r["device_id"], r["value"], r["sequence"]) for r in found] == [("dev:1", 21.5, 0), ("dev:1", 22.5, 1)]


def test_a_boolean_of_senml_is_1_or_0() -> None:
    pack = [{-2: "dev:1:", 0: "temperature", 4: True}, {0: "temperature", 4: False}]
    assert [r["value"] for r in read(SENML, payload=cbor2.dumps(pack), content_format=112)] == [1.0, 0.0]


def test_a_payload_with_an_invalid_item_gives_no_reading() -> None:
    pack = [{-2: "dev:1:", 0: "temperature", 2: 21.5}, {0: "label", 3: "x"}]
    with pytest.raises(payloads.PayloadError, match=r"^item 1 of 2: value: "):
        read(SENML, payload=cbor2.dumps(pack), content_format=112)


def test_a_payload_that_cannot_be_decoded_is_an_error() -> None:
    with pytest.raises(payloads.PayloadError, match="neither JSON nor a number"):
        read(f"INSERT INTO thermostat.data {ALIASES} FROM sensors", payload=b"hello")


def test_a_projection_that_fails_is_an_error_of_the_payload() -> None:
    with pytest.raises(payloads.PayloadError, match="WITHSTRUCTURE"):
        read("INSERT INTO thermostat.data SELECT a.b AS value FROM sensors", payload=b'{"a":[{"b":1}]}')


def test_a_condition_leaves_rows_out_before_they_are_looked_at() -> None:
    rows = b'[{"value": 1}, {"value": 25}, {"value": 30, "unit": "K"}, {"no": "reading"}]'
    text = "INSERT INTO temperature SELECT * FROM sensors WHERE value > 20 AND (unit IS NULL OR unit <> 'K')"
    assert [record["value"] for record in read(text, payload=rows)] == [25.0]
    with pytest.raises(payloads.PayloadError, match="item 0 of 4"):
        read("INSERT INTO temperature SELECT * FROM sensors WHERE value > 'warm'", payload=rows)


def outlet(kcql_text: str, counted: list[tuple[str, int]]) -> Outlet:
    (rule,), problems = compile_rules(kcql.parse(kcql_text), key="kcql", units={}, limits=payloads.Limits())
    assert not problems
    return Outlet(rule.route_for_server(SERVER), lambda _: b"", lambda topic, number: counted.append((topic, number)))


def test_a_condition_on_complete_messages_reads_their_fields_and_both_are_counted() -> None:
    counted: list[tuple[str, int]] = []
    sequences = payloads.SequenceGenerator()
    messages = outlet("INSERT INTO coap_sensor_topic SELECT * FROM sensors WHERE code = '2.05' AND rtt < 999", counted)
    assert len(messages.records(notification(), sequences)) == 1
    assert messages.records(notification(code="2.03"), sequences) == []
    readings = outlet(f"INSERT INTO thermostat.data {ALIASES} FROM sensors WHERE temperature > 30", counted)
    assert readings.records(notification(), sequences) == []
    assert counted == [("coap_sensor_topic", 1), ("thermostat.data", 1)]


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("_key = 'x'", "a CoAP payload has no key: only fields of the payload can be selected or compared"),
        ("cod = '2.05'", "WHERE: a complete message has no cod; did you mean code?"),
    ],
)
def test_a_condition_on_what_a_message_does_not_have_is_refused(condition: str, problem: str) -> None:
    statements = kcql.parse(f"INSERT INTO coap_sensor_topic SELECT * FROM sensors WHERE {condition}")
    _, problems = compile_rules(statements, key="kcql", units={}, limits=payloads.Limits())
    assert [one.message.startswith(problem) for one in problems] == [True]
