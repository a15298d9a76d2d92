"""How long a transaction waits for more writes: the longer, the more the wait brings (ADR 0099). No Kafka, no clock."""

from __future__ import annotations

from isotherm.mqtt_proxy.delivery.publish_patience import ENOUGH, PublishPatience

_LONGEST_FACTOR = 8
"""The wait grows to so many times the shortest one, at most to the longest wait of a publish."""


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

    def __init__(self, shortest_s: float, patience: PublishPatience) -> None:
        """`patience` is told of every publish, of QoS 0 and 1, too."""
        self._shortest_s = shortest_s
        self._longest_s = max(shortest_s, min(_LONGEST_FACTOR * shortest_s, patience.longest_s))
        self._wait_s = shortest_s
        self._first_s: float | None = None
        """When the oldest write that waits arrived."""
        self._last_s = 0.0
        self._started_s = float("-inf")
        self._patience = patience

    def add(self, now_s: float) -> None:
        """Note the arrival of a write."""
        self._last_s = now_s
        if self._first_s is None:
            self._first_s = now_s
            if now_s - self._started_s > self._longest_s:
                self._wait_s = self._shortest_s

    def is_enough(self, writes: int) -> bool:
        """Return whether a batch of so many writes waits no longer."""
        return writes >= ENOUGH

    def left_s(self, now_s: float) -> float:
        """Return how much longer the batch waits; 0 for not at all."""
        if self._first_s is None:
            return 0.0
        wait_s = self._longest_s if self._patience.is_stream else self._wait_s
        return max(0.0, self._first_s + wait_s - now_s)

    def end(self, now_s: float, *, left: bool, is_full: bool) -> None:
        """Note that a batch starts: `is_full` before the wait was over; `left`, when other writes wait further."""
        if self._first_s is not None and not is_full:
            is_gathering = self._last_s > self._first_s and self._last_s - self._first_s >= (now_s - self._first_s) / 2
            factor = 2 if is_gathering else 0.5
            self._wait_s = min(max(self._wait_s * factor, self._shortest_s), self._longest_s)
        self._started_s = now_s
        self._first_s = now_s if left else None
