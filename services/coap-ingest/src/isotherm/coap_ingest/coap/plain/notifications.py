"""Plain notifications: 2.05 with Observe under the token of a registration, complete in one datagram."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from isotherm.coap_ingest.coap.plain.codec import ACK, CON, Option, decode, encode_bare

CONTENT = 0x45
_ETAG, _OBSERVE, _CONTENT_FORMAT, _MAX_AGE = 4, 6, 12, 14
_MAX_LENGTH = {_ETAG: 8, _OBSERVE: 3, _CONTENT_FORMAT: 2, _MAX_AGE: 4}
"""Lengths that the definitions allow (RFC 7252 table 4, RFC 7641 section 2)."""
_MAX_DATAGRAM_BYTES = 4_096 - 128
"""aiocoap cuts a datagram at 4,096 bytes without a sign; a longer one is left to it."""
_VERSION_AND_TYPE, _CON_OR_NON = 0xE0, 0x40

Address = tuple[str, int, int, int]
"""An IPv6 socket address: host, port, flow, scope."""


class PlainNotification(NamedTuple):
    """One plain notification; absent options are None. `destination` is the local address, as in a URI."""

    message_type: int
    message_id: int
    token: bytes
    observe: int
    content_format: int | None
    max_age_s: int | None
    etag: bytes | None
    payload: bytes
    destination: str


OnNotification = Callable[[PlainNotification], None]


def plain_notification(datagram: bytes, destination: str) -> PlainNotification | None:
    """Return the plain notification in a datagram; None when aiocoap must judge the datagram."""
    message = decode(datagram) if len(datagram) < _MAX_DATAGRAM_BYTES else None
    if message is None or message.code != CONTENT or message.message_type > 1:
        return None
    found = _uints_and_etag(message.options)
    if found is None or found.get(_OBSERVE) is None:
        return None
    uint = int.from_bytes
    content_format, max_age, etag = found.get(_CONTENT_FORMAT), found.get(_MAX_AGE), found.get(_ETAG)
    return PlainNotification(
        message.message_type,
        message.message_id,
        message.token,
        uint(found[_OBSERVE], "big"),
        None if content_format is None else uint(content_format, "big"),
        None if max_age is None else uint(max_age, "big"),
        etag,
        message.payload,
        destination,
    )


def _uints_and_etag(options: tuple[Option, ...]) -> dict[int, bytes] | None:
    """Return the values by number; None for an option that is not plain, too long, or repeated."""
    found: dict[int, bytes] = {}
    for number, value in options:
        if number in found or len(value) > _MAX_LENGTH.get(number, -1):
            return None
        found[number] = value
    return found


class PlainNotifications:
    """The registrations of a socket by token; takes their plain notifications.

    `reply` sends a datagram to an address, from the local address in `pktinfo`. `local_address` shows that one.
    """

    def __init__(
        self,
        reply: Callable[[bytes, Address, bytes], None],
        local_address: Callable[[bytes], str],
    ) -> None:
        self._reply = reply
        self._local_address = local_address
        self._expected: dict[bytes, tuple[tuple[str, int, int], OnNotification]] = {}

    def expect(self, token: bytes, server: Address, on_notification: OnNotification) -> None:
        """Call `on_notification` for each plain notification that `server` sends under `token`."""
        self._expected[token] = server[:3], on_notification

    def forget(self, token: bytes) -> None:
        """Leave later notifications under `token` to aiocoap."""
        self._expected.pop(token, None)

    def handle(self, datagram: bytes, address: Address, pktinfo: bytes | None) -> bool:
        """Take a datagram and return True; return False when aiocoap must judge it."""
        if len(datagram) < 4 or datagram[1] != CONTENT or datagram[0] & _VERSION_AND_TYPE != _CON_OR_NON:
            return False
        expected = self._expected.get(datagram[4 : 4 + (datagram[0] & 0x0F)])
        # As aiocoap compares addresses: without the scope.
        if expected is None or expected[0] != address[:3] or pktinfo is None:
            return False
        notification = plain_notification(datagram, self._local_address(pktinfo))
        if notification is None:
            return False
        expected[1](notification)
        if notification.message_type == CON:
            self._reply(encode_bare(ACK, 0, notification.message_id), address, pktinfo)
        return True
