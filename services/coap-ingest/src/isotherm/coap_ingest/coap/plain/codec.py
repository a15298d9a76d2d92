"""CoAP messages as bytes (RFC 7252 section 3), decoded and encoded without judging their options. No IO.

The decoder is strict: it refuses every message format error of the RFC. aiocoap takes two of them, a token length above
8 and a payload marker without a payload; such datagrams are left to it.
"""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

CON, NON, ACK, RST = range(4)
"""Message types (RFC 7252 section 3)."""
TYPE_NAMES = ("CON", "NON", "ACK", "RST")

MAX_TOKEN_BYTES = 8
_HEADER_BYTES = 4
_VERSION = 1
_PAYLOAD_MARKER = 0xFF
_ONE_BYTE, _TWO_BYTES = 13, 14
"""Option deltas and lengths that announce an extended value (RFC 7252 section 3.1)."""
_ONE_BYTE_FROM, _TWO_BYTES_FROM = 13, 269
_MAX_OPTION_NUMBER = 0xFFFF

Option = tuple[int, bytes]
"""An option's number and value."""


class WireMessage(NamedTuple):
    """One message; `options` are in the order of their numbers."""

    message_type: int
    code: int
    message_id: int
    token: bytes = b""
    options: tuple[Option, ...] = ()
    payload: bytes = b""


def decode(datagram: bytes) -> WireMessage | None:
    """Return the message in a datagram; None for a message format error."""
    end = len(datagram)
    if end < _HEADER_BYTES:
        return None
    first = datagram[0]
    position = _HEADER_BYTES + (first & 0x0F)
    if first >> 6 != _VERSION or position > _HEADER_BYTES + MAX_TOKEN_BYTES or position > end:
        return None
    token, options, number, payload = datagram[_HEADER_BYTES:position], [], 0, b""
    try:
        while position < end:
            head = datagram[position]
            position += 1
            if head == _PAYLOAD_MARKER:
                if position == end:
                    return None
                payload = datagram[position:]
                break
            delta, length = head >> 4, head & 0x0F
            if delta >= _ONE_BYTE:
                delta, position = _extended(datagram, delta, position)
            if length >= _ONE_BYTE:
                length, position = _extended(datagram, length, position)
            number += delta
            value_end = position + length
            if value_end > end or number > _MAX_OPTION_NUMBER:
                return None
            options.append((number, datagram[position:value_end]))
            position = value_end
    except (IndexError, ValueError):
        return None
    message_id = datagram[2] << 8 | datagram[3]
    return WireMessage(first >> 4 & 3, datagram[1], message_id, token, tuple(options), payload)


def _extended(datagram: bytes, nibble: int, position: int) -> tuple[int, int]:
    """Return an extended delta or length and the position behind it. Raises IndexError, ValueError."""
    if nibble == _ONE_BYTE:
        return datagram[position] + _ONE_BYTE_FROM, position + 1
    if nibble == _TWO_BYTES:
        return (datagram[position] << 8 | datagram[position + 1]) + _TWO_BYTES_FROM, position + 2
    raise ValueError("15 is reserved")


def encode(message: WireMessage) -> bytes:
    """Return the datagram of a message; its options may come in any order. Raises ValueError for a field too large."""
    if len(message.token) > MAX_TOKEN_BYTES:
        raise ValueError(f"a token of {len(message.token)} bytes")
    first = _VERSION << 6 | message.message_type << 4 | len(message.token)
    parts = [bytes((first, message.code, message.message_id >> 8, message.message_id & 0xFF)), message.token]
    before = 0
    for number, value in sorted(message.options, key=itemgetter(0)) if message.options else ():
        delta, delta_rest = _nibble(number - before)
        length, length_rest = _nibble(len(value))
        parts += (bytes((delta << 4 | length,)), delta_rest, length_rest, value)
        before = number
    if message.payload:
        parts += (b"\xff", message.payload)
    return b"".join(parts)


def encode_bare(message_type: int, code: int, message_id: int, token: bytes = b"") -> bytes:
    """Return the datagram of a message without options and payload; a quarter of the time of `encode`."""
    first = _VERSION << 6 | message_type << 4 | len(token)
    return bytes((first, code, message_id >> 8, message_id & 0xFF)) + token


def _nibble(value: int) -> tuple[int, bytes]:
    """Return a delta or length as its four bits and the extended bytes."""
    if value < _ONE_BYTE_FROM:
        return value, b""
    if value < _TWO_BYTES_FROM:
        return _ONE_BYTE, bytes((value - _ONE_BYTE_FROM,))
    try:
        return _TWO_BYTES, (value - _TWO_BYTES_FROM).to_bytes(2, "big")
    except OverflowError:
        raise ValueError(f"an option of {value} bytes or numbers") from None


def uint_bytes(value: int) -> bytes:
    """Return the value of an option of format uint: no leading zeros (RFC 7252 section 3.2)."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")
