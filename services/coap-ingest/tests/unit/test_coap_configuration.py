"""Connector files: the documents' own, and every way to be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import payloads
from coap_ingest.__main__ import main
from coap_ingest.admission import Rate
from coap_ingest.connector_class import Listen, Plan, plan
from coap_ingest.discovery import Filters
from coap_ingest.resource import AddressError, Resource, Server, parse_resource, parse_server
from connector.config import ConfigError, parse

DOCUMENT = """\
name = coap-source
connector.class = com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector
max.tasks = 1
connect.coap.source.uri = coap://localhost:5633
connect.coap.kcql = INSERT INTO coap_sensor_topic SELECT * FROM sensors
"""
SERVER = Server("coap", "localhost", 5633)


def planned(text: str) -> Plan:
    return plan(parse(text), units={}, limits=payloads.Limits(), dead_letter_topic="coap-ingest.dead-letters")


def with_kcql(kcql: str) -> str:
    return DOCUMENT.replace("INSERT INTO coap_sensor_topic SELECT * FROM sensors", kcql)


def test_the_documents_file_works_as_printed() -> None:
    made = planned(DOCUMENT)
    (route,) = (rule.named(server) for server in made.servers for rule in made.rules)
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
    message, reading = (rule.named(SERVER) for rule in made.rules)
    assert message.resource == reading.resource
    assert reading.rules is not None
    assert reading.rules.metric == "temperature"
    assert reading.rules.units["temperature"] == "Cel"


@pytest.mark.parametrize(
    ("line", "topic"),
    [
        ("errors.deadletterqueue.topic.name = letters", "letters"),
        ("errors.deadletterqueue.enable = true", "coap-source.dead-letters"),
    ],
)
def test_dead_letters_go_where_connects_keys_say(line: str, topic: str) -> None:
    assert planned(f"{DOCUMENT}{line}\n").dead_letter_topic == topic


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("coap://localhost:5633", "coaps://localhost:5684", "coap.username: missing: a coaps:// server wants"),
        ("coap://localhost:5633", "coaps+tcp://localhost", "TLS is not supported"),
        ("coap://localhost:5633", "http://localhost", "scheme http is unknown; allowed: coap"),
        ("coap://localhost:5633", "coap://a, ftp://b", "scheme ftp is unknown"),
        ("coap://localhost:5633", "coap://discoverIP4", "multicast is not supported"),
        ("coap://localhost:5633", "coap://localhost:99999", "not an address"),
        ("coap://localhost:5633", "coap://localhost/sensors", "the resource is named by FROM"),
        ("coap_sensor_topic", "nowhere", "topic nowhere is not declared; declared for coap-ingest: .*thermostat.data"),
        ("coap_sensor_topic", "alerts", "topic alerts is not written by coap-ingest"),
        ("SELECT *", "SELECT payload", "takes SELECT \\* only"),
        ("SELECT * FROM sensors", "SELECT * FROM sensors IGNORE payload", "takes SELECT \\* only"),
        ("FROM sensors", "FROM sensors WITHFORMAT JSON", "holds AVRO"),
        ("FROM sensors", "FROM sensors STOREAS QUEUE", "STOREAS"),
        ("FROM sensors", "FROM sensors WITHKEY(payload)", "keyed by device"),
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
def test_what_cannot_be_done_is_refused_by_name(old: str, new: str, expected: str) -> None:
    assert old in DOCUMENT
    with pytest.raises(ConfigError, match=expected):
        planned(DOCUMENT.replace(old, new))


@pytest.mark.parametrize("key", ["connect.coap.source.uri", "connect.coap.kcql"])
def test_required_keys_are_missed_by_name(key: str) -> None:
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
    assert [rule.named(server).resource.uri for server in made.servers] == [
        "coap://a:5683/sensors",
        "coap+tcp://b:1/sensors",
        "coaps://[::1]:5684/sensors",
    ]
    assert made.psk is not None
    assert "secret" not in repr(made)


LISTENING = DOCUMENT.replace(
    "connect.coap.source.uri = coap://localhost:5633", "connect.coap.listen = coap://127.0.0.1"
)


def test_a_listener_takes_the_place_of_servers() -> None:
    listen = planned(LISTENING + "connect.coap.listen.rate.limit = 5:60\n").listen
    assert listen == Listen(Server("coap", "127.0.0.1", 5683), Rate(5, 60), 10_000)
    assert planned(DOCUMENT).listen is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("connect.coap.uri = coap://a", "not together with connect.coap.uri"),
        ("connect.coap.listen.rate.limit = 5", "expected n:seconds"),
        ("connect.coap.listen.timeout.ms = 1", "at least 1000"),
    ],
)
def test_what_a_listener_cannot_be_is_refused_by_name(line: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        planned(f"{LISTENING}{line}\n")


@pytest.mark.parametrize("scheme", ["coaps", "coap+tcp"])
def test_devices_send_over_udp_only(scheme: str) -> None:
    with pytest.raises(ConfigError, match="devices can send over UDP only"):
        planned(LISTENING.replace("coap://", f"{scheme}://"))


def test_a_pattern_and_filters_say_what_is_discovered() -> None:
    made = planned(
        with_kcql("INSERT INTO coap_sensor_topic SELECT * FROM `sensors/*`")
        + "connect.coap.discovery.rt = temperature, core.*\nconnect.coap.discovery.obs = false\n"
    )
    (rule,) = made.rules
    assert rule.matches(Resource(SERVER, ("sensors", "7")))
    assert not rule.matches(Resource(SERVER, ("sensors",)))
    assert made.filters == Filters(("temperature", "core.*"), (), observable_only=False)
