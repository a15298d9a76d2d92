"""The message and byte rates of one MQTT client, or of all clients together."""

from __future__ import annotations

from isotherm.servicekit.rates import Rate, TokenBucket, parse_optional_rate


class Meter:
    """Messages and payload bytes of one client, or of all, against their rates; at least one of them is limited."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages: Rate | None, payload_bytes: Rate | None, now_s: float) -> None:
        self._messages = TokenBucket(messages, now_s) if messages else None
        self._bytes = TokenBucket(payload_bytes, now_s) if payload_bytes else None

    def took(self, payload_bytes: int) -> None:
        """A message came."""
        if self._messages is not None:
            self._messages.take(1)
        if self._bytes is not None:
            self._bytes.take(payload_bytes)

    def wait_s(self, now_s: float) -> float:
        """0 when the next message may come, else after how long it may."""
        return max(bucket.wait_s(now_s) for bucket in (self._messages, self._bytes) if bucket is not None)


def meter(messages: str, payload_bytes: str, now_s: float) -> tuple[Meter, ...]:
    """A meter for the rates of two settings; none when neither limits anything."""
    rates = parse_optional_rate(messages), parse_optional_rate(payload_bytes)
    return (Meter(*rates, now_s),) if any(rates) else ()
