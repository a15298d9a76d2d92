"""A resource observer and a CoAP server in one process over the loopback."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiocoap import CONTENT, GET, NOT_FOUND, Context, Message  # type: ignore[import-untyped]  # no types there
from aiocoap import resource as coap_resource
from prometheus_client import CollectorRegistry

from isotherm.coap_ingest.coap.client import BlockwiseError, Client
from isotherm.coap_ingest.coap.registration import Registration
from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue
from isotherm.coap_ingest.ingest.queued_notification import QueuedNotification
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.observe.observation import Timing
from isotherm.coap_ingest.observe.resource_observer import ResourceObserver
from isotherm.coap_ingest.observe.restart_detector import RestartDetector
from isotherm.servicekit.health import Health

TIMING = Timing(silence_grace_min_ms=50, silence_grace_max_ms=100, answer_timeout_ms=1_000, retry_cap_ms=100)
MAX_PAYLOAD_BYTES = 8_192


class Peer(coap_resource.Resource):  # type: ignore[misc]  # aiocoap has no types
    """An observable resource that records its requests and sends what a test gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[int, int | None, bytes]] = []
        self.observers: list[Any] = []
        self.payload = b"0"
        self.number = 0
        self.is_there = True
        self.keeps_blocks = False
        """Whether a request for a later block is never answered, only acknowledged."""
        self.kept_blocks = 0

    async def render_get(self, _request: Any) -> Any:
        return Message(code=CONTENT, payload=self.payload) if self.is_there else Message(code=NOT_FOUND)

    async def render_to_pipe(self, pipe: Any) -> None:
        self.requests.append((int(pipe.request.code), pipe.request.opt.observe, bytes(pipe.request.token)))
        if self.keeps_blocks and pipe.request.opt.block2 is not None:
            self.kept_blocks += 1
            await asyncio.get_running_loop().create_future()
        if pipe.request.opt.observe != 0 or not self.is_there:
            await super().render_to_pipe(pipe)
            return
        self._say(pipe)
        self.observers.append(pipe)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.observers.remove(pipe)

    def notify(self, payload: bytes) -> None:
        self.payload, self.number = payload, self.number + 1
        for observer in list(self.observers):
            self._say(observer)

    def vanish(self) -> None:
        """The resource is gone: its observers get an error response (RFC 7641 section 4.2)."""
        self.is_there = False
        for observer in list(self.observers):
            observer.add_response(Message(code=NOT_FOUND), is_last=True)

    def _say(self, pipe: Any) -> None:
        message = Message(code=CONTENT, payload=self.payload, max_age=60)
        message.opt.observe = self.number
        pipe.add_response(message, is_last=False)


@dataclass
class Bench:
    """A server with one resource, and an observer of it."""

    peer: Peer
    uri: str
    queue: BoundedQueue[QueuedNotification]
    metrics: CollectorRegistry

    def count(self, name: str, **labels: str) -> float:
        sample = self.metrics.get_sample_value(f"isotherm_coap_ingest_{name}_total", {"resource": self.uri, **labels})
        return sample or 0.0

    async def next(self) -> QueuedNotification:
        queued = await asyncio.wait_for(self.queue.get(), 20)
        self.queue.release()
        return queued

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  # the wire gives no event to wait for
                await asyncio.sleep(0.01)


@asynccontextmanager
async def bench(
    free_port: int, monkeypatch: pytest.MonkeyPatch, limit: int = 100, bytes_limit: int = 1_000_000
) -> AsyncIterator[Bench]:
    peer = Peer()
    site = coap_resource.Site()
    site.add_resource(["r"], peer)
    server = await Context.create_server_context(site, bind=("127.0.0.1", free_port), transports=["udp6"])

    resource = Resource(Server("coap", "device.test", free_port), ("r",))
    client = await Client.open(MAX_PAYLOAD_BYTES, [resource.server])
    real_getaddrinfo = asyncio.get_running_loop().getaddrinfo

    async def getaddrinfo(host: str, port: int, **hints: Any) -> Any:
        if host == "device.test":
            # Nobody listens at the first address.
            return [(socket.AF_INET, 0, 0, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]
        return await real_getaddrinfo(host, port, **hints)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    registry = CollectorRegistry()
    queue: BoundedQueue[QueuedNotification] = BoundedQueue(limit, bytes_limit)
    observer = ResourceObserver("c", resource, TIMING, client, RestartDetector(), queue, Metrics(registry), Health())
    running = asyncio.create_task(observer.run())
    try:
        yield Bench(peer, resource.uri, queue, registry)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await observer.close()
        await client.close()
        await server.shutdown()


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    return free_port()


async def test_an_address_without_an_answer_is_followed_by_the_next_address_of_the_name(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(port, monkeypatch) as made:
        assert (await made.next()).notification.payload == b"0"
        assert made.count("registrations", kind="register") == 2


async def test_close_cancels_the_observation_under_its_token_and_deletes_nothing(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(port, monkeypatch) as made:
        await made.next()
        peer = made.peer
        assert len(peer.observers) == 1
    assert peer.observers == []
    (first_code, first, token), (last_code, last, same_token) = peer.requests
    assert (first_code, last_code) == (int(GET), int(GET))
    assert (first, last) == (0, 1)
    assert token == same_token


async def test_a_notification_sent_before_the_cancellation_was_read_is_accepted(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = Registration.cancel
    async with bench(port, monkeypatch) as made:
        await made.next()

        def cancel_behind_a_notification(registration: Registration) -> None:
            made.peer.notify(b"1")
            cancel(registration)

        monkeypatch.setattr(Registration, "cancel", cancel_behind_a_notification)
    assert (await made.next()).notification.payload == b"1"
    # The answer to the cancellation repeats the state and is not a notification.
    assert made.queue.reserved == 0


async def test_a_full_queue_keeps_its_items_and_dropped_notifications_are_counted(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(port, monkeypatch, limit=3) as made:
        await made.until(lambda: made.queue.reserved == 1)
        for number in range(1, 10):
            made.peer.notify(str(number).encode())
        await made.until(lambda: made.count("notifications", outcome="new") == 10)
        assert [(await made.next()).notification.payload for _ in range(3)] == [b"0", b"1", b"2"]
        assert made.count("notifications", outcome="dropped") == 7


async def test_a_deleted_resource_is_requested_until_it_is_back(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(port, monkeypatch) as made:
        await made.next()
        made.peer.vanish()
        await made.until(lambda: made.count("notifications", outcome="refused") >= 3)
        assert made.count("interruptions") == 1
        made.peer.is_there, made.peer.payload = True, b"back"
        assert (await made.next()).notification.payload == b"back"


async def test_a_representation_over_the_limit_is_queued_as_incomplete(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(port, monkeypatch) as made:
        await made.next()
        made.peer.notify(b"x" * 4_050)
        queued = await made.next()
        assert (queued.fault, len(queued.notification.payload)) == (None, 4_050)
        # The library truncates a datagram of 9,000 bytes, and the blocks of the following GET exceed the limit.
        made.peer.notify(b"x" * 9_000)
        queued = await made.next()
        assert "9000 bytes are over the limit of 8192" in str(queued.fault)
        made.peer.notify(b"small")
        assert (await made.next()).notification.payload == b"small"


async def test_slow_block_wise_notifications_of_one_server_leave_room_for_another_server(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(port, monkeypatch, bytes_limit=20_000) as made:
        await made.next()
        made.queue.add_source("coap://quiet")
        slow = asyncio.Event()

        async def fetched_slowly(*_: object) -> None:
            await slow.wait()
            raise BlockwiseError("late")

        monkeypatch.setattr(Client, "fetch_complete", fetched_slowly)
        try:
            for number in range(10):
                made.peer.notify(f"{number}".encode() * 4_050)
            await made.until(lambda: made.count("notifications", outcome="new") == 11)
        finally:
            slow.set()
        # Only received bytes are reserved: four times 4,050 bytes are four fifths of the queue.
        assert made.queue.reserved == 3
        assert made.count("notifications", outcome="dropped") == 7
        assert made.queue.reserve(4_000, "coap://quiet")


async def test_a_large_representation_reserves_room_as_it_grows_and_is_dropped_without_room(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(port, monkeypatch, bytes_limit=6_000) as made:
        await made.next()
        made.peer.notify(b"x" * 5_000)
        queued = await made.next()
        assert (queued.fault, len(queued.notification.payload)) == (None, 5_000)
        made.peer.notify(b"y" * 7_000)
        await made.until(lambda: made.count("notifications", outcome="dropped") == 1)
        assert (made.queue.reserved, made.queue.reserved_bytes) == (0, 0)
        made.peer.notify(b"small")
        assert (await made.next()).notification.payload == b"small"


async def test_a_representation_whose_blocks_do_not_come_ends_and_lets_later_notifications_pass(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isotherm.coap_ingest.coap.client.FETCH_TIMEOUT_S", 0.5)
    async with bench(port, monkeypatch) as made:
        await made.next()
        made.peer.keeps_blocks = True
        made.peer.notify(b"x" * 9_000)
        await made.until(lambda: made.peer.kept_blocks == 1)
        made.peer.notify(b"small")
        assert "not complete within 0.5 s" in str((await made.next()).fault)
        assert (await made.next()).notification.payload == b"small"


async def test_tokens_cannot_be_guessed_from_one_another(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", port))
        peer.setblocking(False)
        client = await Client.open(MAX_PAYLOAD_BYTES, [Server("coap", "127.0.0.1", port)])
        resource = Resource(Server("coap", "127.0.0.1", port), ("r",))
        tokens = []
        for _ in range(20):
            registration = await client.observe(resource, 0, lambda _: None, lambda _: None)
            async with asyncio.timeout(20):
                datagram, address = await asyncio.get_running_loop().sock_recvfrom(peer, 2048)
            peer.sendto(b"\x60\x00" + datagram[2:4], address)
            tokens.append(datagram[4 : 4 + (datagram[0] & 0x0F)])
            assert tokens[-1] == registration.token
            registration.drop(notify_server=False)
        await client.close()
    assert {len(token) for token in tokens} == {8}
    numbers = sorted(int.from_bytes(token, "big") for token in tokens)
    assert min(later - earlier for earlier, later in itertools.pairwise(numbers)) > 2**32
