"""Limits the rate of requests of each client. No IO."""

from __future__ import annotations

from collections import OrderedDict

from isotherm.servicekit.throttling.rates import Rate, TokenBucket

_DEBT = 4
"""How many full buckets a client may owe for the blocks of a transfer, so that the rate breaks no payload of ordinary
size: 256 KiB are 256 blocks, and the default rate is 100 requests."""


class RateLimiter:
    """A token bucket for each client.

    Beyond `max_clients` it forgets the clients that were silent for longest; a forgotten client starts with a full
    bucket again. All times are seconds of one monotonic clock.
    """

    def __init__(self, rate: Rate, max_clients: int = 10_000) -> None:
        self._rate = rate
        self._max_clients = max_clients
        # With a longer wait for the next token, one more request would owe more.
        self._most_wait_s = _DEBT * rate.amount / (rate.amount / rate.seconds)
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, client: str, now_s: float, *, continues: bool = False) -> float:
        """Count one request of `client` and return 0 when the rate allows it, else the seconds until it does.

        One that `continues` a transfer is allowed beyond the rate, and the next requests wait until that is made up
        for; beyond four full buckets of it, it has to wait itself.
        """
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = TokenBucket(self._rate, now_s)
        self._buckets.move_to_end(client)
        if len(self._buckets) > self._max_clients:
            self._buckets.popitem(last=False)
        wait_s = bucket.wait_s(now_s)
        if wait_s == 0 or (continues and wait_s <= self._most_wait_s):
            bucket.take(1)
            return 0.0
        return wait_s
