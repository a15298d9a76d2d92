"""Limits the rate of requests of each client. No IO."""

from __future__ import annotations

from collections import OrderedDict

from isotherm.servicekit.throttling.rates import Rate, TokenBucket


class RateLimiter:
    """A token bucket for each client.

    Beyond `max_clients` it forgets the clients that were silent for longest; a forgotten client starts with a full
    bucket again. All times are seconds of one monotonic clock.
    """

    def __init__(self, rate: Rate, max_clients: int = 10_000) -> None:
        self._rate = rate
        self._max_clients = max_clients
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, client: str, now_s: float) -> float:
        """Count one request of `client` and return 0 when the rate allows it, else the seconds until it does."""
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = TokenBucket(self._rate, now_s)
        self._buckets.move_to_end(client)
        if len(self._buckets) > self._max_clients:
            self._buckets.popitem(last=False)
        wait_s = bucket.wait_s(now_s)
        if wait_s == 0:
            bucket.take(1)
        return wait_s
