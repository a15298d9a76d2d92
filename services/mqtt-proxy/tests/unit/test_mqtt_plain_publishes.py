"""With the compiled way of plain publishes, Kafka, client and metrics see what they see without it."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given, settings
from mqtt_packets import packet, publish_packet
from mqtt_plain_world import TOPIC, PlainWorld, plain
from structlog.testing import capture_logs

from isotherm.mqtt_proxy.codec.packets import PINGREQ
from isotherm.mqtt_proxy.delivery.transactional_writer import WriteResult
from isotherm.mqtt_proxy.hotpath import compiled_ingest
from isotherm.mqtt_proxy.server import session_manager

TIMED_OUT, TOO_LARGE = KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE
ACL = "topic write devices/+/temperature\ntopic write plain/#"


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


TOPICS = st.sampled_from(
    (
        TOPIC,
        "devices/loft/temperature",
        "plain/x",
        "plain/temperature",
        "twice/a",
        "raw/a",
        "filtered/a/temperature",
        "filtered/none/temperature",
        "nobody",
        "",
        "a/+",
        "a\x01",
        "ü/ä",
    )
)
DEVICES = st.sampled_from(
    ("attic", "loft", "special", "", "a b", "ü", "x" * 60, "x" * 250, "$x", "a+b", "a#", "a/b", "a\x7f", "a\x01", "0")
)
PAYLOADS = st.sampled_from(
    (
        b'{"t": 21.5}',
        b'{"t": 3, "ts": 1767225600000, "seq": 4}',
        b"21.5",
        b'{"value": 1}',
        b'{"value": 1, "device_id": "loft"}',
        b'{"t": 1, "id": "loft"}',
        b"{broken",
        b'[{"t": 1}]',
        b'[{"t": 1, "value": 1}, {"t": 2, "value": 2}, {"t": 3, "value": 3, "id": "loft"}]',
        b'[{"t": 1, "value": 1}, {"t": 2, "value": 2}]',
        b'[{"t": 1}, {}]',
        b"",
    )
)


PUBREL_BODIES = st.one_of(
    st.integers(0, 9).map(lambda number: bytes((0, number))),
    st.sampled_from((b"", b"\0", b"\0\1\0", b"\0\2\x92", b"\0\3\0\0", b"\0\4\0\3\x1f\0\0")),
)


@st.composite
def packets(draw: st.DrawFn, version: int) -> bytes:
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return PINGREQ
    if kind == 1:
        return draw(st.binary(max_size=6))
    if kind == 2:
        return packet(0x62, bytes((0, draw(st.integers(0, 9)))))
    if kind == 3:
        return packet(draw(st.sampled_from((0x62, 0x62, 0x62, 0x60))), draw(PUBREL_BODIES))
    qos = draw(st.sampled_from((0, 1, 1, 1, 2, 2, 2))) if kind > 4 else 1
    flags = qos << 1 | draw(st.sampled_from((0,) * 12 + (1, 8, 9)))
    properties = draw(st.sampled_from((b"\0",) * 8 + (b"\2\1\1", b"\3\x23\0\1"))) if version == 5 else b""
    packet_id = draw(st.integers(0 if kind == 7 else 1, 9)) if qos else None
    topic, payload = TOPIC, b'{"t": 21.5}'
    if kind > 12:
        first = draw(st.sampled_from(("devices", "homes")))
        topic, payload = f"{first}/{draw(DEVICES)}/temperature", draw(PAYLOADS)
    elif kind > 10:
        topic, payload = draw(TOPICS), draw(PAYLOADS)
    return publish_packet(topic, payload, flags=flags, packet_id=packet_id, properties=properties)


RESULTS = st.sampled_from((*(WriteResult.COMMITTED,) * 4, WriteResult.ABORTED, WriteResult.ABORTED_RECORD_AT_FAULT))
STEPS = st.one_of(
    st.tuples(st.just("receive"), st.integers(1, 300)),
    st.tuples(st.just("receive"), st.integers(1, 300)),
    st.tuples(
        st.just("report"), st.lists(st.sampled_from((None,) * 6 + (TIMED_OUT, TOO_LARGE)), min_size=1, max_size=9)
    ),
    st.tuples(
        st.just("refuse"),
        st.tuples(
            st.sampled_from((None, BufferError(), KafkaException(KafkaError(KafkaError._STATE)))), st.integers(0, 5)
        ),
    ),
    st.tuples(st.just("acl"), st.sampled_from(("", ACL, "topic write nothing"))),
    st.tuples(st.just("transaction"), RESULTS),
    st.tuples(st.just("transaction"), RESULTS),
)
WORLDS = st.fixed_dictionaries(
    {"version": st.sampled_from((4, 5)), "acl": st.sampled_from(("", ACL))},
    optional={
        "limits": st.fixed_dictionaries(
            {},
            optional={
                "receive_maximum": st.integers(1, 5),
                "outstanding_records": st.integers(1, 6),
                "outstanding_bytes": st.integers(1_000, 9_000),
                "packet_bytes": st.integers(40, 100),
                "messages_per_client": st.just("3:1000"),
            },
        ),
        "invalid_publish": st.just("refuse"),
        "identity": st.just({"device_id": "topic"}),
        "no_route": st.just("drop"),
        "max_outstanding": st.integers(1, 8),
        "is_clean": st.booleans(),
        "headers": st.just({"packet_id": True}),
        "sample_ratio": st.sampled_from((0.2, 0.5, 1.0)),
    },
)


def play(world: PlainWorld, stream: bytes, steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """What was seen after each step."""
    seen, at = [], 0
    for action, how in steps:
        if action == "receive":
            world.receive(stream[at : at + how])
            at += how
        elif action == "report":
            world.report(how)
        elif action == "transaction":
            world.end_transaction(how)
        elif action == "refuse":
            world.kafka.refusal, world.kafka.room = how
        else:
            world.change_acl(how)
        seen.append(world.seen | {"records": list(world.kafka.records)})
    return seen


@given(data=st.data(), options=WORLDS, steps=st.lists(STEPS, max_size=12))
@settings(max_examples=60)
def test_all_ways_are_equal(
    loop: asyncio.AbstractEventLoop, data: st.DataObject, options: dict[str, Any], steps: list[tuple[str, Any]]
) -> None:
    stream = b"".join(data.draw(st.lists(packets(options["version"]), max_size=30)))
    direct, bound, pure = (
        PlainWorld(loop, is_compiled=is_compiled, is_direct=is_direct, **options)
        for is_compiled, is_direct in ((True, True), (True, False), (False, False))
    )
    # A session that ends is stored with the time at which it expires: both have to end at the same one.
    with patch.object(session_manager, "now_ms", lambda: 1_795_000_000_000):
        expected = play(pure, stream, steps)
        assert play(direct, stream, steps) == expected
        assert play(bound, stream, steps) == expected


def test_the_compiled_way_is_taken(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=True)
    handler, taken = world.connection._publishes, cast(list[int], [])
    take = world.plain.take

    def counted() -> int:
        taken.append(take())
        return taken[-1]

    handler.plain = cast(Any, SimpleNamespace(take=counted, close=world.plain.close, has_taken_all=False))
    world.receive(b"".join(plain(number) for number in range(1, 21)))
    assert taken == [20]
    world.report([None] * 20)
    assert world.seen["answers"][4:] == b"".join(b"\x40\2" + number.to_bytes(2, "big") for number in range(1, 21))
    assert (
        world.seen["metrics"]["isotherm_mqtt_proxy_readings_stored_total", ("topic", "thermostat.data"), ("qos", "1")]
        == 20
    )


def test_without_it_nothing_is_compiled(loop: asyncio.AbstractEventLoop) -> None:
    with capture_logs() as logged:
        assert PlainWorld(loop, is_compiled=False).plain is None
    assert [(line["event"], line["log_level"]) for line in logged] == [("plain publishes are not compiled", "info")]


def test_a_module_that_is_not_built_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOTHERM_PURE_PYTHON", raising=False)
    monkeypatch.setitem(sys.modules, "isotherm.mqtt_proxy.hotpath.plain_ingest", None)
    with capture_logs() as logged:
        assert compiled_ingest(cast(Any, None), 0) is None
    assert [(line["event"], line["log_level"]) for line in logged] == [("plain publishes are not compiled", "warning")]


def test_a_revoked_permission_holds_at_once(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=True, version=5, acl=ACL)
    world.receive(plain(1, version=5))
    world.change_acl("topic write nothing")
    world.receive(plain(2, version=5))
    assert len(world.kafka.records) == 1


def test_long_topics_are_not_remembered(loop: asyncio.AbstractEventLoop) -> None:
    """An ordinary topic takes 2.5 KB, and `limits.topic_bytes` allows 64 KB."""
    world = PlainWorld(loop, is_compiled=True)
    payload = b'{"value": 1, "metric": "m", "unit": "K"}'
    for number in range(1, 4):
        topic = f"plain/{'long' * 70}/{number}"
        world.receive(publish_packet(topic, payload, flags=2, packet_id=number))
    assert len(world.kafka.records) == 3
    assert world.plain.plans == 0
    world.receive(publish_packet("plain/short", payload, flags=2, packet_id=4))
    assert world.plain.plans == 1


@pytest.mark.parametrize("acl", ["", ACL])
def test_topics_that_differ_in_their_device_share_a_plan(loop: asyncio.AbstractEventLoop, acl: str) -> None:
    worlds = [PlainWorld(loop, is_compiled=is_compiled, acl=acl) for is_compiled in (True, False)]
    for world in worlds:
        for number in range(1, 300):
            world.receive(plain(number, number % 2, topic=f"devices/{number}/temperature"))
            world.report([None])
    assert worlds[0].plain.plans == 1
    assert [key for _, key, *_ in worlds[0].kafka.records] == [str(number) for number in range(1, 300)]
    assert worlds[0].seen == worlds[1].seen


def test_a_device_that_has_a_route_of_its_own_takes_it(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=True)
    for number, device in enumerate(("loft", "special", "attic"), 1):
        world.receive(plain(number, topic=f"homes/{device}/temperature"))
    assert [topic for topic, *_ in world.kafka.records] == ["all", "all", "raw.texts", "all"]


def test_plans_are_bounded_and_forgotten(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=True, limits={"receive_maximum": 1_000})
    for number in range(1, 300):
        payload = b'{"value": 1, "metric": "m", "unit": "K", "device_id": "%d"}' % number
        world.receive(publish_packet(f"plain/{number}", payload, flags=2, packet_id=number))
    assert 1 < world.plain.plans <= 128
    assert [key for _, key, *_ in world.kafka.records] == [str(number) for number in range(1, 300)]
    world.receive(b"\xe0\0")
    assert world.plain.plans == 0


def _publish_to(world: PlainWorld, topics: int) -> None:
    """Publish to each of so many topics at every QoS; all stand for themselves."""
    for number in range(1, topics + 1):
        payload = b'{"value": 1, "metric": "m", "unit": "K"}'
        for qos in (0, 1, 2):
            packet_id = number if qos else None
            world.receive(publish_packet(f"plain/{'ü' * 40}/{number}", payload, flags=qos << 1, packet_id=packet_id))
        world.report([None, None])


def _remembered_bytes(world: PlainWorld) -> float:
    return world.metrics.gauges["topic_cache_bytes"]()


def test_remembered_topics_are_bounded_in_bytes(loop: asyncio.AbstractEventLoop) -> None:
    """All connections share the bound; beyond it publishes are stored as before."""
    world = PlainWorld(loop, is_compiled=True, limits={"topic_cache_bytes": 20_000, "receive_maximum": 1_000})
    _publish_to(world, 100)
    assert 10_000 < _remembered_bytes(world) <= 20_000
    assert len(world.kafka.records) == 200
    world.receive(b"\xe0\0")
    assert _remembered_bytes(world) == 0


def test_topic_aliases_are_counted_until_their_connection_ends(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=True, version=5)
    aliased = world.metrics.gauges["topic_alias_bytes"]
    world.receive(publish_packet("plain/x", b"1", properties=b"\x03\x23\0\1"))
    assert aliased() > len("plain/x")
    world.receive(b"\xe0\0")
    assert (aliased(), world.wire.closed) == (0, True)


def test_a_gateway_is_served_by_one_pattern_beyond_the_bound(loop: asyncio.AbstractEventLoop) -> None:
    worlds = [
        PlainWorld(loop, is_compiled=is_compiled, limits={"topic_cache_bytes": 0}) for is_compiled in (True, False)
    ]
    for world in worlds:
        for number in range(1, 30):
            world.receive(plain(number, number % 2, topic=f"devices/{number}/temperature"))
            world.report([None])
    assert worlds[0].plain.plans == 0
    assert worlds[0].seen == worlds[1].seen


def test_remembered_topics_take_no_more_than_is_counted(loop: asyncio.AbstractEventLoop) -> None:
    world = PlainWorld(loop, is_compiled=True, limits={"receive_maximum": 1_000})
    tracemalloc.start()
    try:
        _publish_to(world, 120)
        world.kafka.records.clear()
        counted = _remembered_bytes(world)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        world.plain.close()
        gc.collect()
        freed = before - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # The open transaction keeps the headers of QoS 2, and the cache of routes the topics.
    assert counted / 5 < freed <= counted
