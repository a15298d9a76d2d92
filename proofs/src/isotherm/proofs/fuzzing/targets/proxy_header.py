"""The header of the PROXY protocol, with which a balancer begins a connection."""

from __future__ import annotations

from collections.abc import Callable

from isotherm.mqtt_proxy.protocol.proxy_header import MAX_HEADER_BYTES, ProxyFault, ProxyHeader, ProxyHeaderError
from isotherm.proofs.fuzzing.target import Target, expect

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def proxy_header_target() -> Callable[[bytes], None]:
    """Return the check that the client, the fault and what is left do not depend on how the bytes are cut."""

    def run(data: bytes) -> None:
        step, stream = (data[0] % 16 + 1, data[1:]) if data else (1, b"")
        expect(_read(stream, step) == _read(stream, MAX_HEADER_BYTES), "the cuts matter")

    return run


def _read(stream: bytes, step: int) -> ProxyFault | tuple[int, int, str | None]:
    """Return what is wrong, or the bytes that were read, those that are missing, and the client."""
    header, at = ProxyHeader(), 0
    while header.needed and at < len(stream):
        piece = stream[at : at + min(step, header.needed)]
        try:
            header.feed(piece)
        except ProxyHeaderError as error:
            return error.fault
        at += len(piece)
        expect(header.received + header.needed <= MAX_HEADER_BYTES, "more is read than a header may have")
    return at, header.needed, None if header.needed else header.client


TARGETS = (
    Target(
        name="mqtt-proxy-header",
        make=proxy_header_target,
        dictionary=(
            _SIGNATURE,
            b"PROXY TCP4 ",
            _SIGNATURE + b"\x20\0\0\0",
            _SIGNATURE + b"\x21\x11\0\x0c\xc0\0\2\x07\x0a\0\0\1\xc3\x50\x07\x5b",
            _SIGNATURE + b"\x21\x21\0\x24",
            b"\x20\1\x0d\xb8" + bytes(11) + b"\7",
            bytes(10) + b"\xff\xff\xc0\0\2\x07",
            b"\x04\0\3abc",
        ),
    ),
)
