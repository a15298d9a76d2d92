"""Ten thousand hostile connections: their memory is bounded, and devices are served at the same time."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from mqtt_devices import PUBACK, Wire, connect_packet, packet, text
from mqtt_world import WAIT_S, Proxy, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]

_CONNECTIONS = 9_900
MEMORY_BOUND_MIB = 300
"""What docs/reference/behaviour/mqtt.md states under this attack with the default limits."""


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends of ten thousand connections; the proxy inherits it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with opened(kafka, registry, tmp_path, free_port) as made:
            yield made
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def varint(value: int) -> bytes:
    """A remaining length of two or three bytes."""
    return packet(0, bytes(value))[1 : -value or None]


def attacks(number: int) -> bytes:
    """What one hostile client sends: each of these in turn."""
    name = f"hostile-{number}"
    pairs = (b"\x26" + text(b"") + text(b"")) * 3_000
    body = text(b"MQTT") + b"\5\2\0\0" + varint(len(pairs)) + pairs + text(name.encode())
    entered = connect_packet(name, clean=True)
    return (
        b"\x10" + varint(16_000) + bytes(15_900),
        packet(0x10, body),
        entered + b"\x32" + varint(65_000) + bytes(60_000),
        entered + b"\xc0\x00" * 20_000,
        b"",
    )[number % 5]


def test_ten_thousand_hostile_connections(proxy: Proxy) -> None:
    proxy.start()
    resting_mib = proxy.peak_resident_mib()
    early = Wire(proxy, f"{proxy.device}-early", clean=True)
    with ExitStack() as stack:
        for number in range(_CONNECTIONS):
            with suppress(OSError):
                # A reset: the proxy had enough of it.
                hostile = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S))
                hostile.settimeout(1)
                hostile.sendall(attacks(number))
            if number % 1_000 == 0:
                early.publish(f"{proxy.device}-early", number, 1, qos=1)
                early.expect(PUBACK, 1)
        late = Wire(proxy, f"{proxy.device}-late", clean=True)
        late.publish(f"{proxy.device}-late", 1, 1, qos=1)
        late.expect(PUBACK, 1)
        wait_until("what is buffered is bounded", lambda: proxy.metric("buffered_bytes ") <= 33_554_432)
        open_at_a_time = proxy.metric("connections ")
        peak_mib = proxy.peak_resident_mib()
    print(f"at rest {resting_mib:.0f} MiB, peak {peak_mib:.0f} MiB, {open_at_a_time:.0f} open")  # noqa: T201  # the figure for the results
    assert peak_mib < MEMORY_BOUND_MIB
    assert len(proxy.topics.values(proxy.device)) == 11
    wait_until("all is given back", lambda: proxy.metric("buffered_bytes ") == 0)
