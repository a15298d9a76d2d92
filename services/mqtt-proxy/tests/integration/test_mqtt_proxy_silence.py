"""Peers that disappear without closing the connection, and clients that exceed their keep-alive."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqtt_devices import PUBACK, Wire
from mqtt_world import Proxy, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

_KEEP_ALIVE_TIMER = "02"
"""What proc_net_tcp.txt says of a socket that will probe its peer."""


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def timers(port: int) -> set[str]:
    """The timers that the kernel has running for connections accepted at `port`."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {line[5].partition(":")[0] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01"}


@pytest.mark.parametrize("silent_s", [60, 0])
def test_the_kernel_probes_a_silent_peer(proxy: Proxy, silent_s: int) -> None:
    """Only TCP keep-alive detects a peer without MQTT keep-alive that disappears silently."""
    proxy.start(listener__tcp_keep_alive_s=silent_s)
    Wire(proxy, proxy.device, clean=True)
    wait_until("the CONNACK is acknowledged", lambda: not timers(proxy.port) - {"00", _KEEP_ALIVE_TIMER})
    assert timers(proxy.port) == ({_KEEP_ALIVE_TIMER} if silent_s else {"00"})


def test_a_peer_that_is_lost_while_it_is_not_read_is_found(proxy: Proxy) -> None:
    proxy.start(limits__messages_per_client="1:360000", limits__receive_maximum=2)
    wire = Wire(proxy, proxy.device, clean=True, keep_alive_s=1)
    for number in range(10):
        wire.publish(proxy.device, number, number + 1, qos=1)
    wire.expect(PUBACK, 1)
    wait_until("it waits", lambda: proxy.metric("rate_pauses_total") == 1)
    # A reset: what a peer that was started again, or a NAT that forgot the connection, answers a probe with.
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()
    wait_until("its connection is gone", lambda: proxy.metric("connections ") == 0, 30)
    assert proxy.metric("buffered_bytes ") == 0


@pytest.mark.parametrize("keep_alive_s", [0, 65_535])
def test_the_longest_keep_alive_holds_for_3_1_1_too(proxy: Proxy, keep_alive_s: int) -> None:
    proxy.start(limits__keep_alive_s=1)
    assert Wire(proxy, proxy.device, clean=True, keep_alive_s=keep_alive_s).is_closed_by_the_proxy()
    assert proxy.metric('connections_closed_total{reason="keep alive timeout"}') == 1
