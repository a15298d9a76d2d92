"""Sockets behind a balancer, on real ports of the loopback: whose they are for the limits, and which are refused."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import uvloop
from mqtt_packets import connect_packet, publish_packet
from mqtt_plain_world import PlainWorld
from test_mqtt_proxy_header import LOCAL, SIGNATURE, header, proxied
from test_mqtt_proxy_security import certificates
from test_mqtt_websocket import frame, request

from isotherm.mqtt_proxy.access.tls import server_context
from isotherm.mqtt_proxy.balancers import TrustedBalancers
from isotherm.mqtt_proxy.protocol.proxy_header import MAX_HEADER_BYTES
from isotherm.mqtt_proxy.server.admission import Admission
from isotherm.mqtt_proxy.server.listeners import open_listeners
from isotherm.mqtt_proxy.settings import TlsSettings

CONNECT, CONNACK = connect_packet("attic"), b"\x20\x02\0\0"
PUBLISH = publish_packet("devices/attic/temperature", b'{"t": 21.5}', flags=2, packet_id=1)
PUBACK = b"\x40\x02\0\1"
ANNA, BERT = "192.0.2.7", "2001:db8::8"

T = TypeVar("T")


def device(client: str) -> bytes:
    """What a balancer sends for a client whose id is its address."""
    return proxied(client) + connect_packet(client)


class Balanced:
    """A server and its ports; the test is the balancer, its clients, and Kafka."""

    def __init__(self, loop: asyncio.AbstractEventLoop, world: PlainWorld, listeners: list[asyncio.Server]) -> None:
        self.loop = loop
        self.world = world
        self._listeners = listeners
        self._limits = world.server.connection_limits
        self._writers: dict[asyncio.StreamReader, asyncio.StreamWriter] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def connect(self, first: bytes, *, websocket: bool = False) -> asyncio.StreamReader:
        """Open a connection and send its first bytes in one piece."""
        port = self._listeners[websocket].sockets[0].getsockname()[1]
        reader, writer = self.run(asyncio.open_connection("127.0.0.1", port))
        self._writers[reader] = writer
        writer.write(first)
        return reader

    def send(self, reader: asyncio.StreamReader, data: bytes) -> None:
        self._writers[reader].write(data)

    def receive(self, reader: asyncio.StreamReader, length: int) -> bytes:
        """Bytes of the server; none when it has closed the connection."""
        try:
            return self.run(reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return b""

    def drop(self, reader: asyncio.StreamReader) -> None:
        """Close the connection, and wait until the limits count it no more."""
        before = self.connections
        writer = self._writers.pop(reader)
        writer.transport.abort()
        self.wait(lambda: self.connections == before - 1)

    def wait(self, is_met: Callable[[], bool]) -> None:
        while not is_met():
            self.run(asyncio.sleep(0))

    @property
    def connections(self) -> int:
        """Without the client of the world, which has no socket."""
        return self._limits._connections - 1

    @property
    def addresses(self) -> Mapping[str, int]:
        return self._limits._by_address - Counter([""])

    @property
    def refused(self) -> Mapping[str, int]:
        return self.world.metrics.connection_attempts - Counter(accepted=100)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for writer in self._writers.values():
            writer.transport.abort()
        self.wait(lambda: not self.connections)
        assert not self.addresses
        self.world.turn()


@contextmanager
def balanced(
    tls: ssl.SSLContext | None = None,
    *,
    proxy_protocol: bool = True,
    trusted: str = "127.0.0.0/8",
    is_compiled: bool = True,
    **limits: int,
) -> Iterator[Balanced]:
    networks = [trusted] if proxy_protocol else []
    listener = {"port": 0, "proxy_protocol": proxy_protocol, "trusted_balancers": networks}
    loop = uvloop.new_event_loop()
    try:
        world = PlainWorld(loop, is_compiled=is_compiled, limits=limits, listener=listener, websocket=listener)
        made = Balanced(loop, world, loop.run_until_complete(open_listeners(world.server, world._settings, tls)))
        yield made
        made.close()
    finally:
        loop.close()


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("client", [ANNA, BERT])
def test_packets_behind_the_header_in_one_segment_are_handled(client: str, is_compiled: bool) -> None:
    with balanced(is_compiled=is_compiled) as made:
        reader = made.connect(proxied(client) + CONNECT + PUBLISH)
        assert made.receive(reader, 4) == CONNACK
        assert [record[:2] for record in made.world.kafka.records] == [("thermostat.data", "attic")]
        made.world.report([None])
        assert made.receive(reader, 4) == PUBACK
        assert (made.addresses, made.refused) == ({client: 1}, {})


def test_a_header_may_come_byte_by_byte() -> None:
    with balanced() as made:
        reader = made.connect(b"")
        for byte in proxied(ANNA) + CONNECT:
            made.send(reader, bytes([byte]))
            made.world.turn()
        assert made.receive(reader, 4) == CONNACK
        assert made.addresses == {ANNA: 1}


def test_clients_of_one_balancer_do_not_share_a_limit() -> None:
    with balanced(connections_per_address=1) as made:
        anna, bert = (made.connect(device(client)) for client in (ANNA, BERT))
        assert made.receive(anna, 4) == made.receive(bert, 4) == CONNACK
        assert made.receive(made.connect(device(ANNA)), 4) == b""
        assert made.refused == {"too many connections of an address": 1}
        made.wait(lambda: made.connections == 2)
        made.drop(anna)
        assert made.receive(made.connect(device(ANNA)), 4) == CONNACK
        assert made.addresses == {ANNA: 1, BERT: 1}


def test_a_health_check_has_the_address_of_the_balancer() -> None:
    with balanced(connections_per_address=1) as made:
        check = made.connect(header(command=LOCAL, family=0))
        made.wait(lambda: made.addresses == {"127.0.0.1": 1})
        assert made.receive(made.connect(proxied(ANNA) + CONNECT), 4) == CONNACK
        made.drop(check)
        made.connect(b"")
        made.wait(lambda: made.connections == 2)
        made.drop(list(made._writers)[-1])
        assert made.refused == {}, "neither a health check nor one that only opens the port"


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (CONNECT, "no PROXY header"),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 1883\r\n" + CONNECT, "PROXY version 1"),
        (header(b"short"), "malformed PROXY header"),
        (proxied(ANNA, bytes(MAX_HEADER_BYTES)) + CONNECT, "PROXY header too long"),
    ],
)
@pytest.mark.parametrize("websocket", [True, False])
def test_what_does_not_begin_with_a_header_is_closed_and_counted(first: bytes, outcome: str, websocket: bool) -> None:
    with balanced() as made:
        assert made.receive(made.connect(first, websocket=websocket), 1) == b""
        assert made.refused == {outcome: 1}


def test_a_header_that_breaks_off_is_counted() -> None:
    with balanced() as made:
        reader = made.connect(SIGNATURE)
        made._writers[reader].write_eof()
        assert made.receive(reader, 1) == b""
        assert made.refused == {"malformed PROXY header": 1}


def test_a_header_that_does_not_come_in_time_is_counted() -> None:
    with balanced(connect_timeout_ms=1) as made:
        assert made.receive(made.connect(proxied(ANNA)[:20]), 1) == b""
        assert made.refused == {"PROXY header timeout": 1}


def test_another_address_than_a_balancer_is_refused() -> None:
    with balanced(trusted="10.0.0.0/8") as made:
        assert made.receive(made.connect(proxied(ANNA) + CONNECT), 4) == b""
        assert (made.refused, made.connections) == ({"untrusted balancer": 1}, 0)


def test_a_socket_for_which_no_descriptor_is_left_is_counted() -> None:
    class Exhausted(asyncio.Transport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ("127.0.0.1", 1) if name == "peername" else self

        def dup(self) -> None:
            raise OSError(errno.EMFILE, "too many open files")

        def abort(self) -> None:
            """The listener's own descriptor is closed."""

    with balanced() as server:
        admission = Admission(server.world.server, None)
        admission.protocol(cast(Any, None), TrustedBalancers(["127.0.0.0/8"])).connection_made(Exhausted())
        assert server.refused == {"no descriptor is left": 1}
        assert server.connections == 0


def test_a_socket_counts_before_its_header_came() -> None:
    with balanced(connections=2) as made:
        made.connect(b"\r")
        made.wait(lambda: made.connections == 1)
        assert made.receive(made.connect(proxied(ANNA) + CONNECT), 4) == b""
        assert (made.refused, made.addresses) == ({"too many connections": 1}, {})


def test_a_websocket_follows_the_header() -> None:
    with balanced() as made:
        browser = made.connect(proxied(ANNA) + request() + frame(2, CONNECT), websocket=True)
        assert made.run(browser.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert made.receive(browser, 6) == b"\x82\x04" + CONNACK
        assert made.addresses == {ANNA: 1}


async def tls_answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: Path, first: bytes, length: int
) -> bytes:
    """Send `first` in one piece with the begin of a TLS handshake, then a CONNECT; return the answer."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context(cafile=authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    is_connected = False
    while True:
        try:
            if not is_connected:
                tls.do_handshake()
                tls.write(CONNECT)
                is_connected = True
                writer.write(outgoing.read())
            return tls.read(length)
        except ssl.SSLWantReadError:
            writer.write(first + outgoing.read())
            first = b""
            received = await reader.read(65_536)
            assert received, "the server has closed the connection"
            incoming.write(received)


@pytest.mark.parametrize("proxy_protocol", [True, False])
def test_a_tls_handshake_follows_the_header_in_its_segment(tmp_path: Path, proxy_protocol: bool) -> None:
    certificates(tmp_path, "attic")
    context = server_context(TlsSettings(certfile=str(tmp_path / "server.pem"), keyfile=str(tmp_path / "server.key")))
    first, address = (proxied(ANNA), ANNA) if proxy_protocol else (b"", "127.0.0.1")
    with balanced(context, proxy_protocol=proxy_protocol, connections_per_address=1) as made:
        reader = made.connect(b"")
        answer = tls_answer(reader, made._writers[reader], tmp_path / "ca.pem", first, 4)
        assert made.run(answer) == CONNACK
        assert (made.addresses, made.refused) == ({address: 1}, {})
        assert sum(made.world.metrics.tls_handshakes.values()) == 1
