"""Repairs of aiocoap that hold for every message of the process, received and sent.

aiocoap keeps each option number and content format that it ever saw, so that a datagram of unassigned numbers takes
memory for ever. It drops a message with a text that is not UTF-8, with a traceback and without an answer.
"""

from __future__ import annotations

from typing import Any

from aiocoap.numbers import OptionNumber  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.numbers.contentformat import ContentFormat  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.optiontypes import StringOption  # type: ignore[import-untyped]  # aiocoap ships no types


def apply_repairs() -> None:
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
