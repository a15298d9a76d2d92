"""Plain requests get the answers that aiocoap's way gives; datagrams are read in groups, and lost ones are counted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from aiocoap import CON, NON, Message  # type: ignore[import-untyped]  # no types there
from aiocoap.message import Direction  # type: ignore[import-untyped]  # no types there
from aiocoap.numbers import codes  # type: ignore[import-untyped]  # no types there
from aiocoap.transports.udp6 import UDP6EndpointAddress  # type: ignore[import-untyped]  # no types there
from coap_listening import BODY, CONNECTOR, Device, Storing, request, served
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from isotherm import payloads
from isotherm.coap_ingest.coap.message_id_cache import MessageIdCache, without_text
from isotherm.coap_ingest.coap.message_layer import endpoint_key, request_key
from isotherm.coap_ingest.coap.plain.codec import WireMessage, decode, encode
from isotherm.coap_ingest.coap.plain.datagrams import hostinfo_of
from isotherm.coap_ingest.coap.receive_buffer import dropped_by
from isotherm.coap_ingest.connectors.plan import compile_plan
from isotherm.coap_ingest.listener.listener import Listener
from isotherm.coap_ingest.listener.plain_requests import PlainRequests
from isotherm.coap_ingest.metrics import Metrics
from isotherm.connector.config.files import parse
from isotherm.servicekit.producer.delivery import LoopProducer

ADDRESS = ("::ffff:127.0.0.9", 40_000, 0, 0)
PKTINFO = socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1") + bytes(4)
MULTICAST = socket.inet_pton(socket.AF_INET6, "ff02::fd") + bytes(4)
STATEMENTS = "; INSERT INTO thermostat.data SELECT value, metric, unit FROM `*`"


class Interface:
    """The socket of a listener that keeps what it sends."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_sent = asyncio.Event()

    def reply(self, datagram: bytes, address: Any, pktinfo: bytes) -> None:
        assert (address, pktinfo) == (ADDRESS, PKTINFO)
        self.sent.append(datagram)
        self.is_sent.set()

    def remote(self, address: Any, pktinfo: bytes) -> Any:
        return UDP6EndpointAddress(address, self, pktinfo=pktinfo)


class Layer:
    """aiocoap's message layer, which sends what is no acknowledgement."""

    def __init__(self) -> None:
        self.message_interface = Interface()
        self.sent: list[Any] = []

    def _next_message_id(self) -> int:
        return 4_711

    def send_message(self, message: Any, _on_reset: object) -> None:
        self.sent.append(message)


class Made:
    """A listener without a socket."""

    def __init__(self, more: str = "", statements: str = "") -> None:
        limits, self.registry, self.kafka = payloads.Limits(), CollectorRegistry(), Storing()
        text = CONNECTOR.format(scheme="coap", port=5683, more=more, statements=statements)
        plan = compile_plan(parse(text), units={"value": "Cel"}, limits=limits, dead_letter_topic="d")
        assert plan.listen is not None
        encoders = {"thermostat.data": lambda record: repr(record).replace("'", '"').encode()}
        producer = LoopProducer(cast("Producer", self.kafka))
        metrics = Metrics(self.registry)
        self.listener = Listener(plan.listen, encoders, producer, limits, metrics, message_id_cache_size=1_024)
        self.layer, self.cache = Layer(), MessageIdCache(1_024)
        self.plain = PlainRequests(self.listener, self.layer, self.cache)

    @property
    def replies(self) -> list[bytes]:
        return self.layer.message_interface.sent

    def metrics(self) -> list[bytes]:
        return [line for line in generate_latest(self.registry).splitlines() if b"_created" not in line]


BODIES = st.sampled_from([BODY, b'[{"temperature": 1}, {"temperature": "x"}]', b"21.5", b"", b"\xff", b'{"value": 1}'])
SEGMENTS = st.lists(st.sampled_from([b"devices", b"1", b"", b"x", b"\xff", b"y" * 250]), max_size=3)
REQUESTS = st.builds(
    lambda kind, code, token, path, formats, body: encode(
        WireMessage(kind, code, 77, token, (*((11, each) for each in path), *((12, each) for each in formats)), body)
    ),
    st.sampled_from([0, 1]),
    st.sampled_from([2, 3]),
    st.binary(max_size=8),
    SEGMENTS,
    st.lists(st.sampled_from([b"", b"2", b"\x29", b"\x3c", b"\x01\x00\x00"]), max_size=2),
    BODIES,
)


@given(REQUESTS, st.sampled_from(["payload", "topic"]), st.sampled_from(["1000000:1", "1:600"]))
@settings(deadline=None, max_examples=150)
def test_a_request_has_the_same_answer_records_and_metrics_in_both_ways(
    datagram: bytes, identity: str, rate: str
) -> None:
    more = f"connect.coap.listen.identity = {identity}\nconnect.coap.listen.rate.limit = {rate}"

    async def run() -> None:
        ours, other = Made(more, STATEMENTS), Made(more, STATEMENTS)
        for made in (ours, other):
            made.listener.rejection("127.0.0.9" if rate == "1:600" else "")
        if not ours.plain.handle(datagram, ADDRESS, PKTINFO):
            return
        await ours.listener._idle.wait()
        message = Message.decode(datagram, UDP6EndpointAddress(ADDRESS, other.layer.message_interface, pktinfo=PKTINFO))
        rejection = other.listener.rejection_of(message)
        answers = [rejection] if rejection is not None else []
        if rejection is None:
            pipe = SimpleNamespace(request=message, add_response=lambda answer, is_last: answers.append(answer))
            await other.listener.render_to_pipe(pipe)
        (answer,) = answers
        answer.mtype, answer.mid = (2, 77) if message.mtype is CON else (NON, 4_711)
        answer.token, answer.direction = message.token, Direction.OUTGOING
        assert ours.replies == [answer.encode()]
        assert ours.kafka.stored == other.kafka.stored
        assert ours.metrics() == other.metrics()
        is_kept = rejection is None
        key = endpoint_key(ADDRESS, 77)
        assert (key in ours.cache) == is_kept
        kept = without_text(ours.replies[0], answer.payload)
        assert ours.cache.answer_to(key) == (kept if is_kept and message.mtype is CON else None)
        ours.plain.close()

    with patch("time.time_ns", return_value=1_700_000_000_000_000_000):
        asyncio.run(run())


async def test_a_late_answer_follows_an_empty_acknowledgement_and_duplicates_get_that_one() -> None:
    made = Made()
    with patch.object(Storing, "poll", return_value=0):
        assert made.plain.handle(request(9), ADDRESS, PKTINFO)
        async with asyncio.timeout(20):
            await made.layer.message_interface.is_sent.wait()
        assert made.replies == [b"\x60\x00\x00\x09"]
        assert made.cache.answer_to(endpoint_key(ADDRESS, 9)) == b"\x60\x00\x00\x09"
        # A duplicate is the message layer's.
        assert not made.plain.handle(request(9), ADDRESS, PKTINFO)
    await made.listener._idle.wait()
    (answer,) = made.layer.sent
    assert (answer.code, answer.token, answer.mtype, answer.mid) == (codes.CHANGED, b"\x00\x09", None, None)
    assert answer.remote.sockaddr == ADDRESS
    assert len(made.replies) == 1
    assert made.cache.answer_to(endpoint_key(ADDRESS, 9)) == b"\x60\x00\x00\x09"


async def test_requests_of_one_millisecond_have_readings_of_different_identities() -> None:
    made = Made()
    with patch("time.time_ns", return_value=1_700_000_000_000_000_000):
        for number in range(3):
            assert made.plain.handle(request(number), ADDRESS, PKTINFO)
        await made.listener._idle.wait()
    readings = [value for _, value in made.kafka.stored]
    assert [(each["event_time"], each["sequence"]) for each in readings] == [
        (1_700_000_000_000, 0),
        (1_700_000_000_000, 1),
        (1_700_000_000_000, 2),
    ]


async def test_a_non_confirmable_request_is_never_acknowledged() -> None:
    made = Made()
    message = decode(request(9))
    assert message is not None
    assert made.plain.handle(encode(message._replace(message_type=1)), ADDRESS, PKTINFO)
    assert made.plain._timer is None
    await made.listener._idle.wait()
    assert made.replies == [b"\x52\x44\x12\x67\x00\x09"]


async def test_an_unexpected_error_is_answered_5_00() -> None:
    made = Made()
    with patch("isotherm.coap_ingest.listener.request_records.RequestRecords.records", side_effect=RuntimeError):
        assert made.plain.handle(request(9), ADDRESS, PKTINFO)
    assert made.replies == [b"\x62\xa0\x00\x09\x00\x09"]
    assert made.listener._idle.is_set()


async def test_requests_by_multicast_and_datagrams_without_a_destination_are_left_to_aiocoap() -> None:
    made = Made()
    assert not made.plain.handle(request(9), ADDRESS, MULTICAST)
    assert not made.plain.handle(request(9), ADDRESS, None)
    assert not made.kafka.stored


@pytest.mark.parametrize(
    "address",
    [
        ("::ffff:127.0.0.1", 5683, 0, 0),
        ("::ffff:10.0.0.1", 40_000, 0, 0),
        ("::1", 5683, 0, 0),
        ("2001:db8::1", 40_000, 0, 0),
        ("fe80::1", 40_000, 0, 1),
    ],
)
def test_a_sender_is_named_as_by_aiocoap(address: tuple[str, int, int, int]) -> None:
    interface = Interface()
    remote = UDP6EndpointAddress(address, interface)
    assert hostinfo_of(cast("Any", interface), address) == remote.hostinfo
    assert endpoint_key(address, 5) == request_key(remote, 5)


async def test_waiting_datagrams_are_served_without_aiocoap(free_port: Callable[[], int]) -> None:
    port = free_port()
    device = Device(port)
    async with served(port, "connect.coap.listen.rate.limit = 1000000:1") as made:
        with patch.object(Message, "decode", side_effect=AssertionError):
            for number in range(1, 150):
                device.send(request(number))
            assert await device.code(request(150)) == "2.04"
            await made.listener._idle.wait()
        assert len(made.kafka.stored) == 150
        assert made.metric("requests_total", code="2.04") == 150
    device.close()


async def test_a_datagram_that_cannot_be_processed_does_not_keep_others_from_being_read(
    free_port: Callable[[], int],
) -> None:
    port = free_port()
    device, failures = Device(port), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    async with served(port) as made:
        interface = made.messages.message_interface
        handle, interface.handler = interface.handler, None

        def failing(datagram: bytes, *rest: Any) -> bool:
            if datagram == b"bad":
                raise RuntimeError
            return bool(handle(datagram, *rest))

        interface.handler = failing
        device.send(b"bad")
        assert await device.code(request(1)) == "2.04"
    assert [type(each) for each in failures] == [RuntimeError]
    device.close()


def test_datagrams_that_the_system_drops_are_counted() -> None:
    with (
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        receiver.bind(("::1", 0))
        receiver.setblocking(False)
        assert dropped_by(receiver) == 0
        for _ in range(100):
            sender.sendto(bytes(500), receiver.getsockname())
        dropped, received = dropped_by(receiver), 0
        try:
            while receiver.recv(2_048):
                received += 1
        except BlockingIOError:
            assert dropped > 0
            assert received + dropped == 100


async def test_dropped_datagrams_are_a_metric(free_port: Callable[[], int]) -> None:
    async with served(free_port()) as made:
        with patch("isotherm.coap_ingest.coap.receive_buffer.dropped_by", side_effect=[3, 5]):
            made.listener.maintain()
            made.listener.maintain()
        assert made._metrics.get_sample_value("isotherm_coap_ingest_dropped_datagrams_total", {"socket": "c"}) == 5
