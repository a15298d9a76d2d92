"""Options with a value outside of what their definition allows (RFC 7252 sections 5.4.1 to 5.4.5).

aiocoap keeps each option number and content format that it ever saw, so that a datagram of unassigned numbers takes
memory for ever. It drops a message with a text that is not UTF-8, with a traceback and without an answer. Both are
repaired here for every message of the process, received and sent.
"""

from __future__ import annotations

from typing import Any

from aiocoap.numbers import OptionNumber, codes  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.numbers.contentformat import ContentFormat  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.optiontypes import StringOption  # type: ignore[import-untyped]  # aiocoap ships no types

TRACEPARENT = OptionNumber(65052)
"""W3C Trace Context's `traceparent` as text. No option is registered for it; the number is of the range for experiments
(RFC 7252 section 12.2), and says elective, safe to forward, no part of the cache key (section 5.4.6)."""
_MAX_TEXT_BYTES = 255
_UINT_BITS = {
    OptionNumber.URI_PORT: 16,
    OptionNumber.ACCEPT: 16,
    OptionNumber.BLOCK1: 24,
    OptionNumber.BLOCK2: 24,
}
"""Sizes of the critical options that are numbers (RFC 7252 table 4, RFC 7959 section 2.2)."""
_TEXTS = (OptionNumber.URI_HOST, OptionNumber.URI_PATH, OptionNumber.URI_QUERY)
_REPEATABLE = (OptionNumber.URI_PATH, OptionNumber.URI_QUERY)
_PROXY = (OptionNumber.PROXY_URI, OptionNumber.PROXY_SCHEME)
_RESERVED_SIZE = 7


class BadOptionError(Exception):
    """A critical option cannot be processed; `code` is the answer's."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(text)
        self.code = code


def check_options(request: Any) -> None:
    """Raise BadOptionError for a critical option that is unknown, too long, no UTF-8, or repeated.

    An elective option of this kind is ignored, as if it were absent: `uint_or_none`.
    """
    seen = set()
    for option in request.opt.option_list():
        number = option.number
        if not number & 1:
            continue
        if number in _PROXY:
            raise BadOptionError(codes.PROXYING_NOT_SUPPORTED, "this is no proxy")
        if number in seen and number not in _REPEATABLE:
            raise BadOptionError(codes.BAD_OPTION, f"option {int(number)} is repeated")
        seen.add(number)
        if number in _TEXTS:
            _check_text(option)
        elif number in _UINT_BITS:
            if _bits(option) > _UINT_BITS[number]:
                raise BadOptionError(codes.BAD_OPTION, f"option {int(number)} is too long")
        else:
            raise BadOptionError(codes.BAD_OPTION, f"option {int(number)} is not supported")
    for block in (request.opt.block1, request.opt.block2):
        if block is not None and block.size_exponent == _RESERVED_SIZE:
            raise BadOptionError(codes.BAD_REQUEST, "the block size 7 is reserved")


def uint_or_none(value: Any, bits: int) -> int | None:
    """Return the number of an elective option; None for an absent one, and for one that is too long."""
    return None if value is None or int(value).bit_length() > bits else int(value)


def traceparent_of(message: Any) -> str | None:
    """Return the trace context of a message; None when it has none, or more than one."""
    options = message.opt.get_option(TRACEPARENT)
    return bytes(options[0].value).decode("latin-1") if options and len(options) == 1 else None


def text_of(value: str) -> str:
    """Return a text with each byte that is not UTF-8 replaced by U+FFFD."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _check_text(option: Any) -> None:
    try:
        length = len(option.value.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadOptionError(codes.BAD_OPTION, f"option {int(option.number)} is not UTF-8") from None
    if length > _MAX_TEXT_BYTES:
        raise BadOptionError(codes.BAD_OPTION, f"option {int(option.number)} is longer than {_MAX_TEXT_BYTES} bytes")


def _bits(option: Any) -> int:
    value = option.value
    if option.number in (OptionNumber.BLOCK1, OptionNumber.BLOCK2):
        return (int(value.block_number) << 4).bit_length()
    return int(value).bit_length()


def repair_options() -> None:
    """Replace the library's two methods; a second call changes nothing."""
    OptionNumber._missing_ = ContentFormat._missing_ = classmethod(_unassigned)
    StringOption.decode = _decode_text


def _unassigned(cls: Any, value: int) -> Any:
    """Return a member that is not remembered."""
    member = int.__new__(cls, value)
    member._value_ = value
    return member


def _decode_text(option: Any, data: bytes) -> None:
    """Keep bytes that are not UTF-8 as lone surrogates; `check_options` refuses them."""
    option.value = data.decode("utf-8", "surrogateescape")
