"""The topic of the clock: its ticks advance the watermark of the windowed query, which reads it beside the input."""

from __future__ import annotations

from isotherm.aggregator.kafka.output_producer import OutputProducer

_KEY = b"tick"


class Clock:
    """Writes ticks. For one thread."""

    def __init__(self, topic: str, producer: OutputProducer) -> None:
        self._topic = topic
        self._producer = producer

    def tick(self, event_time_ms: int) -> None:
        """Write a tick, and return when Kafka has stored it. Raises BrokerError, and OutputRefusedError."""
        self._producer.send([(self._topic, _KEY, str(event_time_ms).encode("ascii"))])
