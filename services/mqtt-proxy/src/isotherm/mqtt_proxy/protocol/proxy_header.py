"""PROXY protocol version 2 without IO: the header in which a balancer names the client of a connection.

Specification: doc/proxy-protocol.txt of HAProxy, section 2.2.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address

MAX_HEADER_BYTES = 4_096
"""Largest header with its TLVs. The specification wants a header to fit into one segment."""

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_VERSION_1 = b"PROXY"
_FIXED_BYTES = 16
_LOCAL, _PROXY = 0x20, 0x21
"""Version 2 in the upper four bits, the command in the lower ones."""
_FAMILIES, _TRANSPORTS = range(4), range(3)
"""Assigned numbers: unspecified, IPv4, IPv6 and UNIX; unspecified, stream and datagram."""
_TCP_OVER_IPV4, _TCP_OVER_IPV6 = 0x11, 0x21
_ADDRESS_BYTES = {_TCP_OVER_IPV4: 12, _TCP_OVER_IPV6: 36}
"""Both addresses and both ports."""


class ProxyFault(StrEnum):
    """Why a connection that must begin with a header is refused, as `connection_attempts_total` calls it."""

    UNTRUSTED = "untrusted balancer"
    MISSING = "no PROXY header"
    VERSION_1 = "PROXY version 1"
    MALFORMED = "malformed PROXY header"
    TOO_LONG = "PROXY header too long"
    LATE = "PROXY header timeout"


class ProxyHeaderError(Exception):
    """The received bytes are not the begin of a header that can be used."""

    def __init__(self, fault: ProxyFault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


class ProxyHeader:
    """One header, read from pieces of bytes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._size = _FIXED_BYTES

    @property
    def received(self) -> int:
        """How many bytes came."""
        return len(self._data)

    @property
    def needed(self) -> int:
        """How many bytes the header still has at least, so that who reads no more takes nothing behind it; 0: none."""
        return self._size - len(self._data)

    @property
    def client(self) -> str | None:
        """The client's address by a complete header; None where the address of the socket itself holds.

        That is so for the command LOCAL (the balancer's own connection, a health check), and for what is neither TCP
        over IPv4 nor over IPv6. IPv4 within IPv6 is returned as IPv4, so that a client has one address.
        """
        data = self._data
        if data[12] == _LOCAL or data[13] not in _ADDRESS_BYTES:
            return None
        if data[13] == _TCP_OVER_IPV4:
            return str(IPv4Address(bytes(data[16:20])))
        address = IPv6Address(bytes(data[16:32]))
        return str(address.ipv4_mapped or address)

    def feed(self, data: bytes) -> None:
        """Add at most `needed` bytes; none at all means that the stream has ended.

        Raises ProxyHeaderError as soon as the bytes show that they are no header.
        """
        if not data:
            raise ProxyHeaderError(ProxyFault.MALFORMED, f"it ends after {self.received} bytes")
        self._data += data
        start = bytes(self._data[: len(_SIGNATURE)])
        if start.startswith(_VERSION_1):
            raise ProxyHeaderError(ProxyFault.VERSION_1, "the header is of version 1; version 2 is expected")
        if not (_SIGNATURE.startswith(start) or _VERSION_1.startswith(start)):
            raise ProxyHeaderError(ProxyFault.MISSING, f"the connection begins with {start.hex()}")
        self._check_fields()

    def _check_fields(self) -> None:
        """Check the fields behind the signature as far as they came, and learn the size of the header.

        The length is used for every command and family (section 2.2), and what stands behind the addresses is skipped.
        """
        data = self._data
        if len(data) > 12 and data[12] not in (_LOCAL, _PROXY):
            raise ProxyHeaderError(ProxyFault.MALFORMED, f"version and command are {data[12]:#04x}")
        if len(data) > 13 and data[12] == _PROXY:
            family, transport = divmod(data[13], 16)
            if family not in _FAMILIES or transport not in _TRANSPORTS:
                raise ProxyHeaderError(ProxyFault.MALFORMED, f"family and transport are {data[13]:#04x}")
        if len(data) < _FIXED_BYTES:
            return
        length = int.from_bytes(data[14:16], "big")
        self._size = _FIXED_BYTES + length
        if self._size > MAX_HEADER_BYTES:
            raise ProxyHeaderError(ProxyFault.TOO_LONG, f"it has {self._size} bytes")
        if data[12] == _PROXY and length < _ADDRESS_BYTES.get(data[13], 0):
            raise ProxyHeaderError(ProxyFault.MALFORMED, f"{length} bytes hold no addresses of {data[13]:#04x}")
