"""Long reads of one connection, with the compiled way and without: its bounds, which short inputs do not reach.

They are the packets of QoS 2 in a read, the PUBACKs in a piece, the topics that a connection remembers, and the
patterns among these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from isotherm.proofs.fuzzing.target import Target
from isotherm.proofs.fuzzing.targets.mqtt_compiled.server import CONNECTS, PlainServer, compare, compare_at_end

_READ_BYTES = 16_384
"""As `server.server` reads from a socket."""
_MAX_PACKETS = 2_200
"""Of an input: one more than the packets of QoS 2 that a read may hold, published and released."""
_MAX_RECORDS = 20_000
"""Of a transaction: more than an input makes, because the ways may close full ones at different publishes."""
_RUN = 3
"""Bytes that stand for a run of packets."""
_MAX_ID = 65_535
_PLAIN = b"plain/temperature"
_REPORT, _END = 6, 7
"""The kinds that are no packets: Kafka reports, and the open transaction ends."""
_TERMS = 0xC7
"""Without the terms that hold publishes back: a read would take thousands of reports and transactions."""
_MAX_CPU_S = 0.8


def bulk_target() -> Callable[[bytes], None]:
    """Return the check that long reads have the same effect with the compiled way and without.

    An input is a byte of terms, and three bytes for each run: its kind, its length, and how it is made.
    """

    def run(data: bytes) -> None:
        terms = data[0] & _TERMS if data else 0
        found, expected = (
            PlainServer(
                terms,
                is_compiled=is_compiled,
                is_direct=is_compiled,
                receive_maximum=_MAX_ID,
                max_records=_MAX_RECORDS,
            )
            for is_compiled in (True, False)
        )
        for server in (found, expected):
            server.receive(CONNECTS[terms & 1])
        for what in _runs(data[1:], terms & 1):
            for server in (found, expected):
                if isinstance(what, bytes):
                    for at in range(0, len(what), _READ_BYTES):
                        server.receive(what[at : at + _READ_BYTES])
                elif what is None:
                    server.report_all()
                else:
                    server.end(what)
            compare(found, expected)
        compare_at_end([found], expected)

    return run


def _runs(script: bytes, version: int) -> Iterator[bytes | int | None]:
    """Yield what the client sends at once, None for all reports of Kafka, and how the open transaction ends."""
    sent, left = b"", _MAX_PACKETS
    for at in range(0, len(script) - _RUN + 1, _RUN):
        kind, length, how = script[at : at + _RUN]
        if kind & 7 < _REPORT:
            packets = [*_packets(kind & 7, min(8 * length + 1 + (how & 7), left), how >> 3, version)]
            left -= len(packets)
            sent += b"".join(packets)
            continue
        if sent:
            yield sent
            sent = b""
        yield None if kind & 7 == _REPORT else how & 3
    if sent:
        yield sent


def _packets(kind: int, count: int, first: int, version: int) -> Iterator[bytes]:
    """Yield `count` packets of a kind; their identifiers follow `first`."""
    for number in range(count):
        packet_id = (first + number) % _MAX_ID + 1
        if kind == 0:
            yield _publish(1, _PLAIN, packet_id, b"1", version)
        elif kind == 1:
            yield _publish(2, _PLAIN, packet_id, b"1", version)
        elif kind == 2:
            yield b"\x62\x02" + packet_id.to_bytes(2, "big")
        elif kind == 3:
            yield _publish(number & 1, b"plain/%d/temperature" % number, packet_id, b"2", version)
        elif kind == 4:
            yield _publish(number % 3, b"devices/%d/temperature" % number, packet_id, b'{"t":3}', version)
        elif number & 1:
            yield _publish(2, _PLAIN, packet_id, b"[" + b'{"value":4},' * 3 + b'{"value":4}]', version)
        else:
            yield _publish(2, b"devices/a/temperature", packet_id, b'{"t":5}', version)


def _publish(qos: int, topic: bytes, packet_id: int, payload: bytes, version: int) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + (packet_id.to_bytes(2, "big") if qos else b"")
    body += b"\0" * version + payload
    return bytes((0x30 | qos << 1, len(body))) + body


def _input(random: Random) -> bytes:
    terms = random.randrange(256) & random.randrange(256)
    runs = [
        bytes((random.randrange(8), random.choice((0, 1, 16, 32, 40, 128)), random.randrange(256)))
        for _ in range(random.randint(1, 8))
    ]
    return bytes((terms,)) + b"".join(runs)


_COMMIT = bytes((_END, 0, 0))
_ALL_QOS2 = bytes((1, 128, 7))
_ALL_RELEASED = bytes((2, 128, 7))
TARGETS = (
    Target(
        name="mqtt-plain-bulk",
        make=bulk_target,
        dictionary=(
            b"\2" + _ALL_QOS2 + _COMMIT + _ALL_RELEASED,
            b"\0" + _ALL_QOS2 + _COMMIT * 3 + _ALL_RELEASED,
            b"\0\0\x40\0\x06\0\0",
            b"\1\3\x20\0\4\x20\0\6\0\0",
        ),
        max_bytes=40,
        quick_known=40,
        quick_inputs=10,
        generate=_input,
        max_cpu_s=_MAX_CPU_S,
        is_native=True,
    ),
)
