"""The ids of topics (KIP-516): a topic that is deleted and made anew has another one, and its offsets begin anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from isotherm.persisters.sinks.sink import Unavailable

_TIMEOUT_S = 10.0


class TopicIds:
    """Asks Kafka each time; for several threads."""

    def __init__(self, admin: Callable[[], AdminClient]) -> None:
        """`admin` makes the client, with the first question."""
        self._make = admin
        self._admin: AdminClient | None = None
        self._lock = threading.Lock()

    def __call__(self, topic: str) -> str:
        """The id that the topic has now. Raises Unavailable when Kafka does not tell."""
        with self._lock:
            self._admin = self._admin or self._make()
            admin: Any = self._admin
        try:
            described = admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic].result()
        except KafkaException as error:
            raise Unavailable(f"Kafka: the id of topic {topic} is not known: {error.args[0].str()}") from error
        return str(described.topic_id)
