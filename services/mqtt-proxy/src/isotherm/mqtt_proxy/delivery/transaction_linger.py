"""How long a transaction waits for more writes: the longer, the more the wait brings (ADR 0099). No Kafka, no clock."""

from __future__ import annotations

import math

_LONGEST_S = 0.04
_LONGEST_FACTOR = 8
"""The wait grows to so many times the shortest one, at most to _LONGEST_S."""
_ENOUGH_PACKETS = 250
"""So many packets do not wait for more: what each of them still costs hardly shrinks."""
_RATE_OVER_S = 1.0
"""The rates of publishes are those of about the last so many seconds."""
_FEWEST_GATHERED = 0.5
"""So many publishes must come during the longest wait, on average, for a stream to be gathered."""


class TransactionLinger:
    """The wait before a batch of writes becomes a transaction. Times are seconds of one monotonic clock.

    A transaction costs the same requests whatever it holds, so a wait that gathers more writes makes each of them
    cheaper. It costs little where devices publish now and then: one whose last publish was answered longer ago than the
    longest wait does not wait for that answer. While most publishes come from such devices, and often enough, every
    batch waits for the longest time.

    Otherwise the next batch waits twice as long when the last write of a batch arrived in the second half of the time
    in which the batch was gathered, else half as long, and after a pause of all clients the shortest time. So a single
    client, or clients that all wait for their answers, are answered after the shortest wait, and a stream of many
    clients is gathered. A batch that had to wait for the transaction before it waits only for what is left.
    """

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = max(shortest_s, min(_LONGEST_FACTOR * shortest_s, _LONGEST_S))
        self._wait_s = shortest_s
        self._first_s: float | None = None
        """When the oldest write that waits arrived."""
        self._last_s = 0.0
        self._started_s = float("-inf")
        self._patient_per_s = self._eager_per_s = 0.0
        self._rates_at_s = 0.0

    def note_publish(self, now_s: float, since_answer_s: float, publishes: int = 1) -> None:
        """Note that a client publishes so many seconds after the answer to its last write, infinite for the first one.

        A read may bring several `publishes` together. They are a write besides, for `add`.
        """
        fading = math.exp((self._rates_at_s - now_s) / _RATE_OVER_S)
        self._rates_at_s = now_s
        self._patient_per_s *= fading
        self._eager_per_s *= fading
        if since_answer_s > self._longest_s:
            self._patient_per_s += publishes / _RATE_OVER_S
        else:
            self._eager_per_s += publishes / _RATE_OVER_S

    def add(self, now_s: float) -> None:
        """Note the arrival of a write."""
        self._last_s = now_s
        if self._first_s is None:
            self._first_s = now_s
            if now_s - self._started_s > self._longest_s:
                self._wait_s = self._shortest_s

    def is_enough(self, packets: int) -> bool:
        """Return whether a batch for so many packets waits no longer."""
        return packets >= _ENOUGH_PACKETS

    def left_s(self, now_s: float) -> float:
        """Return how much longer the batch waits; 0 for not at all."""
        if self._first_s is None:
            return 0.0
        gathered = self._patient_per_s * self._longest_s
        is_stream = gathered >= _FEWEST_GATHERED and self._patient_per_s >= self._eager_per_s
        return max(0.0, self._first_s + (self._longest_s if is_stream else self._wait_s) - now_s)

    def end(self, now_s: float, *, left: bool, is_full: bool) -> None:
        """Note that a batch starts: `is_full` before the wait was over; `left`, when other writes wait further."""
        if self._first_s is not None and not is_full:
            is_gathering = self._last_s > self._first_s and self._last_s - self._first_s >= (now_s - self._first_s) / 2
            factor = 2 if is_gathering else 0.5
            self._wait_s = min(max(self._wait_s * factor, self._shortest_s), self._longest_s)
        self._started_s = now_s
        self._first_s = now_s if left else None
