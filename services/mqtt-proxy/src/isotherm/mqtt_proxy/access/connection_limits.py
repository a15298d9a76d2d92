"""Limits on the number of connections and on the rates of their publishes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.settings import LimitSettings
from isotherm.servicekit.throttling.rates import Rate, TokenBucket, parse_optional_rate


class RateMeter:
    """Measures messages and payload bytes of one client, or of all, against their rates; at least one has a limit."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages: Rate | None, payload_bytes: Rate | None, now_s: float) -> None:
        self._messages = TokenBucket(messages, now_s) if messages else None
        self._bytes = TokenBucket(payload_bytes, now_s) if payload_bytes else None

    def count(self, payload_bytes: int) -> None:
        """Count a message."""
        if self._messages is not None:
            self._messages.take(1)
        if self._bytes is not None:
            self._bytes.take(payload_bytes)

    def wait_s(self, now_s: float) -> float:
        """Return 0 when the next message may come, else the time in seconds until it may."""
        return max(bucket.wait_s(now_s) for bucket in (self._messages, self._bytes) if bucket is not None)


def rate_meters(messages: str, payload_bytes: str, now_s: float) -> tuple[RateMeter, ...]:
    """Return a meter for the rates of two settings; none when neither sets a limit."""
    rates = parse_optional_rate(messages), parse_optional_rate(payload_bytes)
    return (RateMeter(*rates, now_s),) if any(rates) else ()


class ConnectionLimits:
    """Counts the sockets of a process, in total and by client address, and makes the meters of their publishes."""

    def __init__(self, limits: LimitSettings, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._by_address: Counter[str] = Counter()
        self._connections = 0
        self.authenticated = 0
        """How many open connections have a verified user name."""
        self._total = rate_meters(limits.messages_total, limits.bytes_total, clock())

    def enter(self, address: str | None) -> bool:
        """Count a new socket and return True, unless a bound is reached. `leave` ends it.

        Without an address the socket counts in total only, until `assign` tells whose it is.
        """
        if self._connections >= self._limits.connections:
            self._metrics.connection_attempts["too many connections"] += 1
            return False
        if address is not None and not self.assign(address):
            return False
        self._connections += 1
        return True

    def assign(self, address: str) -> bool:
        """Count a socket for its client's address and return True, unless the bound of the address is reached."""
        maximum = self._limits.connections_per_address
        if maximum is not None and self._by_address[address] >= maximum:
            self._metrics.connection_attempts["too many connections of an address"] += 1
            return False
        self._by_address[address] += 1
        return True

    def leave(self, address: str | None, *, authenticated: bool) -> None:
        """Remove a socket that `enter` counted, by the address that it was counted for."""
        self._connections -= 1
        self.authenticated -= authenticated
        if address is None:
            return
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def meters(self) -> tuple[RateMeter, ...]:
        """Return the meters of a new connection's publishes: its own, and those of all connections."""
        limits = self._limits
        return (*rate_meters(limits.messages_per_client, limits.bytes_per_client, self._clock()), *self._total)

    def count_refused_session(self, setting: str) -> None:
        """Count a CONNECT that is refused because of the bound on sessions that a setting gives."""
        self._metrics.sessions_refused[setting] += 1

    def count_pause(self, now_s: float) -> None:
        """Count a connection that is not read because of a rate."""
        of_all = any(meter.wait_s(now_s) for meter in self._total)
        self._metrics.rate_pauses["all connections" if of_all else "one connection"] += 1
