"""The DTLS server over the loopback: identities of peers, and the limits against forged addresses."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiocoap import CHANGED, POST, Context, Message  # type: ignore[import-untyped]  # no types there
from aiocoap import resource as coap_resource
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.coap import dtls
from isotherm.coap_ingest.coap.message_id_cache import MessageIdCache
from isotherm.coap_ingest.coap.message_layer import ServerContext

# The library's client, which only the tests use, warns when its connections are collected.
pytestmark = pytest.mark.filterwarnings("ignore:DTLS module did not shut down")
KEYS = {b"device-1": b"secret", b"device-2": b"another", b"\xff\x01": bytes(range(13)) + b"\xfe\x00\xff"}


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect those connections now, and not in the middle of another test."""
    yield
    gc.collect()


class Mirror(coap_resource.Resource):  # type: ignore[misc]  # aiocoap has no types
    """Answers with the identity of the sender."""

    async def render_post(self, request: Any) -> Any:
        return Message(code=CHANGED, payload=str(dtls.identity_of(request.remote)).encode())


class AcceptAll:
    """A request filter that accepts every request."""

    def rejection_of(self, _request: Any) -> None:
        return None

    def admits_duplicate(self, _request: Any) -> bool:
        return True


@asynccontextmanager
async def served(port: int) -> AsyncIterator[Any]:
    """Run a server on the port; yield its connection pool."""
    site = coap_resource.Site()
    site.add_resource(["who"], Mirror())
    context = ServerContext(site, AcceptAll(), MessageIdCache(1_000))
    await dtls.listen(context, "127.0.0.1", port, KEYS)
    try:
        (tokens,) = context.request_interfaces
        pool = tokens.token_interface.message_interface._pool
        yield pool
        assert dtls.count_peers(context) == (len(pool._handshaking), len(pool._connections) - len(pool._handshaking))
    finally:
        await context.shutdown()


@asynccontextmanager
async def device(identity: bytes, key: bytes) -> AsyncIterator[Any]:
    context = await Context.create_client_context(transports=["tinydtls"])
    context.client_credentials.load_from_dict({"coaps://*": {"dtls": {"psk": key, "client-identity": identity}}})
    try:
        yield context
    finally:
        await context.shutdown()


async def who(context: Any, port: int) -> str:
    message = Message(code=POST, uri=f"coaps://127.0.0.1:{port}/who", payload=b"x")
    async with asyncio.timeout(60):
        answer = await context.request(message).response
    # The library's client drops a connection without references and makes a new one.
    context.held = answer.remote
    said: str = answer.payload.decode()
    return said


def client_hello() -> bytes:
    body = b"\xfe\xfd" + os.urandom(32) + b"\0\0" + b"\0\x02\xc0\xa8" + b"\x01\0"
    length = len(body).to_bytes(3, "big")
    handshake = b"\x01" + length + b"\0\0" + b"\0\0\0" + length + body
    return b"\x16\xfe\xfd" + bytes(8) + len(handshake).to_bytes(2, "big") + handshake


def forge(port: int, datagram: bytes) -> None:
    """Send a datagram from a new address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(datagram, ("127.0.0.1", port))


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    return free_port()


async def test_peers_are_known_by_the_identity_of_their_key(port: int) -> None:
    async with (
        served(port) as pool,
        device(b"device-1", b"secret") as one,
        device(b"device-2", b"another") as two,
    ):
        assert [await who(one, port), await who(two, port), await who(one, port)] == [
            "device-1",
            "device-2",
            "device-1",
        ]
        assert len(pool._connections) == 2
        assert not pool._handshaking


async def test_keys_and_identities_may_be_any_bytes(port: int) -> None:
    async with served(port), device(b"\xff\x01", KEYS[b"\xff\x01"]) as one:
        assert await who(one, port) == "hex:ff01"


async def test_forged_addresses_are_bounded_and_end_no_session(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtls, "MAX_HANDSHAKES", 5)
    async with served(port) as pool, device(b"device-1", b"secret") as known:
        await who(known, port)
        session = next(iter(pool._connections.values()))
        for _ in range(50):
            forge(port, client_hello())
            forge(port, os.urandom(80))
            assert await who(known, port) == "device-1"
        assert 0 < len(pool._handshaking) <= 5
        assert len(pool._connections) == len(pool._handshaking) + 1
        assert session in pool._connections.values()


async def test_the_session_that_was_silent_for_longest_is_evicted(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtls, "MAX_SESSIONS", 1)
    async with served(port) as pool, device(b"device-1", b"secret") as one, device(b"device-2", b"another") as two:
        await who(one, port)
        first = next(iter(pool._connections.values()))
        assert await who(two, port) == "device-2"
        assert len(pool._connections) == 1
        assert first not in pool._connections.values()


@given(st.binary(max_size=80))
def test_only_a_client_hello_begins_a_handshake(datagram: bytes) -> None:
    assert dtls.is_client_hello(client_hello())
    begins = datagram[:1] == b"\x16" and datagram[3:5] == b"\0\0" and datagram[13:14] == b"\x01"
    assert dtls.is_client_hello(datagram) == begins
