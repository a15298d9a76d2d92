"""What takes the answers of devices to commands out of their publishes, as translation sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord


class AnswerRoute(Protocol):
    """Comes before all other routes (`commands.answers`)."""

    def takes(self, topic: str) -> bool:
        """Return whether a publish to `topic` is an answer."""

    def may_take(self, levels: Sequence[str], any_level: int) -> bool:
        """Return whether a topic with these levels, and any text in the level `any_level`, may be that of an answer."""

    def record(self, publish: Publish, *, client_id: str, username: str | None) -> ProducerRecord | None:
        """Return the record of an answer; None for another publish. Raises InvalidPublishError."""
