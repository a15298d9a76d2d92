"""An error code in Kafka's answer to a request."""

from __future__ import annotations

from confluent_kafka import KafkaError


class RefusedError(Exception):
    """Kafka answered a request, or one partition of it, with an error."""

    def __init__(self, code: int) -> None:
        """Take one of the codes of `confluent_kafka.KafkaError`."""
        super().__init__(KafkaError(code).name())
        self.code = code
