"""Plain requests: POST or PUT whose options are a path, a query and a content format. No IO."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from isotherm.coap_ingest.coap.plain.codec import CON, Option, decode

POST, PUT = 2, 3
_URI_HOST, _URI_PORT, _URI_PATH, _CONTENT_FORMAT, _URI_QUERY = 3, 7, 11, 12, 15
_TEXTS = frozenset((_URI_HOST, _URI_PATH, _URI_QUERY))
_UINT16 = frozenset((_URI_PORT, _CONTENT_FORMAT))
_MAX_TEXT_BYTES = 255
_MAX_OPTION_BYTES = 256
"""Larger options are left to aiocoap, so that the cache of options stays below 3 MB."""
_MAX_DATAGRAM_BYTES = 4_096 - 128
"""aiocoap cuts a datagram at 4,096 bytes without a sign; a longer one is left to it."""
_VERSION_AND_TYPE, _CON_OR_NON = 0xE0, 0x40


class RequestTarget(NamedTuple):
    """What the options of a request say."""

    path: tuple[str, ...]
    query: tuple[str, ...]
    content_format: int | None


class PlainRequest(NamedTuple):
    """One plain request."""

    is_confirmable: bool
    code: int
    message_id: int
    token: bytes
    target: RequestTarget
    payload: bytes


def plain_request(datagram: bytes) -> PlainRequest | None:
    """Return the plain request in a datagram; None when aiocoap must judge the datagram."""
    if not 4 <= len(datagram) < _MAX_DATAGRAM_BYTES or datagram[1] not in (POST, PUT):
        return None
    if datagram[0] & _VERSION_AND_TYPE != _CON_OR_NON or (message := decode(datagram)) is None:
        return None
    if len(datagram) - len(message.payload) > _MAX_OPTION_BYTES:
        return None
    target = _target_of(message.options)
    if target is None:
        return None
    is_confirmable = message.message_type == CON
    return PlainRequest(is_confirmable, message.code, message.message_id, message.token, target, message.payload)


@lru_cache(maxsize=4_096)
def _target_of(options: tuple[Option, ...]) -> RequestTarget | None:
    """Return what `options` say; None for an option, or a value of one, that is not plain."""
    path: list[str] = []
    query: list[str] = []
    content_format, seen = None, set()
    for number, value in options:
        if number in _TEXTS:
            try:
                text = value.decode()
            except UnicodeDecodeError:
                return None
            if len(value) > _MAX_TEXT_BYTES:
                return None
            if number != _URI_HOST:
                (path if number == _URI_PATH else query).append(text)
                continue
        elif number not in _UINT16 or len(value) > 2:
            return None
        elif number == _CONTENT_FORMAT:
            content_format = int.from_bytes(value, "big")
        if number in seen:
            return None
        seen.add(number)
    return RequestTarget(tuple(path), tuple(query), content_format)
