"""When wills are published: at the end of connections and sessions, through kills and stops of the server."""

from __future__ import annotations

import signal
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from mqtt_devices import PUBREC, Wire, text
from mqtt_world import Proxy, opened, wait_until
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]

_LATER_S = 3_600


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        # A server of its own: a process that starts publishes the wills that another test's process left.
        made.configure(name=made.device)
        yield made


def expiry(seconds: int) -> bytes:
    """The property Session Expiry Interval."""
    return b"\x11" + struct.pack(">I", seconds)


def device(
    proxy: Proxy,
    name: str,
    value: int,
    *,
    qos: int = 1,
    delay_s: int = 0,
    expiry_s: int = _LATER_S,
    version: int = 5,
    clean: bool = False,
) -> Wire:
    """A connected device whose will is this temperature."""
    return Wire(
        proxy,
        f"{proxy.device}-{name}",
        version=version,
        clean=clean,
        will=text(f"devices/{proxy.device}-{name}/temperature".encode()) + text(b'{"t": %d}' % value),
        will_qos=qos,
        will_properties=b"\x18" + struct.pack(">I", delay_s) if delay_s else b"",
        properties=expiry(expiry_s) if version == 5 else b"",
    )


def plain(proxy: Proxy, name: str, *, clean: bool) -> Wire:
    """The same device without a will."""
    return Wire(proxy, f"{proxy.device}-{name}", version=5, clean=clean, properties=expiry(_LATER_S))


def published(proxy: Proxy) -> defaultdict[str, list[float]]:
    """The values of the wills that are stored, by the name of their device."""
    found = defaultdict[str, list[float]](list)
    for reading, _ in proxy.topics.readings("thermostat.data", f"{proxy.device}-"):
        found[reading["device_id"].removeprefix(f"{proxy.device}-")].append(reading["value"])
    return found


def until_published(proxy: Proxy, wills: int) -> None:
    """Wait until this process has published so many."""
    wait_until(
        f"{wills} wills are stored",
        lambda: proxy.metric("wills_total") == wills == proxy.metric("readings_stored_total"),
    )


def test_wills_at_the_end_of_connections_and_sessions(proxy: Proxy) -> None:
    proxy.start()
    # Only the reason code 0 removes a will (MQTT-3.1.2-8).
    for index, reason in enumerate((0x00, 0x04, 0x80, 0x93, 0x98)):
        wire = device(proxy, f"reason-{reason}", index, qos=index % 3)
        wire.send(bytes((0xE0, 1, reason)))
        assert wire.is_closed_by_the_proxy()
    until_published(proxy, 4)
    # The session ends before the delay is over: DISCONNECT with expiry 0, no expiry and a lost network, Clean Start.
    for qos in (0, 1, 2):
        ends = device(proxy, f"ends-{qos}", 10, qos=qos, delay_s=_LATER_S)
        ends.send(b"\xe0\x07\x04\x05" + expiry(0))
        assert ends.is_closed_by_the_proxy()
        device(proxy, f"brief-{qos}", 11, qos=qos, delay_s=_LATER_S, expiry_s=0).close()
        device(proxy, f"clean-{qos}", 12, qos=qos, delay_s=_LATER_S).close()
        wait_until("they are gone", lambda: proxy.metric("connections ") == 0)
        began = plain(proxy, f"clean-{qos}", clean=True)
        assert not began.session_present
        taken = device(proxy, f"taken-{qos}", 13, qos=qos, delay_s=_LATER_S)
        again = plain(proxy, f"taken-{qos}", clean=True)
        assert taken.receive(3) == b"\xe0\x01\x8e"
        for wire in (again, taken, began):
            wire.close()
    until_published(proxy, 4 + 12)
    # It comes back in time and goes on: nothing is published, also when another connection takes it over.
    device(proxy, "back", 20, delay_s=_LATER_S).close()
    wait_until("it is gone", lambda: proxy.metric("connections ") == 0)
    back = device(proxy, "back", 21, delay_s=_LATER_S)
    assert back.session_present
    last = plain(proxy, "back", clean=False)
    assert last.session_present
    # A takeover publishes a will without delay.
    device(proxy, "over", 22)
    plain(proxy, "over", clean=False)
    device(proxy, "soon", 23, delay_s=1).close()
    until_published(proxy, 4 + 12 + 2)
    found = published(proxy)
    assert [found[f"reason-{reason}"] for reason in (0x00, 0x04, 0x80, 0x93, 0x98)] == [[], [1], [2], [3], [4]]
    for qos in (0, 1, 2):
        assert [found[f"{name}-{qos}"] for name in ("ends", "brief", "clean", "taken")] == [[10], [11], [12], [13]]
    assert [found[name] for name in ("back", "over", "soon")] == [[], [22], [23]]
    assert proxy.metric("wills_bytes ") == 0


def test_paho_disconnects_and_asks_for_its_will(proxy: Proxy) -> None:
    proxy.start()
    for code, value in ((0x00, 1), (0x04, 2), (0x83, 3)):
        client = paho.Client(CallbackAPIVersion.VERSION2, f"{proxy.device}-{code}", protocol=MQTTProtocolVersion.MQTTv5)
        will = Properties(PacketTypes.WILLMESSAGE)  # type: ignore[no-untyped-call]  # paho leaves it untyped
        will.UserProperty = [("room", "hall")]
        client.will_set(f"devices/{proxy.device}-{code}/temperature", b'{"t": %d}' % value, 1, properties=will)
        client.connect("127.0.0.1", proxy.port)
        client.loop_start()
        wait_until("connected", client.is_connected)
        client.disconnect(ReasonCode(PacketTypes.DISCONNECT, identifier=code))
        client.loop_stop()
    until_published(proxy, 2)
    found = proxy.topics.readings("thermostat.data", proxy.device)
    assert sorted((reading["value"], headers["mqtt.user.room"]) for reading, headers in found) == [
        (2.0, "hall"),
        (3.0, "hall"),
    ]


def test_wills_survive_a_kill_of_the_server_where_their_session_does(proxy: Proxy) -> None:
    proxy.start()
    for qos in (0, 1, 2):
        device(proxy, f"old-{qos}", qos, qos=qos, version=4)
        device(proxy, f"new-{qos}", qos, qos=qos)
        device(proxy, f"pending-{qos}", qos, qos=qos, delay_s=2).close()
        device(proxy, f"back-{qos}", qos, qos=qos, delay_s=_LATER_S)
        said = device(proxy, f"said-{qos}", qos, qos=qos)
        said.send(b"\xe0\x00")
        assert said.is_closed_by_the_proxy()
    device(proxy, "brief", 1, expiry_s=0)
    # DISCONNECT has no answer. Transactions keep the order in which things happened, so what a goodbye changed is
    # stored when a later publish is.
    last = Wire(proxy, f"{proxy.device}-last", clean=True)
    last.publish(proxy.device, 50.0, 1)
    last.expect(PUBREC, 1)
    wait_until("the others have ended", lambda: proxy.metric("connections ") == 11)
    proxy.kill()
    proxy.start()
    for qos in (0, 1, 2):
        assert plain(proxy, f"back-{qos}", clean=False).session_present
    until_published(proxy, 9)
    found = published(proxy)
    for qos in (0, 1, 2):
        assert [found[f"{name}-{qos}"] for name in ("old", "new", "pending")] == [[qos]] * 3
        assert [found[f"{name}-{qos}"] for name in ("back", "said")] == [[], []]
    assert found["brief"] == [], "a session that ends with its connection is not stored"
    proxy.kill()
    proxy.start()
    Wire(proxy, f"{proxy.device}-late", clean=True)
    assert proxy.metric("wills_total") == 0, "none is published again"


def test_delayed_wills_wait_through_a_stop_for_the_next_process(proxy: Proxy) -> None:
    proxy.start()
    device(proxy, "at-once", 1)
    device(proxy, "back", 2, delay_s=_LATER_S)
    device(proxy, "gone", 3, delay_s=3)
    assert proxy.signal(signal.SIGTERM) == 0
    assert published(proxy) == {"at-once": [1]}
    proxy.start()
    assert plain(proxy, "back", clean=False).session_present
    until_published(proxy, 1)
    assert published(proxy) == {"at-once": [1], "gone": [3]}


def test_a_will_goes_with_its_session_to_another_process(proxy: Proxy) -> None:
    proxy.start(processes=3)
    for index in range(12):
        device(proxy, f"p{index:02}", index, qos=index % 3, delay_s=_LATER_S).close()
    wait_until("all are gone", lambda: proxy.metric("connections ") == 0)
    for index in range(12):
        assert plain(proxy, f"p{index:02}", clean=index >= 6).session_present is (index < 6)
    wait_until("some migrated", lambda: proxy.metric("sessions_migrated_total") > 0)
    wait_until("those of ended sessions are published", lambda: proxy.metric("wills_total") == 6)
    wait_until("and stored", lambda: proxy.metric("readings_stored_total") == 6)
    found = published(proxy)
    assert [found[f"p{index:02}"] for index in range(6)] == [[]] * 6
    assert [found[f"p{index:02}"][:1] for index in range(6, 12)] == [[index] for index in range(6, 12)]


def test_wills_are_bounded(proxy: Proxy) -> None:
    proxy.start(limits__will_bytes=1_000, limits__wills_bytes=65_536)
    topic = text(f"devices/{proxy.device}/temperature".encode())
    assert Wire(proxy, proxy.device, version=5, will=topic + text(b"x" * 1_000)).reason == 0x95
    large = topic + text(b"x" * 600)
    wires = [Wire(proxy, f"{proxy.device}-{index}", version=5, will=large) for index in range(80)]
    reasons = [wire.reason for wire in wires]
    assert set(reasons) == {0, 0x97}
    assert proxy.metric("wills_bytes ") <= 65_536
    assert reasons.count(0) > 50
