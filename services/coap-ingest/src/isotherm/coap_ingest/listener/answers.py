"""Answers to requests, as messages of aiocoap and as datagrams."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiocoap import Message  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.numbers import codes  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.plain.codec import WireMessage, encode, encode_bare, uint_bytes

_MAX_AGE, _SIZE1 = 14, 60
_MAX_TEXT_BYTES = 512


class RequestError(Exception):
    """The request is answered with an error code; the text explains why to the device."""

    def __init__(self, code: Any, text: str, *, max_age_s: int | None = None, size1: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.max_age_s = max_age_s
        self.size1 = size1

    @property
    def answer(self) -> Answer:
        """The answer to the request."""
        return Answer(self.code, str(self).encode()[:_MAX_TEXT_BYTES], self.max_age_s, self.size1)


class Answer(NamedTuple):
    """A complete answer; `code` is one of aiocoap's."""

    code: Any
    payload: bytes = b""
    max_age_s: int | None = None
    size1: int | None = None

    def message(self) -> Any:
        """Return the answer as a message of aiocoap, which adds its type, message id and token."""
        return Message(code=self.code, payload=self.payload, max_age=self.max_age_s, size1=self.size1)

    def datagram(self, message_type: int, message_id: int, token: bytes) -> bytes:
        """Return the answer as a datagram."""
        if not self.payload and self.max_age_s is None and self.size1 is None:
            return encode_bare(message_type, int(self.code), message_id, token)
        options = ((_MAX_AGE, self.max_age_s), (_SIZE1, self.size1))
        given = tuple((number, uint_bytes(value)) for number, value in options if value is not None)
        return encode(WireMessage(message_type, int(self.code), message_id, token, given, self.payload))


CHANGED = Answer(codes.CHANGED)
