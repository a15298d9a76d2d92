"""Our codec and our reading of plain messages, against aiocoap's on arbitrary messages and bytes."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from aiocoap import Message  # type: ignore[import-untyped]  # no types there
from aiocoap.error import UnparsableMessage  # type: ignore[import-untyped]  # no types there
from aiocoap.message import Direction  # type: ignore[import-untyped]  # no types there
from aiocoap.numbers import OptionNumber, codes  # type: ignore[import-untyped]  # no types there
from aiocoap.numbers.types import Type  # type: ignore[import-untyped]  # no types there
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.coap_ingest.coap.messages import is_incomplete, notification_of, response_of
from isotherm.coap_ingest.coap.options import check_options, uint_or_none
from isotherm.coap_ingest.coap.plain.codec import ACK, CON, NON, WireMessage, decode, encode, encode_bare
from isotherm.coap_ingest.coap.plain.notifications import PlainNotification, PlainNotifications, plain_notification
from isotherm.coap_ingest.coap.plain.requests import plain_request
from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.listener.answers import Answer

RESOURCE = Resource(Server("coap", "h", 5683), ("a",))
NUMBERS = (1, 3, 4, 6, 7, 8, 11, 12, 14, 15, 17, 20, 23, 27, 28, 35, 60, 258, 292, 2_049, 65_535)


class Remote:
    """The sender of a message, for aiocoap."""

    uri_base_local = "coap://local"


def options(numbers: tuple[int, ...], most_bytes: int) -> st.SearchStrategy[tuple[tuple[int, bytes], ...]]:
    one = st.tuples(st.sampled_from(numbers), st.binary(max_size=most_bytes))
    return st.lists(one, max_size=6).map(lambda found: tuple(sorted(found, key=itemgetter(0))))


def messages(
    code: st.SearchStrategy[int], of: st.SearchStrategy[tuple[tuple[int, bytes], ...]]
) -> st.SearchStrategy[WireMessage]:
    kind, number = st.integers(0, 3), st.integers(0, 65_535)
    return st.builds(WireMessage, kind, code, number, st.binary(max_size=8), of, st.binary(max_size=40))


ANY = messages(st.integers(0, 255), options(NUMBERS, 300))
DATAGRAMS = st.binary(max_size=80) | ANY.map(encode) | st.tuples(ANY.map(encode), st.binary(max_size=9)).map(b"".join)


def theirs(datagram: bytes) -> Any:
    try:
        return Message.decode(datagram, Remote())
    except UnparsableMessage:
        return None


@given(DATAGRAMS)
@example(b"\x49\x45\x00\x01" + bytes(9))
@example(b"\x44\x45\x00\x01\x01")
@example(b"\x40\x45\x00\x01\xff")
@example(b"\x40\x45\x00\x01\xe0\xff\xff")
@example(b"\x40\x45\x00\x01\xf0")
@example(b"\x40\x45\x00\x01\xd0")
@example(b"\x80\x45\x00\x01")
def test_our_decoder_reads_what_aiocoap_reads_and_refuses_what_the_rfc_refuses(datagram: bytes) -> None:
    ours, other = decode(datagram), theirs(datagram)
    if ours is None:
        is_stricter = other is not None and (
            (datagram[0] & 0x0F) > 8
            or len(datagram) < 4 + (datagram[0] & 0x0F)
            or datagram.endswith(b"\xff")
            or max((int(option.number) for option in other.opt.option_list()), default=0) > 65_535
        )
        assert other is None or is_stricter
        return
    assert (ours.message_type, ours.code, ours.message_id) == (int(other.mtype), int(other.code), other.mid)
    assert (ours.token, ours.payload) == (other.token, other.payload)
    values = [(number, OptionNumber(number).create_option(decode=value).value) for number, value in ours.options]
    assert values == [(int(option.number), option.value) for option in other.opt.option_list()]


@given(messages(st.integers(0, 255), options(NUMBERS, 300)))
def test_a_message_survives_encoding(message: WireMessage) -> None:
    assert decode(encode(message)) == message
    bare = message._replace(options=(), payload=b"")
    assert encode_bare(*bare[:4]) == encode(bare)


@given(messages(st.integers(0, 255), options((3_000, 3_001, 3_300, 65_535), 300)))
def test_our_encoder_writes_what_aiocoap_writes(message: WireMessage) -> None:
    other = Message(code=message.code, payload=message.payload)
    other.mtype, other.mid, other.token = Type(message.message_type), message.message_id, message.token
    for number, value in message.options:
        other.opt.add_option(OptionNumber(number).create_option(decode=value))
    assert other.encode() == encode(message)


@pytest.mark.parametrize(
    "message",
    [
        WireMessage(CON, 2, 1, bytes(9)),
        WireMessage(CON, 2, 65_536),
        WireMessage(CON, 2, 1, b"", ((11, bytes(70_000)),)),
    ],
)
def test_a_field_that_has_no_room_is_refused(message: WireMessage) -> None:
    with pytest.raises(ValueError, match=r"range|bytes"):
        encode(message)


@given(
    st.sampled_from([codes.CHANGED, codes.TOO_MANY_REQUESTS]), st.binary(max_size=9), st.none() | st.integers(0, 9**9)
)
def test_an_answer_is_the_same_datagram_from_both_encoders(code: Any, payload: bytes, number: int | None) -> None:
    answer = Answer(code, payload, number, number)
    other = answer.message()
    other.mtype, other.mid, other.token, other.direction = Type(ACK), 7, b"to", Direction.OUTGOING
    assert answer.datagram(ACK, 7, b"to") == other.encode()


POSTS = messages(st.sampled_from((2, 3)), options((3, 7, 11, 12, 15), 4) | options(NUMBERS, 3))


@given(POSTS.map(encode))
@example(encode(WireMessage(CON, 2, 1, b"t", ((11, b"x" * 255), (11, b"\xc3\xa9")))))
@example(encode(WireMessage(CON, 2, 1, b"t", ((11, b"\xff"),))))
@example(encode(WireMessage(CON, 2, 1, b"t", ((3, b"h"), (3, b"h")))))
def test_a_plain_request_is_what_aiocoap_reads(datagram: bytes) -> None:
    request = plain_request(datagram)
    if request is None:
        return
    other = theirs(datagram)
    check_options(other)
    assert request.is_confirmable == (other.mtype is Type.CON)
    assert (request.code, request.message_id, request.token) == (int(other.code), other.mid, other.token)
    assert request.target.path == tuple(other.opt.uri_path)
    assert request.target.query == tuple(other.opt.uri_query)
    assert request.target.content_format == uint_or_none(other.opt.content_format, 16)
    assert request.payload == other.payload
    assert other.opt.block1 is None
    assert other.opt.observe is None


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({}, True),
        ({"message_type": NON, "code": 3, "token": b""}, True),
        ({"options": ((3, b"h"), (7, b"\x16\x33"), (11, b"a"), (12, b""), (15, b"q"), (15, b"r"))}, True),
        ({"message_type": ACK}, False),
        ({"code": 1}, False),
        ({"options": ((11, b"a"), (27, b"\x0e"))}, False),
        ({"options": ((6, b""), (11, b"a"))}, False),
        ({"options": ((11, b"a"), (252, b"e"))}, False),
        ({"options": ((9, b""), (11, b"a"))}, False),
        ({"options": ((11, b"a"), (258, b"\x02"))}, False),
        ({"options": ((11, b"a"), (60, b"\x05"))}, False),
        ({"options": ((11, b"a"), (12, b"\x00\x00\x32"))}, False),
        ({"options": ((11, b"a"), (12, b"\x32"), (12, b"\x32"))}, False),
        ({"options": ((11, b"x" * 200), (11, b"x" * 200))}, False),
        ({"payload": bytes(4_000)}, False),
    ],
)
def test_which_requests_are_plain(changes: dict[str, Any], plain: bool) -> None:
    message = WireMessage(CON, 2, 1, b"t", ((11, b"a"), (12, b"\x32")), b"{}")._replace(**changes)
    assert (plain_request(encode(message)) is not None) == plain


NOTIFICATIONS = messages(st.just(0x45), options((4, 6, 12, 14), 4) | options(NUMBERS, 3))


@given(NOTIFICATIONS.map(encode))
@example(encode(WireMessage(NON, 0x45, 1, b"t", ((4, b""), (6, b"\x00\x05"), (12, b""), (14, b"\xff" * 4)), b"x")))
def test_a_plain_notification_is_what_aiocoap_reads(datagram: bytes) -> None:
    plain = plain_notification(datagram, "local")
    if plain is None:
        return
    other = theirs(datagram)
    assert response_of(plain) == response_of(other)
    assert is_incomplete(plain) == is_incomplete(other)
    made, expected = (notification_of(RESOURCE, each, arrived_ms=1, rtt_ms=2) for each in (plain, other))
    assert made == expected


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({}, True),
        ({"message_type": CON, "options": ((6, b""),)}, True),
        ({"message_type": ACK}, False),
        ({"code": 0x84}, False),
        ({"options": ()}, False),
        ({"options": ((6, b"\x01"), (23, b"\x0e"))}, False),
        ({"options": ((6, bytes(4)),)}, False),
        ({"options": ((6, b"\x01"), (6, b"\x02"))}, False),
        ({"payload": bytes(4_000)}, False),
    ],
)
def test_which_notifications_are_plain(changes: dict[str, Any], plain: bool) -> None:
    message = WireMessage(NON, 0x45, 1, b"t", ((6, b"\x01"), (12, b"\x32")), b"{}")._replace(**changes)
    assert (plain_notification(encode(message), "") is not None) == plain


@pytest.mark.parametrize(
    ("token", "server", "kind", "taken"),
    [
        (b"token", ("::1", 1, 0, 0), NON, True),
        (b"token", ("::1", 1, 0, 9), CON, True),
        (b"other", ("::1", 1, 0, 0), NON, False),
        (b"token", ("::1", 2, 0, 0), NON, False),
        (b"token", ("::2", 1, 0, 0), CON, False),
    ],
)
def test_only_the_server_of_a_registration_notifies_and_a_confirmable_one_is_acknowledged(
    token: bytes, server: tuple[str, int, int, int], kind: int, taken: bool
) -> None:
    replies: list[bytes] = []
    found: list[PlainNotification] = []
    made = PlainNotifications(lambda datagram, *_: replies.append(datagram), lambda _: "local")
    made.expect(b"token", ("::1", 1, 0, 0), found.append)
    datagram = encode(WireMessage(kind, 0x45, 258, token, ((6, b"\x05"),), b"x"))
    assert made.handle(datagram, server, b"pktinfo") == taken
    assert [each.observe for each in found] == [5] * taken
    assert replies == [b"\x60\x00\x01\x02"] * (taken and kind == CON)
    made.forget(b"token")
    assert not made.handle(datagram, server, b"pktinfo")
