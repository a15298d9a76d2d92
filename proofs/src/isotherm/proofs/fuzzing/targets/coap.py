"""CoAP: messages and their options, requests to the listener, link format, keys and rules of the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from aiocoap import Message  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.error import UnparsableMessage  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.message import Direction  # type: ignore[import-untyped]  # aiocoap ships no types
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

import isotherm.schemas
from isotherm import payloads
from isotherm.coap_ingest.coap import psk
from isotherm.coap_ingest.coap.dtls import is_client_hello
from isotherm.coap_ingest.coap.link_format import parse_links, resource_of
from isotherm.coap_ingest.coap.messages import is_incomplete, notification_of, response_of
from isotherm.coap_ingest.coap.options import check_options, uint_or_none
from isotherm.coap_ingest.coap.plain import codec
from isotherm.coap_ingest.coap.plain.notifications import plain_notification
from isotherm.coap_ingest.coap.plain.requests import plain_request
from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.connectors.plan import compile_plan
from isotherm.coap_ingest.ingest.records import headers, message_record
from isotherm.coap_ingest.ingest.resource_pattern import ResourcePattern
from isotherm.coap_ingest.listener.identity import parse_acl
from isotherm.coap_ingest.listener.listener import Listener
from isotherm.coap_ingest.metrics import Metrics
from isotherm.connector.config.files import parse
from isotherm.proofs.fuzzing.target import Target, expect, split
from isotherm.servicekit.avro import WriterSchema, encoder, read_value
from isotherm.servicekit.avro import parse as parse_schema
from isotherm.servicekit.producer.delivery import LoopProducer

_SERVER = Server("coap", "h", 5683)
_RESOURCE = Resource(_SERVER, ("a",))
_CONNECTOR = """
name = c
connector.class = coap-source
connect.coap.listen = coap://127.0.0.1:5683
connect.coap.listen.rate.limit = 1000000:1
connect.coap.kcql = INSERT INTO thermostat.data SELECT temperature AS value, device_id FROM `devices/*`;\
INSERT INTO thermostat.data SELECT value, metric, unit FROM `*`;\
INSERT INTO coap_sensor_topic SELECT * FROM `messages/*/x`
"""


class _Remote:
    """The sender of a datagram."""

    uri_base_local = "coap://[::1]"
    hostinfo = "[::1]:40000"
    sockaddr = ("::1", 40_000, 0, 0)
    blockwise_key = sockaddr
    maximum_payload_size = 1_024
    maximum_block_size_exp = 6
    is_multicast_locally = False


def _decoded(data: bytes) -> Any:
    try:
        return Message.decode(data, _Remote())
    except UnparsableMessage:
        return None


def message_target() -> Callable[[bytes], None]:
    """Return the check that our codec and aiocoap's agree, and that a response becomes an Avro record."""
    schema = isotherm.schemas.schema("CoapMessage", 1)
    encode, writer = encoder(schema, 1), WriterSchema(1, schema, parse_schema(schema))

    def run(data: bytes) -> None:
        is_client_hello(data)
        message = _decoded(data)
        _compare_codecs(data, message)
        if message is None:
            return
        response_of(message)
        is_incomplete(message)
        notification = notification_of(_RESOURCE, message, arrived_ms=0, rtt_ms=0)
        headers(notification)
        record = message_record(notification)
        found = read_value(encode(record), writer)
        expect(found["payload"] == record["payload"], "the payload changes in Avro")

    return run


def _compare_codecs(data: bytes, message: Any) -> None:
    """Check our codec, and our reading of what is plain, against aiocoap's `message`, None when it refuses `data`."""
    ours = codec.decode(data)
    if ours is None:
        return
    expect(codec.decode(codec.encode(ours)) == ours, "a message changes in our encoding")
    same = message is not None and ours[:4] == (int(message.mtype), int(message.code), message.mid, message.token)
    expect(same and ours.payload == message.payload, "our decoder reads another message")
    expect(len(ours.options) == len(tuple(message.opt.option_list())), "our decoder reads other options")
    request, notification = plain_request(data), plain_notification(data, "[::1]")
    if request is not None:
        check_options(message)
        target = message.opt.uri_path, message.opt.uri_query, uint_or_none(message.opt.content_format, 16)
        expect(request.target == target, "a plain request has another target")
    if notification is not None:
        made = [notification_of(_RESOURCE, each, arrived_ms=0, rtt_ms=0) for each in (notification, message)]
        expect(made[0] == made[1] and not is_incomplete(message), "a plain notification is another one")
        expect(response_of(notification) == response_of(message), "a plain notification is another response")


class _Storing:
    """A producer that stores every record at once."""

    def __init__(self) -> None:
        self._reports: list[Callable[..., None]] = []

    def produce(self, _topic: str, *, on_delivery: Callable[..., None], **_: object) -> None:
        self._reports.append(on_delivery)

    def poll(self, _timeout: float) -> int:
        reports, self._reports = self._reports, []
        for report in reports:
            report(None, None)
        return len(reports)

    def __len__(self) -> int:
        return len(self._reports)


def request_target() -> Callable[[bytes], None]:
    """Return the check that every request gets an answer other than 5.00, which is counted and can be encoded."""
    limits, registry = payloads.Limits(), CollectorRegistry()
    plan = compile_plan(parse(_CONNECTOR), units={"value": "Cel"}, limits=limits, dead_letter_topic="d")
    assert plan.listen is not None
    encoders = {
        "thermostat.data": encoder(isotherm.schemas.schema("SensorReading", 1), 1),
        "coap_sensor_topic": encoder(isotherm.schemas.schema("CoapMessage", 1), 2),
    }
    loop = asyncio.new_event_loop()
    producer = LoopProducer(cast("Producer", _Storing()))
    listener = Listener(plan.listen, encoders, producer, limits, Metrics(registry), message_id_cache_size=64)

    def run(data: bytes) -> None:
        request = _decoded(data)
        if request is None or not request.code.is_request():
            return
        answers: list[Any] = []
        pipe = SimpleNamespace(request=request, add_response=lambda answer, is_last: answers.append(answer))
        rejection = listener.rejection_of(request)
        if rejection is None:
            loop.run_until_complete(listener.render_to_pipe(pipe))
        (answer,) = answers or [rejection]
        expect(answer.code.dotted != "5.00", "an internal error")
        answer.mtype, answer.mid, answer.direction = request.mtype, 1, Direction.OUTGOING
        expect(len(answer.encode()) < 2_048, "an answer is larger than a datagram")

    weakref.finalize(run, loop.close)
    return run


def link_target() -> Callable[[bytes], None]:
    """Return the check that a list of resources is parsed or refused."""

    def run(data: bytes) -> None:
        try:
            links = parse_links(data.decode("utf-8", "replace"))
        except ValueError as error:
            expect(str(error).startswith("no link at character"), "an error names its place")
            return
        for link in links:
            resource = resource_of(_SERVER, link)
            if resource is not None:
                expect(resource.uri.startswith("coap://h:5683/"), "a resource of another server")

    return run


def access_target() -> Callable[[bytes], None]:
    """Return the check that keys, rules of access and patterns are parsed or refused, and no key is shown."""

    def run(data: bytes) -> None:
        keys, rules, path = (part.decode("utf-8", "replace") for part in split(data, 3))
        segments = tuple(path.split("/"))
        ResourcePattern(rules.partition(":")[2]).matches(segments)
        with contextlib.suppress(ValueError):
            expect(bool(psk.parse_keys(keys)), "keys without a key")
        with contextlib.suppress(ValueError):
            parse_acl(rules).permits("device", segments)

    return run


_HELLO = b"\x16\xfe\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10\x01"
_POST = b"\x42\x02\x00\x01\x00\x01\xb7devices\x011\x11\x32\xff"

TARGETS = (
    Target(
        name="coap-message",
        make=message_target,
        dictionary=(
            _HELLO,
            b"\x60\x45\x00\x01\xc1\x32\xff{}",
            b"\x51\x45\x00\x01t\x61\x05\x61\x32\x21\x3c\xff{}",
            _POST,
            b"\xd1\x0a",
            b"\xe1\xff\xff",
            b"\xff",
        ),
        max_bytes=1_500,
    ),
    Target(
        name="coap-request",
        make=request_target,
        dictionary=(_POST, b'{"temperature": 1}', b"\xd1\x0e\x0e", b"\xb8messages", b"\xbb.well-known\x04core"),
        max_bytes=1_500,
        quick_inputs=100,
    ),
    Target(
        name="coap-links",
        make=link_target,
        dictionary=(b"</a>;rt=", b'";if="', b";obs", b",", b"%2F", b"coap://"),
    ),
    Target(
        name="coap-access",
        make=access_target,
        dictionary=(b"hex:", b"base64:", b"text:", b"device:", b"%u", b"*", b"\0"),
        max_bytes=1_024,
    ),
)
