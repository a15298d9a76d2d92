"""Options with values that their definition does not allow: the answer's code, the count, and the memory they take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiocoap import Message  # type: ignore[import-untyped]  # no types there
from aiocoap.numbers import OptionNumber  # type: ignore[import-untyped]  # no types there
from aiocoap.numbers.contentformat import ContentFormat  # type: ignore[import-untyped]  # no types there
from coap_listening import BODY, Device, served

from isotherm.coap_ingest.coap.messages import notification_of
from isotherm.coap_ingest.coap.resource import Resource, Server

PATH = [(11, b"devices"), (11, b"1")]


def datagram(options: list[tuple[int, bytes]], message_id: int = 1, code: int = 2) -> bytes:
    """A confirmable message with any options, ordered by number."""
    data, before = b"", 0
    for number, value in sorted(options, key=lambda each: each[0]):
        delta, before = number - before, number
        nibbles, extended = [], b""
        for size in (delta, len(value)):
            kind = 13 if 13 <= size < 269 else 14 if size >= 269 else size
            nibbles.append(kind)
            extended += b"" if kind < 13 else (size - 13).to_bytes(1) if kind == 13 else (size - 269).to_bytes(2)
        data += bytes([nibbles[0] << 4 | nibbles[1]]) + extended + value
    token = message_id.to_bytes(2, "big")
    return b"\x42" + bytes([code]) + token + token + data + b"\xff" + BODY


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (PATH, "2.04"),
        ([*PATH, (12, bytes(3) + b"\x32")], "2.04"),  # Content-Format 50 with zeros in front
        ([*PATH, (12, b"\x01\x00\x00")], "2.04"),  # too long, elective: as if it were absent
        ([*PATH, (60, b"\xff" * 9)], "2.04"),
        ([*PATH, (6, b"\xff" * 12)], "2.04"),
        ([*PATH, (14, b"\xff" * 12)], "2.04"),
        ([*PATH, (2048, b"x")], "2.04"),
        ([*PATH, (17, b"\xff" * 3)], "4.02"),  # Accept
        ([*PATH, (7, b"\xff" * 3)], "4.02"),  # Uri-Port
        ([*PATH, (27, b"\xff" * 4)], "4.02"),  # Block1
        ([*PATH, (23, b"\xff" * 20)], "4.02"),  # Block2
        ([*PATH, (27, b"\x07")], "4.00"),
        ([*PATH, (27, b"\x06"), (27, b"\x06")], "4.02"),
        ([*PATH, (2049, b"x")], "4.02"),
        ([*PATH, (5, b"")], "4.02"),  # If-None-Match
        ([*PATH, (35, b"coap://x")], "5.05"),  # Proxy-Uri
        ([(11, b"devices"), (11, b"\xff")], "4.02"),
        ([(11, b"devices"), (11, b"x" * 256)], "4.02"),
        ([*PATH, (15, b"\xc3")], "4.02"),  # Uri-Query
    ],
)
async def test_a_request_is_answered_and_counted(
    free_port: Callable[[], int], options: list[tuple[int, bytes]], code: str
) -> None:
    port = free_port()
    device = Device(port)
    try:
        async with served(port) as made:
            assert await device.code(datagram(options)) == code
            assert made.metric("requests_total", code=code) == 1
            assert len(made.kafka.stored) == (code == "2.04")
    finally:
        device.close()


async def test_a_block_that_the_list_of_resources_does_not_have(free_port: Callable[[], int]) -> None:
    port = free_port()
    device = Device(port)
    try:
        async with served(port) as made:
            assert (
                await device.code(datagram([(11, b".well-known"), (11, b"core"), (23, b"\xf0\x02")], code=1)) == "4.00"
            )
            assert made.metric("requests_total", code="4.00") == 1
    finally:
        device.close()


def test_unassigned_numbers_are_forgotten() -> None:
    known = len(OptionNumber._value2member_map_), len(ContentFormat._value2member_map_)
    for number in range(200):
        message = Message.decode(datagram([(5_000 + 2 * number, b""), (12, (3_000 + number).to_bytes(2))]))
        assert message.opt.content_format == 3_000 + number
    assert (len(OptionNumber._value2member_map_), len(ContentFormat._value2member_map_)) == known


def test_a_notification_with_options_out_of_range_becomes_a_record() -> None:
    class Remote:
        uri_base_local = "coap://[::1]"

    options = [(8, b"\xff"), (12, b"\xff" * 3), (14, b"\xff" * 5), (28, b"\xff" * 5), (60, b"\xff" * 4)]
    message = Message.decode(datagram(options, code=69), Remote())
    made = notification_of(Resource(Server("coap", "h", 1), ("a",)), message, arrived_ms=0, rtt_ms=0)
    assert made.location_path == ("\ufffd",)
    assert (made.content_format, made.max_age_s, made.size1, made.size2) == (None, None, None, None)
