"""Bounds on how many connections there are, and how fast they may be."""

from __future__ import annotations

import time
from collections import Counter

from isotherm.mqtt_proxy.access.rates import Meter, meter
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.settings import LimitSettings


class Admission:
    """Counts sockets, in total and by client address, and hands out what their publishes are measured by."""

    def __init__(self, limits: LimitSettings, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._by_address: Counter[str] = Counter()
        self._connections = 0
        self.authenticated = 0
        self._total = meter(limits.messages_total, limits.bytes_total, time.monotonic())

    def enter(self, address: str) -> bool:
        """Take a new socket in, unless a bound is reached; `leave` gives its place back."""
        limits = self._limits
        most = limits.connections_per_address
        if self._connections >= limits.connections:
            self._metrics.connection_attempts["too many connections"] += 1
            return False
        if most is not None and self._by_address[address] >= most:
            self._metrics.connection_attempts["too many connections of an address"] += 1
            return False
        self._connections += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str, *, authenticated: bool) -> None:
        """A socket that had entered is gone."""
        self._connections -= 1
        self.authenticated -= authenticated
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def meters(self) -> tuple[Meter, ...]:
        """For the publishes of a new connection: its own rates, and those of all."""
        limits = self._limits
        return (*meter(limits.messages_per_client, limits.bytes_per_client, time.monotonic()), *self._total)

    def paused(self, now_s: float) -> None:
        """A connection is not read because of a rate."""
        of_all = any(meter.wait_s(now_s) for meter in self._total)
        self._metrics.rate_pauses["all connections" if of_all else "one connection"] += 1
