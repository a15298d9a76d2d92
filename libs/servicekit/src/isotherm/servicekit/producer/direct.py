"""Another way into a producer's librdkafka than confluent-kafka's binding (ADR 230)."""

from __future__ import annotations

from typing import Protocol


class DirectProducer(Protocol):
    """Produces records with a producer's librdkafka without confluent-kafka's binding, and knows their reports."""

    def drain(self) -> int:
        """Call back about the records that were reported since the last call; return how many they were."""
