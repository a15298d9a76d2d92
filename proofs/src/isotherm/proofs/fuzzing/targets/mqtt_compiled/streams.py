"""Generates what MQTT clients send: readings and publishes that the compiled way takes, and some that it leaves."""

from __future__ import annotations

from random import Random

_TOPICS = (
    *(b"devices/attic/temperature",) * 6,
    b"devices/loft/temperature",
    b"devices/" + b"x" * 60 + b"/temperature",
    b"devices/" + b"x" * 250 + b"/temperature",
    b"devices//temperature",
    "devices/\u00fc/temperature".encode(),
    b"homes/attic/temperature",
    b"homes/special/temperature",
    b"plain/temperature",
    b"plain/x",
    b"raw/a",
    b"nobody",
)
_BAD_TOPICS = (b"a/+", b"", b"a\0", b"\xff", b"devices/\x01/temperature")
_PLAIN_TOPICS = (
    b"devices/attic/temperature",
    b"devices/loft/temperature",
    b"plain/temperature",
    b"homes/attic/temperature",
)
_ODD = (0.0, 0.0, 0.1, 0.7)
"""Shares of packets in a stream that the compiled way may leave: behind one of them it leaves the rest of the read."""
_LONG = 1_000
"""Longer payloads would end the connection, or leave no room for others in an input."""
_RARELY = 0.01
"""Share of packets for which the server closes the connection, and what is behind them counts for nothing."""
_NUMBERS = (
    b"1",
    b"-0",
    b"21.5",
    b"1e3",
    b"0.1",
    b"-7.25",
    b"123456789012345678901",
    b"1" + b"0" * 70 + b".5",
    b"9" * 18,
)
_TIMES = (b"1767225600", b"1767225600000", b"0", b"-1", b"99999999999999", b"100000000000000", b'"2026-01-01"')
_TEXTS = (b'"attic"', b'"loft"', b'""', b'"\\u0041"', b'"' + b"y" * 255 + b'"', b'"' + b"y" * 257 + b'"', b"null")


def _object(random: Random) -> bytes:
    members = [b'"%b":%b' % (random.choice((b"t", b"value")), random.choice(_NUMBERS))]
    for name, values in ((b"ts", _TIMES), (b"seq", _NUMBERS), (b"id", _TEXTS), (b"u", _TEXTS), (b"note", _TEXTS)):
        if random.random() < 0.3:
            members.append(b'"%b": %b' % (name, random.choice(values)))
    if random.random() < 0.1:
        members *= random.choice((2, 30))
    random.shuffle(members)
    return b"{" + b",".join(members) + b"}"


def payload(random: Random) -> bytes:
    """Return a payload of readings, mostly plain ones."""
    kind = random.random()
    if kind < 0.5:
        return _object(random)
    if kind < 0.6:
        return random.choice(_NUMBERS)
    if kind < 0.95:
        return b"[" + b", ".join(_object(random) for _ in range(random.choice((1, 2, 3, 10, 60)))) + b"]"
    return bytes(random.randrange(256) for _ in range(random.randrange(20)))


def _plain_payload(random: Random, topic: bytes) -> bytes:
    """Return a payload that the compiled way takes from a topic of the targets."""
    name = b"t" if topic.startswith(b"devices/") else b"value"

    def reading() -> bytes:
        more = random.choice((b"", b"", b',"ts":1767225600000', b',"seq":%d' % random.randrange(9)))
        more = more if name == b"t" else more.replace(b"ts", b"event_time").replace(b"seq", b"sequence")
        return b'{"%b":%b%b}' % (name, random.choice((b"1", b"-0.5", b"21.25", b"9" * 18)), more)

    if random.random() < 0.8:
        return reading()
    return b"[" + b",".join(reading() for _ in range(random.choice((1, 2, 10)))) + b"]"


def _packet_id(random: Random) -> bytes:
    """Return a packet identifier; few are used twice, because that ends most connections."""
    return bytes((0, random.randint(random.random() > _RARELY, random.choice((9, 90)))))


def _publish(random: Random, topic: bytes, flags: int, properties: bytes, content: bytes) -> bytes:
    identifier = _packet_id(random) if flags & 6 else b""
    body = len(topic).to_bytes(2, "big") + topic + identifier + properties + content
    length = len(body) + (random.choice((-1, 1, 200)) if random.random() < _RARELY else 0)
    encoded = b""
    while True:
        length, low = length >> 7, length & 0x7F
        encoded += bytes((low | (0x80 if length else 0),))
        if not length:
            return bytes((0x30 | flags,)) + encoded + body


def _release(random: Random) -> bytes:
    return b"\x62\x02" + _packet_id(random)


def _plain_packet(random: Random, version: int) -> bytes:
    """Return a packet that the compiled way takes, unless the session knows its identifier otherwise."""
    if random.random() < 0.25:
        return _release(random)
    topic = random.choice(_PLAIN_TOPICS)
    return _publish(random, topic, random.choice((0, 2, 2, 4, 4)), b"\0" * version, _plain_payload(random, topic))


def _odd_packet(random: Random, version: int) -> bytes:
    """Return any packet of a client."""
    kind = random.random()
    if kind < 0.2:
        return _release(random)
    if kind < 0.2 + _RARELY:
        return random.choice((b"\xc0\0", b"\xe0\0", b"\x62\x03\0\1\0", b"\x62\0", b"\x62\x02\0", b"\x60\x02\0\1"))
    flags = random.choice((0, 2, 2, 4, 4)) if random.random() > _RARELY else 6
    if random.random() < 0.1:
        flags |= random.choice((1, 8, 9))
    topic = random.choice(_TOPICS if random.random() > _RARELY else _BAD_TOPICS)
    properties = random.choice((b"\0",) * 20 + (b"\2\1\1", b"\3\x23\0\1", b"\x80\0")) if version else b""
    content = payload(random)
    if len(content) > _LONG and random.random() > _RARELY:
        content = _object(random)
    return _publish(random, topic, flags, properties, content)


def stream(random: Random, version: int) -> bytes:
    """Return what a client sends: mostly plain publishes and PUBRELs."""
    odd = random.choice(_ODD)
    return b"".join(
        _odd_packet(random, version) if random.random() < odd else _plain_packet(random, version)
        for _ in range(random.choice((1, 4, 12, 40)))
    )
