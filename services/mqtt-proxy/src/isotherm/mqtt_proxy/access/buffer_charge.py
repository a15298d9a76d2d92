"""What one connection buffers of the bytes that all connections of a process may buffer."""

from __future__ import annotations

from typing import Protocol

from isotherm.mqtt_proxy.protocol.held_events import HeldEvents
from isotherm.mqtt_proxy.settings import LimitSettings

_FREE_BYTES = 2_048
"""Bytes that every connection may buffer, also beyond the bound on all connections, so that small packets pass."""


class BufferTotal(Protocol):
    """Where the bytes of all connections are counted (`server.server.Server`)."""

    buffered_bytes: int


class BufferCharge:
    """The part of one connection in `total`."""

    __slots__ = ("_limits", "_total", "charged")

    def __init__(self, total: BufferTotal, limits: LimitSettings) -> None:
        self._total, self._limits = total, limits
        self.charged = 0

    def update(self, size: int) -> bool:
        """Count `size` bytes of this connection; return whether it and all connections buffer too much."""
        self._total.buffered_bytes += size - self.charged
        self.charged = size
        return size > _FREE_BYTES and self._total.buffered_bytes > self._limits.buffered_bytes

    def is_full(self, held: HeldEvents) -> bool:
        """Return whether the connection may hold no further event."""
        limits = self._limits
        return (
            len(held) >= limits.receive_maximum
            or held.bytes >= limits.packet_bytes
            or self._total.buffered_bytes + held.bytes - self.charged >= limits.buffered_bytes
        )
