"""The topic of the clock: its ticks advance the watermark of the windowed query, which reads it beside the input."""

from __future__ import annotations

from isotherm.aggregator.kafka.writer_lease import Tenure

_KEY = b"tick"


class Clock:
    """Writes ticks, as the holder of the lease: Kafka takes no tick of a former one."""

    def __init__(self, topic: str, tenure: Tenure) -> None:
        self._topic = topic
        self._tenure = tenure

    def tick(self, event_time_ms: int) -> None:
        """Write a tick, and return when Kafka has stored it. Raises BrokerError and LeaseLostError."""
        self._tenure.send(self._topic, _KEY, str(event_time_ms).encode("ascii"))
