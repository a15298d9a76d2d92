"""The ids of topics (KIP-516). A topic that is deleted and created again has another id, and its offsets start at 0."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from isotherm.persisters.api.sink import Unavailable

_TIMEOUT_S = 10.0


class TopicIds:
    """Asks Kafka for the id of a topic at every call; safe for several threads."""

    def __init__(self, admin: Callable[[], AdminClient]) -> None:
        """`admin` makes the client; it is called with the first query."""
        self._make = admin
        self._admin: AdminClient | None = None
        self._lock = threading.Lock()

    def __call__(self, topic: str) -> str:
        """Return the topic's current id. Raises Unavailable if Kafka does not answer."""
        with self._lock:
            self._admin = self._admin or self._make()
            admin: Any = self._admin
        try:
            described = admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic].result()
        except KafkaException as error:
            raise Unavailable(f"Kafka: the id of topic {topic} is not known: {error.args[0].str()}") from error
        return str(described.topic_id)
