"""How much one device may send: the limits of the listener, without IO."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

_RATE = re.compile(r"([1-9][0-9]{0,8}):([1-9][0-9]{0,5})")


class Rate(NamedTuple):
    """So many requests in so many seconds."""

    requests: int
    seconds: int


def parse_rate(text: str) -> Rate:
    """The rate that `n:seconds` says. Raises ValueError naming the form."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rate; expected n:seconds, such as 100:1")
    return Rate(int(match[1]), int(match[2]))


@dataclass(slots=True)
class Admission:
    """A token bucket for each client; the clients that were silent for longest are forgotten beyond `max_clients`.

    A forgotten one begins with a full bucket again. Times are of one monotonic clock, in seconds.
    """

    rate: Rate
    max_clients: int = 10_000
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def wait_s(self, client: str, now_s: float) -> float:
        """0 when the client may send now, which counts as sent; else after how long it may."""
        per_second = self.rate.requests / self.rate.seconds
        tokens, at_s = self._buckets.get(client, (float(self.rate.requests), now_s))
        tokens = min(self.rate.requests, tokens + (now_s - at_s) * per_second)
        wait_s = 0.0 if tokens >= 1 else (1 - tokens) / per_second
        self._buckets[client] = (tokens - 1 if wait_s == 0 else tokens, now_s)
        self._buckets.move_to_end(client)
        if len(self._buckets) > self.max_clients:
            self._buckets.popitem(last=False)
        return wait_s
