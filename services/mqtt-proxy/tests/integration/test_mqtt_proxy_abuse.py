"""Clients that send too much, too often or under the name of other devices: the cost is bounded."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    ConfigResource,
    ResourceType,
)
from mqtt_devices import PUBACK, PUBCOMP, PUBREC, Wire, packet, publish_packet, text
from mqtt_world import Proxy, opened, wait_until

from isotherm.servicekit.kafka import clients
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

DEAD_LETTERS = "mqtt-proxy.dead-letters"
MIB = 1024 * 1024
ITEMS = 1_000
# By mosquitto_passwd 2.0.11, password sesame-7.
ATTIC = (
    "attic:$7$101$1hfxihBN+EiQb80V$"
    "kcSeDNY9kkM2HKZfRTheWidEp9NGDlozdLSH5bo0BQ2WGz2MCVLDb3Ss1CYyq1Br2g1I/IxbV7oXY5rRd0smRA==\n"
)


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def with_property(topic: str, payload: bytes, packet_id: int, value: bytes) -> bytes:
    """An MQTT 5 PUBLISH of QoS 1 with one user property of less than 64 KB."""
    pair = b"\x26" + text(b"n") + text(value)
    length = packet(0, pair)[1 : -len(pair)]
    return packet(0x32, text(topic.encode()) + struct.pack(">H", packet_id) + length + pair + payload)


ARRAY = b"[%b]" % b",".join([b'{"t":1}'] * ITEMS)
"""As many readings as one payload may hold, in few bytes."""


def dead_letters(proxy: Proxy, topic: str = DEAD_LETTERS) -> list[tuple[bytes, dict[str, str]]]:
    """(payload, headers) of those of this test's clients."""
    return [(value, headers) for _, value, headers in proxy.topics.raw(topic, proxy.device)]


def test_one_publish_becomes_no_more_than_the_stated_bound(proxy: Proxy, kafka: Kafka) -> None:
    publishes, property_bytes = 30, 4_000
    proxy.start()
    before = proxy.peak_resident_mib()
    wire = Wire(proxy, proxy.device, version=5)
    topic, payload = f"devices/{proxy.device}/temperature", ARRAY
    wire.send(with_property(topic, payload, 1, b"x" * 50_000))
    wire.expect(PUBACK, 1)
    assert proxy.metric('dead_letters_total{reason="properties"}') == 1
    kafka.pause()
    try:
        for number in range(publishes):
            wire.send(with_property(topic, payload, number + 1, b"x" * property_bytes))
        wait_until("the bound is reached", lambda: proxy.metric("connections_waiting") == 1)
        outstanding = proxy.metric("outstanding_bytes")
        one = ITEMS * (property_bytes + 1_500)
        assert 64 * MIB <= outstanding <= 64 * MIB + one, "the bound, and one publish beyond it"
        grown = proxy.peak_resident_mib() - before
    finally:
        kafka.resume()
    for number in range(publishes):
        wire.expect(PUBACK, number + 1)
    print(f"{before:.0f} MiB before, {grown:.0f} MiB more at the bound")  # noqa: T201  # the figure for the results
    assert grown < 2 * 64, "what is charged is about what it takes"
    assert len(proxy.topics.values(proxy.device)) == publishes * ITEMS


def test_a_client_speaks_for_no_other_device(proxy: Proxy, tmp_path: Path) -> None:
    mine, victim = f"{proxy.device}-mine", f"{proxy.device}-victim"
    (tmp_path / "users").write_text(ATTIC)
    (tmp_path / "acl").write_text(f"user attic\ntopic write devices/{mine}/#\n")
    proxy.start(
        allow_anonymous="false",
        password_file=tmp_path / "users",
        acl_file=tmp_path / "acl",
        routes="INSERT INTO thermostat.data SELECT * FROM devices/+/temperature",
    )
    topic = f"devices/{mine}/temperature"
    senml = b'[{"bn":"%b:","n":"temperature","u":"Cel","v":4}]' % victim.encode()
    claims = [
        json.dumps({"value": 1, "device_id": victim}).encode(),
        json.dumps([{"value": 2}, {"value": 2, "device_id": victim}]).encode(),
        json.dumps([{"value": 3, "device_id": mine}, {"value": 3, "device_id": victim}]).encode(),
        senml,
    ]
    for version in (4, 5):
        wire = Wire(proxy, f"{proxy.device}-{version}", version=version, username="attic", password=b"sesame-7")
        for number, payload in enumerate(claims, start=1):
            wire.send(publish_packet(topic, payload, number, qos=1, version=version))
            wire.expect(PUBACK, number)
        wire.send(publish_packet(topic, b'{"value": 9}', 7, qos=2, version=version))
        wire.expect(PUBREC, 7)
    found = proxy.topics.readings("thermostat.data", proxy.device)
    assert [(reading["device_id"], reading["value"]) for reading, _ in found] == [(mine, 9.0)] * 2
    assert {headers["mqtt.username"] for _, headers in found} == {"attic"}
    records = dead_letters(proxy)
    assert [value for value, _ in records] == claims * 2
    for _, headers in records[:3]:
        assert f"may speak for '{mine}' only" in headers["__connect.errors.exception.message"]
        assert headers["mqtt.username"] == "attic"
    assert proxy.metric('dead_letters_total{reason="identity"}') >= 6


@pytest.mark.parametrize("version", [4, 5])
def test_a_record_that_kafka_refuses_is_a_dead_letter_and_not_sent_again_for_ever(proxy: Proxy, version: int) -> None:
    proxy.start(routes="INSERT INTO brightness SELECT v AS value, note FROM poison/+")
    wire = Wire(proxy, proxy.device, version=version)
    poison = json.dumps({"v": 1, "note": secrets.token_hex(4_000)}).encode()
    with proxy.topics.small_records("brightness"):
        for publishes in (((1, poison, 1),), ((2, b'{"v": 2}', 1),), ((0, poison, 0), (3, b'{"v": 3}', 1))):
            # The last two come together, so they are in one batch, of which Kafka refuses one record.
            sent = (
                publish_packet(f"poison/{proxy.device}", payload, packet_id, qos=qos, version=version)
                for packet_id, payload, qos in publishes
            )
            wire.send(b"".join(sent))
            wire.expect(PUBACK, publishes[-1][0])
        wait_until("all of them", lambda: proxy.metric('dead_letters_total{reason="refused"}') == 2)
    readings = proxy.topics.readings("brightness", proxy.device)
    assert [reading["value"] for reading, _ in readings] == [2.0, 3.0]
    records = dead_letters(proxy)
    assert [value for value, _ in records] == [poison, poison], "the original bytes"
    assert all("too large" in headers["__connect.errors.exception.message"] for _, headers in records)
    assert proxy.metric("messages_refused_total") == 0


@pytest.mark.parametrize("version", [4, 5])
def test_at_qos_2_it_is_a_dead_letter_exactly_once_and_harms_nobody(proxy: Proxy, version: int) -> None:
    proxy.start(routes="INSERT INTO brightness SELECT v AS value, note FROM poison/+", transactions__linger_ms=300)
    topic = f"poison/{proxy.device}"
    wire, other = Wire(proxy, proxy.device, version=version), Wire(proxy, f"{proxy.device}-other", version=version)
    poison = json.dumps({"v": 1, "note": secrets.token_hex(4_000)}).encode()
    with proxy.topics.small_records("brightness"):
        # One transaction, until Kafka refuses it.
        other.send(publish_packet(f"{topic}-other", b'{"v": 1}', 7, version=version))
        for packet_id, payload in ((1, b'{"v": 1}'), (2, poison), (3, b'{"v": 3}')):
            wire.send(publish_packet(topic, payload, packet_id, version=version))
        for packet_id in (1, 2, 3):
            wire.expect(PUBREC, packet_id)
        other.expect(PUBREC, 7)
        wire.send(publish_packet(topic, poison, 2, version=version, dup=True))
        wire.expect(PUBREC, 2)
        for packet_id in (1, 2, 3):
            wire.release(packet_id)
            wire.expect(PUBCOMP, packet_id)
        wire.send(publish_packet(topic, b'{"v": 4}', 2, version=version))
        wire.expect(PUBREC, 2)
    readings = proxy.topics.readings("brightness", proxy.device)
    assert sorted((reading["device_id"], reading["value"]) for reading, _ in readings) == [
        (proxy.device, 1.0),
        (proxy.device, 3.0),
        (proxy.device, 4.0),
        (f"{proxy.device}-other", 1.0),
    ]
    assert [value for value, _ in dead_letters(proxy)] == [poison]
    assert proxy.metric('dead_letters_total{reason="refused"}') == 1
    assert proxy.metric("messages_refused_total") == 0
    assert proxy.metric("outstanding_records") == proxy.metric("outstanding_bytes") == 0


def test_dead_letters_are_bounded_and_expire_and_every_publish_is_counted(proxy: Proxy) -> None:
    topic = f"{proxy.device}.dead-letters"
    proxy.start(dead_letter_topic=topic, dead_letters__rate="5:360000", dead_letters__retention_ms=86_400_000)
    bad = f"devices/{proxy.device}/temperature"
    old, five = Wire(proxy, f"{proxy.device}-4"), Wire(proxy, f"{proxy.device}-5", version=5)
    for number in range(1, 21):
        old.send(publish_packet(bad, b'{"t": "warm"}', number, qos=1))
        old.expect(PUBACK, number)
    for answer, qos in ((PUBACK, 1), (PUBREC, 2)):
        five.send(publish_packet(bad, b'{"t": "warm"}', 1, qos=qos, version=5))
        five.expect_reason(answer, 1, 0x99)
    assert len(dead_letters(proxy, topic)) == 5
    assert proxy.metric('dead_letters_total{reason="reading"}') == 5
    assert proxy.metric('dead_letters_unstored_total{reason="reading"}') == 15
    assert proxy.metric('invalid_publishes_refused_total{reason="reading"}') == 2
    admin, resource = clients.admin(proxy.topics.kafka, "test"), ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result()
    assert settings["retention.ms"].value == "86400000"
    assert settings["retention.bytes"].value == str(4 * 1024**3)


@pytest.mark.parametrize("version", [4, 5])
def test_a_denied_publish_is_not_sent_again_for_ever(proxy: Proxy, tmp_path: Path, version: int) -> None:
    (tmp_path / "acl").write_text("pattern write devices/%c/temperature\n")
    proxy.start(acl_file=tmp_path / "acl")
    device, other = proxy.device, f"{proxy.device}-other"
    wire = Wire(proxy, device, version=version)
    wire.publish(other, 1, 0, qos=0)
    wire.publish(other, 2, 1, qos=1)
    wire.publish(other, 3, 2, qos=2)
    if version == 5:
        wire.expect_reason(PUBACK, 1, 0x87)
        wire.expect_reason(PUBREC, 2, 0x87)
    else:
        wire.expect(PUBACK, 1)
        wire.expect(PUBREC, 2)
        wire.release(2)
        wire.expect(PUBCOMP, 2)
    wire.publish(device, 4, 3, qos=1)
    wire.expect(PUBACK, 3)
    assert proxy.topics.values(device) == [4.0], "what is denied is in no topic"
    assert proxy.metric("messages_unauthorized_total") == 3
    assert proxy.metric('messages_acknowledged_total{qos="1"}') == 1, "counted is what is stored"
