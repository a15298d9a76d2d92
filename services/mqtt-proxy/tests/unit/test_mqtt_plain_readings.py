"""The compiled encoder writes the bytes that translator and fastavro write, or leaves a payload to them."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from mqtt_plain_world import NOW_MS, ROUTES, TARGETS
from mqtt_rules import MOST_READINGS, UNITS, ingest_rules

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.hotpath.compiled import FieldNames, ReadingEncoder
from isotherm.mqtt_proxy.ingest.routes import Router, kcql_routes, regex_routes
from isotherm.mqtt_proxy.ingest.translation import IngestContext, Translator
from isotherm.mqtt_proxy.service import READING
from isotherm.servicekit.avro import encoder

ENCODE = encoder(READING, 7)
CONTEXT = IngestContext("client", NOW_MS, "attic")


COMPILED_ROUTES = [
    *kcql_routes(ROUTES, device_level=None, metrics=frozenset(UNITS)),
    *regex_routes("temperature:old/.*temperature", device_level=1),
]


def translator(**rules: Any) -> Translator:
    return Translator(
        Router(COMPILED_ROUTES, first_match_only=False),
        dict.fromkeys(TARGETS, ENCODE),
        ingest_rules(topic_bytes=1_000, **rules),
    )


def compiled(topic: str, **rules: Any) -> ReadingEncoder:
    route = translator(**rules).plain_route(topic, CONTEXT)
    assert route is not None
    return ReadingEncoder(
        route.header,
        FieldNames(route.names),
        is_strict=route.is_strict,
        device_id=route.device_id,
        is_bound=route.is_bound,
        metric=route.metric,
        unit=route.unit,
        most_readings=route.most_readings,
    )


def pure(topic: str, payload: bytes, **rules: Any) -> list[tuple[object, object]] | None:
    """Key and value of each record; None for a dead letter."""
    translated = translator(**rules).translate(Publish(topic, payload, 1), CONTEXT)
    return None if translated.dead_letters else [(record.key, record.value) for record in translated.records]


RENAMED, SAME, OLD = "devices/attic/temperature", "plain/temperature", "old/loft/temperature"
TOPICS = st.sampled_from((RENAMED, SAME, OLD, "devices/bäd/temperature", "plain/unknown", f"plain/{'t' * 300}"))
POLICIES = st.sampled_from(({}, {"device_id": "topic"}, {"device_id": "user"}))

NAMES = st.sampled_from(
    ("id", "t", "ts", "seq", "u", "device_id", "metric", "value", "unit", "event_time", "sequence", "attributes", "x")
)
NUMBERS = st.one_of(
    st.floats(-1e6, 1e6).map(repr),
    st.decimals(-(10**6), 10**6, places=2).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from((NOW_MS, NOW_MS // 1000, 0, 10**14, 10**14 - 1, 10**11, 10**11 - 1, 10**18)).map(str),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(("-0", "-0.0", "+1", ".5", "5.", "0x1", "1_0", "NaN", "Infinity", "9007199254740993.5")),
)
TEXTS = st.one_of(
    st.sampled_from(("attic", "loft", "client", "temperature", "Cel", "", "d" * 256, "d" * 257)).map(json.dumps),
    st.text(max_size=6).map(json.dumps),
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(('"a\\u0041"', '"a\tb"', '"', '"\x7f"')),
)
VALUES = st.one_of(NUMBERS, TEXTS, st.sampled_from(("true", "false", "null", "nul", "[]", "{}", "[1]", '{"a": 1}', "")))
SPACE = st.sampled_from(("", "", "", " ", "\n\t", "\r", "\v", "\xa0"))


@st.composite
def objects(draw: st.DrawFn) -> str:
    members = draw(st.lists(st.tuples(SPACE, NAMES.map(json.dumps), SPACE, SPACE, VALUES, SPACE), max_size=7))
    inside = ",".join(f"{a}{name}{b}:{c}{value}{d}" for a, name, b, c, value, d in members)
    return f"{draw(SPACE)}{{{inside}}}{draw(SPACE)}"


PLAIN = st.fixed_dictionaries(
    {"t": st.floats(-1e6, 1e6).map(lambda number: round(number, 3)), "value": st.floats(-1e3, 1e3)},
    optional={
        "id": st.sampled_from(("attic", "loft")),
        "device_id": st.sampled_from(("attic", "loft")),
        "ts": st.integers(0, 10**14),
        "event_time": st.integers(0, 10**14),
        "seq": st.integers(0, 10**17),
        "u": st.sampled_from(("K", "Cel")),
        "metric": st.sampled_from(("brightness", "m")),
        "unit": st.sampled_from(("K", "")),
    },
).map(json.dumps)


@st.composite
def arrays(draw: st.DrawFn, items: st.SearchStrategy[str]) -> str:
    inside = ",".join(f"{a}{item}{b}" for a, item, b in draw(st.lists(st.tuples(SPACE, items, SPACE), max_size=7)))
    return f"{draw(SPACE)}[{inside}]{draw(SPACE)}"


PAYLOADS = st.one_of(
    PLAIN, objects(), arrays(PLAIN), arrays(st.one_of(PLAIN, PLAIN, PLAIN, objects(), VALUES)), NUMBERS, VALUES
).map(str.encode) | st.binary(max_size=40)


@given(topic=TOPICS, payload=PAYLOADS, rules=POLICIES, sequence=st.integers(0, 2**62))
def test_both_write_the_same_bytes(topic: str, payload: bytes, rules: dict[str, str], sequence: int) -> None:
    same = translator(**rules)
    route = same.plain_route(topic, CONTEXT)
    if route is None:
        return
    found = compiled(topic, **rules).encode_payload(payload, NOW_MS, sequence)
    if found is None:
        return
    same.take_sequences(NOW_MS, sequence)
    translated = same.translate(Publish(topic, payload, 1), CONTEXT)
    assert not translated.dead_letters
    assert [(record.key, record.value) for record in translated.records] == found


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        (RENAMED, b'{"t":21.5}'),
        (RENAMED, b' { "id" : "loft" , "t" : -21 , "ts" : 1767225600123 , "seq" : 7 , "other" : null } '),
        (RENAMED, b'{"t": 21.499999999999996, "ts": 1767225600, "battery": "full", "ok": true}'),
        (RENAMED, b'{"t": 0.1234567890123456789012345678901234567890}'),
        (SAME, b"21.5"),
        (SAME, b" -3 "),
        (SAME, b'{"device_id": "loft", "metric": "m", "value": 1.0, "unit": ""}'),
        (OLD, b'{"value": 4503599627370497.5}'),
        (RENAMED, b'[{"t": 1}]'),
        (RENAMED, b' [ {"t": 1, "seq": 9} ,{"t": 2.5, "id": "loft"}, {"t": 3}\n, {"t": 4, "ts": 1767225600} ] '),
        (SAME, b"[" + b",".join([b'{"value": 1}'] * MOST_READINGS) + b"]"),
    ],
)
def test_what_is_plain_is_encoded(topic: str, payload: bytes) -> None:
    found = compiled(topic).encode_payload(payload, NOW_MS, 0)
    assert found is not None
    assert found == pure(topic, payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        b'{"t": "21.5"}',
        b'{"t": 1, "t": 2}',
        b'{"t": 21.5, "nested": {}}',
        b'{"t": 21.5} x',
        b'{"t": 21.5,}',
        b'{"t": 21.5',
        b'{"t": 01}',
        b'{"t": -0}',
        b'{"t": 1e3}',
        b'{"t": 12345678901234567890}',
        b'{"t": 1, "id": ""}',
        b'{"t": 1, "id": null}',
        b'{"t": 1, "id": "\xc3\xa4"}',
        b'{"t": 1, "id": "\\u0061"}',
        b'{"t": 1, "ts": -1}',
        b'{"t": 1, "ts": 100000000000000}',
        b'{"t": 1, "seq": -1}',
        b'{"t": 1' + b',"a": 1' * 64 + b"}",
        b"[1]",
        b'[[{"t": 1}]]',
        b'[{"t": 1}',
        b'[{"t": 1},',
        b'[{"t": 1},]',
        b'[{"t": 1}}',
        b'[{"t": 1}] x',
        b'[{"t": 1} {"t": 2}]',
        b'[{"t": 1}, {}]',
        b'[{"t": 1}, {"t": "21.5"}]',
        b'[{"t": 1}, null]',
        b"[" + b",".join([b'{"t": 1}'] * (MOST_READINGS + 1)) + b"]",
    ],
)
def test_what_is_not_plain_is_left_to_the_translator(payload: bytes) -> None:
    assert compiled(RENAMED).encode_payload(payload, NOW_MS, 0) is None


def test_a_bound_client_names_no_other_device() -> None:
    bound = compiled(RENAMED, device_id="topic")
    assert bound.encode_payload(b'{"t": 1, "id": "attic"}', NOW_MS, 0) is not None
    assert bound.encode_payload(b'{"t": 1, "id": "loft"}', NOW_MS, 0) is None


@pytest.mark.parametrize("topic", ["twice/a", "raw/a", "nobody/listens", "devices/" + "x" * 1_000 + "/temperature"])
def test_a_topic_with_several_routes_or_a_raw_one_or_none_has_no_plain_route(topic: str) -> None:
    assert translator().plain_route(topic, CONTEXT) is None


def test_another_schema_has_no_plain_route() -> None:
    of = translator()
    of._encoders = dict.fromkeys(TARGETS, lambda _record: b"\0\0\0\0\7other")
    assert of.plain_route(RENAMED, CONTEXT) is None
