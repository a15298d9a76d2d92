"""The data types of MQTT packets: integers, texts, binary data (3.1.1 section 1.5, 5.0 section 1.5)."""

from __future__ import annotations

import re
from functools import lru_cache

from isotherm.mqtt_proxy.codec.errors import PacketError
from isotherm.mqtt_proxy.codec.reasons import Reason

_CACHED_TOPIC_BYTES = 256
"""Longest topic name that is cached."""

_CONTROL = re.compile(
    "[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)


class Reader:
    """Reads the fields of a packet's body in order. Every method raises PacketError when the body ends too early."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end

    @property
    def left(self) -> int:
        """The number of bytes that are left."""
        return self._end - self._at

    def _take(self, length: int) -> int:
        at = self._at
        if length > self._end - at:
            raise PacketError(Reason.MALFORMED_PACKET, "the packet ends inside a field")
        self._at = at + length
        return at

    def byte(self) -> int:
        """Read one byte as an integer."""
        return self._data[self._take(1)]

    def two_bytes(self) -> int:
        """Read a two byte integer."""
        at = self._take(2)
        return self._data[at] << 8 | self._data[at + 1]

    def four_bytes(self) -> int:
        """Read a four byte integer."""
        at = self._take(4)
        return int.from_bytes(self._data[at : at + 4], "big")

    def varint(self) -> int:
        """Read a variable byte integer (5.0 section 1.5.5)."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if shift and not byte:
                    raise PacketError(Reason.MALFORMED_PACKET, "an integer is encoded longer than it has to be")
                return value
            shift += 7
            if shift > 21:
                raise PacketError(Reason.MALFORMED_PACKET, "a variable byte integer has more than four bytes")

    def binary(self) -> bytes:
        """Read bytes with a two byte length prefix."""
        length = self.two_bytes()
        at = self._take(length)
        return self._data[at : at + length]

    def text(self) -> str:
        """Read a UTF-8 text with a two byte length prefix."""
        return decode_text(self.binary())

    def part(self, length: int) -> Reader:
        """Return a reader of the next `length` bytes."""
        at = self._take(length)
        return Reader(self._data, at, at + length)

    def finish(self) -> None:
        """Raise PacketError when bytes are left over."""
        if self.left:
            raise PacketError(Reason.MALFORMED_PACKET, f"{self.left} bytes too many")


def decode_text(data: bytes) -> str:
    """Decode a UTF-8 text without surrogates and U+0000 (MQTT-1.5.3-1, -2). Raises PacketError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise PacketError(Reason.MALFORMED_PACKET, "a text is not UTF-8") from None
    if "\0" in text:
        raise PacketError(Reason.MALFORMED_PACKET, "a text contains U+0000")
    return text


def has_control_characters(text: str) -> bool:
    """Return whether `text` has a control character (U+0001..U+001F, U+007F..U+009F) or a Unicode non-character.

    A sender SHOULD NOT use them and a receiver MAY refuse them (5.0 section 1.5.4).
    """
    # Nearly every text is printable, and none of these characters is.
    return not text.isprintable() and _CONTROL.search(text) is not None


def check_topic_name(topic: str) -> str:
    """Return `topic` when it is a topic name: not empty, no wildcards (section 4.7). Raises PacketError."""
    if not topic or "+" in topic or "#" in topic:
        raise PacketError(Reason.TOPIC_NAME_INVALID, "a topic name is empty or has a wildcard")
    return topic


def _decode_any_topic(data: bytes) -> str:
    return check_topic_name(decode_text(data))


def _decode_topic(data: bytes) -> str:
    return check_no_control_characters(_decode_any_topic(data))


def check_no_control_characters(topic: str) -> str:
    """Return `topic` when it has no control characters. Raises PacketError."""
    if has_control_characters(topic):
        raise PacketError(Reason.TOPIC_NAME_INVALID, "a topic name has control characters")
    return topic


def has_misplaced_wildcard(topic_filter: str) -> bool:
    """Return whether a `+` does not fill its level, or a `#` does not fill the last one (section 4.7.1)."""
    levels = topic_filter.split("/")
    return any(
        ("#" in level and (level != "#" or index != len(levels) - 1)) or ("+" in level and level != "+")
        for index, level in enumerate(levels)
    )


_decode_topic_cached = lru_cache(maxsize=8192)(_decode_topic)
_decode_any_topic_cached = lru_cache(maxsize=8192)(_decode_any_topic)


def decode_topic(data: bytes) -> str:
    """Decode a topic name. Short names are cached, because devices repeat their topics. Raises PacketError."""
    return _decode_topic_cached(data) if len(data) <= _CACHED_TOPIC_BYTES else _decode_topic(data)


def decode_any_topic(data: bytes) -> str:
    """Decode a topic name as `decode_topic` does, with control characters allowed."""
    return _decode_any_topic_cached(data) if len(data) <= _CACHED_TOPIC_BYTES else _decode_any_topic(data)


def encode_varint(value: int) -> bytes:
    """Encode `value` as a variable byte integer."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
