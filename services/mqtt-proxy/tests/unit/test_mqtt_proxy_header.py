"""The PROXY header without a network: whom it names, cut anywhere, and what is no header, with which reason."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.mqtt_proxy.balancers import TrustedBalancers
from isotherm.mqtt_proxy.protocol.proxy_header import MAX_HEADER_BYTES, ProxyFault, ProxyHeader, ProxyHeaderError

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
LOCAL, PROXY = 0x20, 0x21
TCP4, TCP6, UDP4, UNIX = 0x11, 0x21, 0x12, 0x31
OTHERS = b"\x04\x00\x03abc\x03\x00\x04\0\0\0\0\xe0\x00\x00"
"""Three TLVs: padding, a checksum, and one for the application."""


def header(block: bytes = b"", command: int = PROXY, family: int = TCP4, length: int | None = None) -> bytes:
    """A header with this block behind its 16 fixed bytes."""
    fixed = struct.pack("!BBH", command, family, len(block) if length is None else length)
    return SIGNATURE + fixed + block


def proxied(client: str, others: bytes = b"") -> bytes:
    """The header of a balancer for a client, with `others` behind the addresses."""
    address = ip_address(client)
    server = ip_address("10.0.0.1" if address.version == 4 else "fd00::1")
    ports = struct.pack("!HH", 50_000, 1883)
    return header(address.packed + server.packed + ports + others, family=TCP4 if address.version == 4 else TCP6)


def read(data: bytes, sizes: Sequence[int] = ()) -> tuple[ProxyHeader, bytes]:
    """A header that got `data` in pieces of these sizes, and what it did not take."""
    found, at = ProxyHeader(), 0
    for size in chain(sizes, repeat(MAX_HEADER_BYTES)):
        if not found.needed or at == len(data):
            return found, data[at:]
        piece = data[at : at + min(size, found.needed)]
        found.feed(piece)
        at += len(piece)
    raise AssertionError


def outcome(data: bytes, sizes: Sequence[int] = ()) -> ProxyFault | tuple[int, bytes, str | None]:
    try:
        found, left = read(data, sizes)
    except ProxyHeaderError as error:
        return error.fault
    return found.needed, left, None if found.needed else found.client


ADDRESSES = st.ip_addresses(v=4) | st.ip_addresses(v=6)
SIZES = st.lists(st.integers(1, 40), max_size=30)


@given(address=ADDRESSES, others=st.binary(max_size=300), behind=st.binary(max_size=40), sizes=SIZES)
def test_the_client_survives_any_cuts_and_what_follows_is_left(
    address: IPv4Address | IPv6Address, others: bytes, behind: bytes, sizes: list[int]
) -> None:
    found, left = read(proxied(str(address), others) + behind, sizes)
    assert (found.needed, left) == (0, behind)
    assert found.client == str(getattr(address, "ipv4_mapped", None) or address)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A header with a changed byte, cut off somewhere."""
    data = bytearray(proxied(str(draw(ADDRESSES)), draw(st.binary(max_size=20))))
    data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@given(data=st.binary(max_size=100) | damaged() | st.binary(max_size=40).map(SIGNATURE.__add__), sizes=SIZES)
def test_any_bytes_are_a_header_or_a_fault_however_they_are_cut(data: bytes, sizes: list[int]) -> None:
    assert outcome(data, sizes) == outcome(data)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x10", ProxyFault.MISSING),
        (b"\x16\x03\x01\x02\x00\x01", ProxyFault.MISSING),
        (b"POST / HTTP/1.1\r\n", ProxyFault.MISSING),
        (SIGNATURE[:11] + b"\r", ProxyFault.MISSING),
        (b"PROXY UNKNOWN\r\n", ProxyFault.VERSION_1),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 1883\r\n", ProxyFault.VERSION_1),
        (SIGNATURE + b"\x31", ProxyFault.MALFORMED),
        (SIGNATURE + b"\x22", ProxyFault.MALFORMED),
        (SIGNATURE + b"\x21\x41", ProxyFault.MALFORMED),
        (SIGNATURE + b"\x21\x13", ProxyFault.MALFORMED),
        (header(length=11), ProxyFault.MALFORMED),
        (header(length=35, family=TCP6), ProxyFault.MALFORMED),
        (header(length=MAX_HEADER_BYTES - 15), ProxyFault.TOO_LONG),
        (header(length=0xFFFF, command=LOCAL), ProxyFault.TOO_LONG),
    ],
)
def test_a_fault_is_found_with_the_byte_that_shows_it(data: bytes, fault: ProxyFault) -> None:
    assert outcome(data) is fault


@pytest.mark.parametrize(
    "data",
    [
        header(command=LOCAL, family=0),
        header(bytes(12) + OTHERS, command=LOCAL),
        header(b"ignored", command=LOCAL, family=0xFF),
        header(family=0),
        header(b"ignored", family=0),
        header(bytes(12), family=0x10),
        header(bytes(216), family=UNIX),
        header(bytes(12), family=UDP4),
    ],
)
def test_the_address_of_the_socket_holds_where_the_header_names_no_tcp_client(data: bytes) -> None:
    assert outcome(data + b"\x10") == (0, b"\x10", None)


def test_ipv4_within_ipv6_is_the_same_client_and_other_fields_are_skipped() -> None:
    for client in ("192.0.2.7", "::ffff:192.0.2.7"):
        assert outcome(proxied(client, OTHERS)) == (0, b"", "192.0.2.7")
    largest = proxied("2001:db8::7", bytes(MAX_HEADER_BYTES - 52))
    assert len(largest) == MAX_HEADER_BYTES
    assert outcome(largest) == (0, b"", "2001:db8::7")


def test_a_stream_that_ends_within_the_header_is_malformed() -> None:
    for data in (b"", SIGNATURE, proxied("192.0.2.7")[:-1]):
        found, _ = read(data)
        assert (found.received, found.needed > 0) == (len(data), True)
        with pytest.raises(ProxyHeaderError, match=f"ends after {len(data)} bytes") as caught:
            found.feed(b"")
        assert caught.value.fault is ProxyFault.MALFORMED


def test_only_balancers_of_the_networks_are_trusted() -> None:
    balancers = TrustedBalancers(["10.0.0.0/8", "192.0.2.7", "fd00::/8"])
    for peer in ("10.255.0.1", "::ffff:10.0.0.1", "192.0.2.7", "fd12::1", "fd12::1%eth0"):
        assert balancers.contain(peer)
    for peer in ("11.0.0.1", "192.0.2.8", "::ffff:11.0.0.1", "::a00:1", "fe80::1%eth0", ""):
        assert not balancers.contain(peer)
