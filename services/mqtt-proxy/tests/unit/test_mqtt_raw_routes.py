"""Raw routes: the payload of a publish is the value of its record, byte by byte."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from mqtt_rules import ingest_rules

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.ingest.plain_route import Encode
from isotherm.mqtt_proxy.ingest.producer_record import RECORD_BYTES, ProducerRecord, headers_bytes
from isotherm.mqtt_proxy.ingest.routes import Router, kcql_routes, regex_routes
from isotherm.mqtt_proxy.ingest.topic_encoders import MissingTopicError, TopicEncoders
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext, Translator
from isotherm.servicekit.settings import SettingsError

RAW = "INSERT INTO events SELECT * FROM devices/+/event WITHFORMAT RAW"
READINGS = "INSERT INTO readings SELECT * FROM devices/#"


def _encode(_reading: Mapping[str, Any]) -> bytes:
    return b"avro"


def translator(routes: str = RAW, *, regex: str = "", **rules: Any) -> Translator:
    compiled = kcql_routes(routes, device_level=None, metrics=frozenset()) if routes else []
    compiled += regex_routes(regex, device_level=None, is_raw=True) if regex else []
    encoders: dict[str, Encode] = {"readings": _encode}
    return Translator(Router(compiled, first_match_only=False), encoders, ingest_rules(units={"event": "1"}, **rules))


def translate(of: Translator, payload: bytes, username: str | None = None, **publish: Any) -> TranslatedPublish:
    context = IngestContext("client", 1_767_225_600_000, username)
    return of.translate(Publish(publish.pop("topic", "devices/d1/event"), payload, 1, **publish), context)


@given(st.binary(max_size=64))
def test_the_value_is_the_payload(payload: bytes) -> None:
    result = translate(translator(), payload)
    headers: list[tuple[str, bytes | str | None]] = [
        ("mqtt.topic", "devices/d1/event"),
        ("mqtt.qos", "1"),
        ("mqtt.client_id", "client"),
    ]
    assert result.records == [ProducerRecord("events", "d1", payload, headers)]
    assert (result.readings, result.dead_letters) == ([("events", 1)], [])
    assert result.bytes == RECORD_BYTES + headers_bytes(headers) + len("d1") + len(payload)


def test_the_compiled_way_takes_no_raw_route() -> None:
    assert translator().plain_route("devices/d1/event", IngestContext("client")) is None
    assert translator("", regex="anything:.*").plain_route("a", IngestContext("client")) is None


def test_an_array_and_an_unknown_content_type_are_bytes_as_any_other() -> None:
    result = translate(translator(), b"[1,2,3,4,5,6]", properties={Property.CONTENT_TYPE: "image/png"})
    assert [record.value for record in result.records] == [b"[1,2,3,4,5,6]"]
    assert ("mqtt.content_type", "image/png") in result.records[0].headers


def test_the_client_is_the_key_where_no_level_names_the_device() -> None:
    (record,) = translate(translator("", regex="anything:.*"), b"x", topic="a/b").records
    assert (record.topic, record.key) == ("anything", "client")


@pytest.mark.parametrize("routes", [f"{RAW}; {READINGS}; {READINGS}", f"{READINGS}; {READINGS}; {RAW}"])
def test_a_payload_that_is_no_reading_is_stored_raw_and_has_one_dead_letter(routes: str) -> None:
    result = translate(translator(routes), b"opened")
    assert sorted((record.topic, record.value) for record in result.records) == [
        ("dead", b"opened"),
        ("events", b"opened"),
    ]
    assert (result.dead_letters, result.readings) == (["payload"], [("events", 1)])


def test_a_reading_goes_both_ways() -> None:
    result = translate(translator(f"{RAW}; {READINGS}"), b"true")
    assert [(record.topic, record.value) for record in result.records] == [("events", b"true"), ("readings", b"avro")]


@pytest.mark.parametrize(
    ("policy", "username", "key"),
    [
        ("user", "d1", "d1"),
        ("user", "anna", None),
        ("user", None, None),
        ("topic", None, "d1"),
        ("topic", "anna", "d1"),
    ],
)
def test_the_key_is_a_device_for_which_the_client_may_speak(policy: str, username: str | None, key: str | None) -> None:
    result = translate(translator(device_id=policy), b"x", username)
    assert [record.key for record in result.records if record.topic != "dead"] == ([key] if key else [])
    assert result.dead_letters == ([] if key else ["identity"])


def test_limits_of_topics_and_properties_hold() -> None:
    assert translate(translator("", regex="a:.*"), b"x", topic="t" * 101).dead_letters == ["topic too long"]
    many = {Property.USER_PROPERTY: [("n", "x")] * 33}
    assert translate(translator(), b"x", properties=many).dead_letters == ["properties"]


class _Kafka:
    """What the encoders ask: topics of the broker, subjects of the registry."""

    def __init__(self, topics: list[str], subjects: list[str]) -> None:
        self.topics = {name: SimpleNamespace(error=None) for name in topics}
        self.subjects = lambda: frozenset(subjects)

    def list_topics(self, timeout: float) -> _Kafka:
        assert timeout
        return self


@pytest.mark.parametrize(
    ("topics", "subjects", "error", "says"),
    [
        ([], [], MissingTopicError, "no topic events; create it"),
        (["events"], ["events-value"], SettingsError, "a raw route writes to events"),
    ],
)
def test_a_raw_topic_must_exist_and_have_no_schema(
    topics: list[str], subjects: list[str], error: type[Exception], says: str
) -> None:
    kafka: Any = _Kafka(topics, subjects)
    with pytest.raises(error, match=says):
        TopicEncoders(kafka, kafka, {}).require([], without_readings=[], raw=["events"])


def test_a_raw_topic_is_no_topic_of_readings() -> None:
    kafka: Any = _Kafka(["events"], ["other-value"])
    encoders = TopicEncoders(kafka, kafka, {})
    encoders.require([], without_readings=[], raw=["events"])
    assert encoders.encoders == {}
