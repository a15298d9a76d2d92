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
    b"a/+",
    b"",
)
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


def _packet(random: Random, version: int) -> bytes:
    kind = random.random()
    if kind < 0.2:
        return b"\x62\x02\0" + bytes((random.randrange(10),))
    if kind < 0.23:
        return random.choice((b"\xc0\0", b"\xe0\0", b"\x62\x03\0\1\0", b"\x62\0", b"\x62\x02\0", b"\x60\x02\0\1"))
    qos = random.choice((0, 1, 1, 2, 2, 3))
    flags = qos << 1 | (random.choice((1, 8, 9)) if random.random() < 0.05 else 0)
    topic = random.choice(_TOPICS)
    body = len(topic).to_bytes(2, "big") + topic + (bytes((0, random.randrange(10))) if qos else b"")
    if version:
        body += random.choice((b"\0",) * 8 + (b"\2\1\1", b"\3\x23\0\1", b"\x80\0"))
    body += payload(random)
    length = len(body) + (random.choice((-1, 1, 200)) if random.random() < 0.03 else 0)
    encoded = b""
    while True:
        length, low = length >> 7, length & 0x7F
        encoded += bytes((low | (0x80 if length else 0),))
        if not length:
            return bytes((0x30 | flags,)) + encoded + body


def stream(random: Random, version: int) -> bytes:
    """Return what a client sends: mostly plain publishes and PUBRELs."""
    return b"".join(_packet(random, version) for _ in range(random.choice((1, 3, 8, 20))))
