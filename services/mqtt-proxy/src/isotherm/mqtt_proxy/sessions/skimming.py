"""Reads of a stored session what its server must know at the start, in a fifth of the time of decoding it (ADR 127)."""

from __future__ import annotations

import re
from typing import NamedTuple

_VARINT = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
"""An integer of Avro of up to 63 bits; longer ones are left to the decoder."""
_HEADER_BYTES = 5
_MAX_TIME_MS = 253_402_300_799_999
"""The last millisecond that the decoder can represent, in the year 9999."""
_SURE_TIME_BYTES = 6
"""An integer of so few bytes is a time that the decoder can represent."""


class Skimmed(NamedTuple):
    """What a session without a will says of itself. The time is epoch milliseconds, None while it is connected."""

    owner: int
    expiry_s: int
    expires_at_ms: int | None


class SessionSkim:
    """Skims records of the sessions topic that were written with version 3 of MqttSession, whose id is `schema_id`.

    It takes only what the decoder would accept, with the same result, and leaves everything else to the decoder: other
    versions, sessions with a will or subscriptions, many unreleased packet identifiers, and whatever is not exactly as
    expected.
    """

    def __init__(self, schema_id: int) -> None:
        self._header = b"\0" + schema_id.to_bytes(4, "big")
        self._first = re.compile(rb"%b%b" % (_VARINT, _VARINT))
        self._patterns: dict[int, re.Pattern[bytes]] = {}
        self._likely = self._pattern(0)
        self._small: dict[bytes, int] = {}

    def __call__(self, client_id: str, value: bytes) -> Skimmed | None:
        """Return what `value` says of the session of `client_id`; None when it has to be decoded."""
        client = client_id.encode("utf-8")
        size = len(client)
        if size < 64:
            length, start = bytes((2 * size,)), _HEADER_BYTES + 1 + size
        elif size < 8_192:
            length, start = bytes((0x80 | 2 * size & 0x7F, size >> 6)), _HEADER_BYTES + 2 + size
        else:
            return None
        if not value.startswith(b"%b%b%b" % (self._header, length, client)):
            return None
        found = self._likely.match(value, start) or self._match_other(value, start)
        if found is None or not self._ends_without_will(value, found.end()):
            return None
        owner, expiry, updated_at, expires_at = found.groups()
        if len(updated_at) > _SURE_TIME_BYTES and not 0 <= _integer(updated_at) <= _MAX_TIME_MS:
            return None
        expires_at_ms = None
        if expires_at is not None:
            expires_at_ms = _integer(expires_at)
            if len(expires_at) > _SURE_TIME_BYTES and not 0 <= expires_at_ms <= _MAX_TIME_MS:
                return None
        return Skimmed(self._integer(owner), self._integer(expiry), expires_at_ms)

    def _match_other(self, value: bytes, start: int) -> re.Match[bytes] | None:
        """Match a record with another count of identifiers than the last one, which is the likely one from now on."""
        first = self._first.match(value, start)
        if first is None or first.end() == len(value):
            return None
        count = value[first.end()]
        if count & 0x81:
            # More than 63 identifiers, or a block that begins with its length in bytes.
            return None
        self._likely = self._pattern(count)
        return self._likely.match(value, start)

    def _pattern(self, count: int) -> re.Pattern[bytes]:
        """Return the pattern from `owner` to `expires_at` for a record whose array begins with the byte `count`."""
        pattern = self._patterns.get(count)
        if pattern is None:
            # An array is blocks of a count and its items, here one, and ends with the count 0 (Avro 1.12, "Arrays").
            committed = rb"\x%02x(?:%b){%d}\x00" % (count, _VARINT, count) if count else rb"\x00"
            times = rb"(%b)(%b)(?:\x00|\x02(%b))" % (_VARINT, _VARINT, _VARINT)
            pattern = self._patterns[count] = re.compile(rb"(%b)%b%b%b" % (_VARINT, _VARINT, committed, times))
        return pattern

    def _integer(self, varint: bytes) -> int:
        """Return an integer of which few different ones occur."""
        known = self._small.get(varint)
        if known is None:
            known = _integer(varint)
            if len(self._small) < 10_000:
                self._small[varint] = known
        return known

    @staticmethod
    def _ends_without_will(value: bytes, at: int) -> bool:
        """Return whether at `at` a user name or none is followed by no will, no subscription and nothing else."""
        if len(value) - at == 3:
            return value.endswith(b"\0\0\0")
        tail = value[at:]
        if len(tail) < 4 or tail[0] != 2 or tail[1] & 0x81 or len(tail) != 4 + (tail[1] >> 1):
            return False
        if not tail.endswith(b"\0\0"):
            return False
        try:
            tail[2:-2].decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True


def _integer(varint: bytes) -> int:
    """Return the integer in zigzag encoding (Avro 1.12, "Primitive types")."""
    bits = shift = 0
    for byte in varint:
        bits |= (byte & 0x7F) << shift
        shift += 7
    return bits >> 1 ^ -(bits & 1)
