"""Connector files: those of the documents, and invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coap_configuring import DOCUMENT, LISTENING, SERVER, planned, with_kcql

from isotherm import payloads
from isotherm.coap_ingest.__main__ import main
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.resource import (
    AddressError,
    Resource,
    Server,
    parse_resource,
    parse_server,
)
from isotherm.coap_ingest.ingest.routes import Values
from isotherm.coap_ingest.observe.link_filter import LinkFilter
from isotherm.connector.config.files import ConfigError
from isotherm.connector.errors.policies import (
    Action,
    ErrorPolicy,
    Failure,
    Policy,
)


def test_the_documents_file_works_as_printed() -> None:
    made = planned(DOCUMENT)
    (route,) = (rule.route_for_server(server) for server in made.observe.servers for rule in made.rules)
    assert (made.name, made.notices) == ("coap-source", ())
    assert route.resource.uri == "coap://localhost:5633/sensors"
    assert (route.topic.name, route.rules) == ("coap_sensor_topic", None)
    assert made.dead_letter_topic == "coap-ingest.dead-letters"


def test_several_statements_read_one_resource_into_several_topics() -> None:
    made = planned(
        with_kcql(
            "INSERT INTO coap_sensor_topic SELECT * FROM sensors; INSERT INTO thermostat.data SELECT sensorId AS "
            "device_id, temperature AS value, timestamp AS event_time FROM /sensors"
        )
    )
    message, reading = (rule.route_for_server(SERVER) for rule in made.rules)
    assert message.resource == reading.resource
    assert reading.rules is not None
    assert reading.rules.metric == "temperature"
    assert reading.rules.units["temperature"] == "Cel"


@pytest.mark.parametrize(
    ("line", "topic"),
    [
        ("errors.deadletterqueue.topic.name = dlq", "dlq"),
        ("errors.deadletterqueue.enable = true", "coap-source.dead-letters"),
    ],
)
def test_dead_letters_go_where_connects_keys_say(line: str, topic: str) -> None:
    assert planned(f"{DOCUMENT}{line}\n").dead_letter_topic == topic


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("coap://localhost:5633", "coaps://localhost:5684", "coap.username: missing: a coaps:// server needs"),
        ("coap://localhost:5633", "coaps+tcp://localhost", "TLS is not supported"),
        ("coap://localhost:5633", "http://localhost", "scheme http is unknown; allowed: coap"),
        ("coap://localhost:5633", "coap://a, ftp://b", "scheme ftp is unknown"),
        ("coap://localhost:5633", "coap://discoverIP4", "multicast is not supported"),
        ("coap://localhost:5633", "coap://localhost:99999", "not an address"),
        ("coap://localhost:5633", "coap://localhost/sensors", "the resource is named by FROM"),
        ("coap_sensor_topic", "nowhere", "topic nowhere is not declared; declared for coap-ingest: .*thermostat.data"),
        ("coap_sensor_topic", "alerts", "topic alerts is not written by coap-ingest"),
        ("SELECT *", "SELECT payload", "accepts SELECT \\* only"),
        ("SELECT * FROM sensors", "SELECT * FROM sensors IGNORE payload", "accepts SELECT \\* only"),
        ("FROM sensors", "FROM sensors WITHFORMAT JSON", "values are AVRO, by value.converter"),
        ("max.tasks = 1", "value.converter = json", "declared with AVRO values, and its readers rely on them"),
        ("max.tasks = 1", "value.converter = xml", "value.converter"),
        ("max.tasks = 1", "connect.coap.error.policy = SHRUG", "THROW, NOOP, RETRY"),
        ("max.tasks = 1", "connect.coap.message.key = message_id", "auto, resource, device"),
        ("FROM sensors", "FROM sensors STOREAS QUEUE", "STOREAS"),
        (
            "INSERT INTO coap_sensor_topic SELECT *",
            "INSERT INTO thermostat.data SELECT a AS value FROM b WITHKEY(c); INSERT INTO coap_sensor_topic SELECT *",
            "readings are keyed by device",
        ),
        ("FROM sensors", "FROM sensors WITHKEY(_key.x)", "WITHKEY accepts fields of the payload"),
        ("FROM sensors", "FROM `a//b`", "segment of the path is empty"),
        ("INSERT INTO coap_sensor_topic SELECT *", "INSERT INTO thermostat.data SELECT _key AS value", "has no key"),
        ("INSERT INTO coap_sensor_topic SELECT *", "INSERT INTO _value.x SELECT *", "must be the name of a topic"),
        ("FROM sensors", "FROM `a/*?u=x`", "a pattern has no query"),
        ("max.tasks = 1", "connect.coap.username = me", "has a meaning for coaps:// only"),
        ("max.tasks = 1", "connect.coap.certs = a.pem", "certificates and raw public keys are not supported"),
        ("max.tasks = 1", "connect.coap.discovery.interval.ms = 5", "at least 100"),
        ("max.tasks = 1", "max.tasks = none", "whole number"),
    ],
)
def test_an_invalid_configuration_is_refused_by_name(old: str, new: str, expected: str) -> None:
    assert old in DOCUMENT
    with pytest.raises(ConfigError, match=expected):
        planned(DOCUMENT.replace(old, new))


@pytest.mark.parametrize("key", ["connect.coap.source.uri", "connect.coap.kcql"])
def test_a_missing_required_key_is_named(key: str) -> None:
    text = "".join(line for line in DOCUMENT.splitlines(keepends=True) if not line.startswith(key))
    with pytest.raises(ConfigError, match=key.replace("source.", "")):
        planned(text)


def test_a_bad_file_ends_the_start_with_code_2_and_every_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.properties"
    bad.write_text(with_kcql("INSERT INTO nowhere SELECT * FROM sensors"))
    assert main(["run", str(bad), str(tmp_path / "none.properties")]) == 2
    said = capsys.readouterr().err
    assert "connect.coap.kcql: topic nowhere is not declared" in said
    assert "none.properties" in said


def test_two_connectors_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "a.properties", tmp_path / "b.properties"]
    for file in files:
        file.write_text(DOCUMENT)
    assert main(["run", *map(str, files)]) == 2
    assert "'coap-source' is the name of another connector" in capsys.readouterr().err


def test_settings_that_contradict_each_other_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text(DOCUMENT)
    assert main(["run", str(file), "--set", "observation.silence_grace_min_ms=20000"]) == 2
    assert "silence_grace_min_ms must not exceed" in capsys.readouterr().err


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(AddressError, match="holds a user") as refused:
        parse_server("coap://me:se/cret@h")
    assert "cret" not in str(refused.value)


def test_addresses_have_defaults_and_a_canonical_form() -> None:
    assert parse_server("coap://[::1]").authority == "[::1]:5683"
    assert parse_server("device.local") == Server("coap", "device.local", 5683)
    assert parse_resource(SERVER, "/a/b%20c?u=%C2%B0&x") == Resource(SERVER, ("a", "b c"), ("u=°", "x"))
    assert parse_resource(SERVER, "a/b c?u=°").uri == "coap://localhost:5633/a/b%20c?u=%C2%B0"
    with pytest.raises(AddressError, match="UTF-8"):
        parse_resource(SERVER, "a%ff")


def test_one_statement_reads_several_servers_over_several_transports() -> None:
    made = planned(
        DOCUMENT.replace("coap://localhost:5633", "coap://a, coap+tcp://b:1, coaps://[::1]")
        + "connect.coap.username = me\nconnect.coap.password = secret\n"
    )
    (rule,) = made.rules
    assert [rule.route_for_server(server).resource.uri for server in made.observe.servers] == [
        "coap://a:5683/sensors",
        "coap+tcp://b:1/sensors",
        "coaps://[::1]:5684/sensors",
    ]
    assert made.psk is not None
    assert "secret" not in repr(made)


def test_json_messages_and_readings_go_to_topics_that_are_not_declared() -> None:
    made = planned(
        with_kcql("INSERT INTO raw.json SELECT * FROM sensors; INSERT INTO cel.json SELECT t AS value FROM sensors")
        + "value.converter = org.apache.kafka.connect.json.JsonConverter\nvalue.converter.schemas.enable = true\n"
    )
    message, reading = made.rules
    assert (message.topic.record, reading.topic.record) == ("CoapMessage", "SensorReading")
    assert message.topic.values is reading.topic.values is Values.JSON_WITH_SCHEMA


@pytest.mark.parametrize(
    ("converter", "expected"),
    [
        ("value.converter = org.apache.kafka.connect.json.JsonConverter", Values.JSON_WITH_SCHEMA),
        (
            "value.converter = org.apache.kafka.connect.json.JsonConverter\nvalue.converter.schemas.enable = false",
            Values.JSON,
        ),
        ("value.converter = json", Values.JSON),
        ("value.converter = json\nvalue.converter.schemas.enable = true", Values.JSON_WITH_SCHEMA),
    ],
)
def test_envelopes_are_the_default_of_connects_own_converter_alone(converter: str, expected: Values) -> None:
    (rule,) = planned(with_kcql("INSERT INTO raw.json SELECT * FROM sensors") + converter + "\n").rules
    assert rule.topic.values is expected


def test_every_ignored_key_of_the_value_converter_gives_a_notice() -> None:
    more = "value.converter.schema.registry.url = http://r\nvalue.converter.schema.enable = true\n"
    found = {notice.key: notice.message for notice in planned(DOCUMENT + more).notices}
    assert "the registry is the service's own" in found["value.converter.schema.registry.url"]
    assert "did you mean value.converter.schemas.enable" in found["value.converter.schema.enable"]


def test_the_error_policy_is_that_of_connect_with_dead_letters_always_on() -> None:
    assert planned(DOCUMENT).errors == ErrorPolicy(Policy.NOOP, dead_letters=True)
    configured = "connect.coap.error.policy = retry\nconnect.coap.max.retries = 3\nconnect.coap.retry.interval = 500\n"
    assert planned(DOCUMENT + configured).errors == ErrorPolicy(Policy.RETRY, 3, 500, dead_letters=True)
    both = "connect.coap.error.policy = THROW\nerrors.tolerance = all\n"
    assert planned(DOCUMENT + both).errors.decide(Failure.PERMANENT, 1) is Action.DEAD_LETTER


def keyed(text: str, payload: bytes, **more: Any) -> str:
    (rule,) = planned(text).rules
    resource = parse_resource(SERVER, "sensors")
    return rule.route_for_server(SERVER).key(notification(resource, payload, **more))


def test_a_message_is_keyed_by_resource_device_or_fields_of_its_payload() -> None:
    payload = b'{"id": "a", "room": {"n": 7}}'
    assert keyed(DOCUMENT, payload) == "coap://localhost:5633/sensors"
    assert keyed(DOCUMENT + "connect.coap.message.key = device\n", payload) == "localhost:5633"
    assert keyed(LISTENING, payload, device_id="dev-1") == "dev-1"
    chosen = with_kcql("INSERT INTO coap_sensor_topic SELECT * FROM sensors WITHKEY(id, room.n) KEYDELIMITER='-'")
    assert keyed(chosen, payload) == "a-7"
    with pytest.raises(payloads.PayloadError, match="id is not a text"):
        keyed(chosen, b"{}")
    with pytest.raises(payloads.PayloadError, match="2 different keys"):
        keyed(chosen, b'[{"id": "a", "room": {"n": 7}}, {"id": "b", "room": {"n": 7}}]')


def notification(resource: Resource, payload: bytes, **more: Any) -> Notification:
    return Notification(
        resource=resource,
        arrived_ms=1,
        rtt_ms=0,
        code="2.05",
        raw_code=69,
        message_type="NON",
        message_id=1,
        token=b"t",
        destination="",
        payload=payload,
        content_format=50,
        **more,
    )


def test_a_pattern_and_a_filter_select_the_discovered_resources() -> None:
    made = planned(
        with_kcql("INSERT INTO coap_sensor_topic SELECT * FROM `sensors/*`")
        + "connect.coap.discovery.rt = temperature, core.*\nconnect.coap.discovery.obs = false\n"
    )
    (rule,) = made.rules
    assert rule.matches(Resource(SERVER, ("sensors", "7")))
    assert not rule.matches(Resource(SERVER, ("sensors",)))
    assert made.observe.filter == LinkFilter(("temperature", "core.*"), (), observable_only=False)
