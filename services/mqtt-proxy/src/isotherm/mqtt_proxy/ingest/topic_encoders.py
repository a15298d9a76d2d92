"""Which Kafka topics take readings, with their encoders: known at the start, or found while a route names its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from isotherm.mqtt_proxy.ingest.translation import Encode
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry

_log = logs.logger(__name__)

_REQUEST_TIMEOUT_S = 10.0
_VALUE = "-value"


class MissingTopicError(LookupError):
    """A topic that the routes need does not exist."""


class Catalogue:
    """Encoders by topic. The methods block; `encoders` is read by the event loop and only ever grows."""

    def __init__(self, admin: AdminClient, registry: SchemaRegistry, schema: Mapping[str, Any]) -> None:
        self.encoders: dict[str, Encode] = {}
        self._admin = admin
        self._registry = registry
        self._schema = schema
        self._judged: set[str] = set()

    def require(self, topics: Iterable[str], *, without_readings: Iterable[str]) -> None:
        """Make sure that all topics exist and have an encoder; those `without_readings` only have to exist.

        Raises MissingTopicError, SchemaNotRegisteredError, RegistryUnavailableError or KafkaException.
        """
        existing = self._existing()
        topics = tuple(topics)
        missing = sorted({*topics, *without_readings} - existing)
        if missing:
            raise MissingTopicError(f"Kafka has no topic {', '.join(missing)}; run `isotherm apply` first")
        for topic in topics:
            if topic not in self.encoders:
                self.encoders[topic] = self._registry.encoder(topic, self._schema)

    def refresh(self) -> None:
        """Find more topics that take readings: they exist and their subject holds our schema.

        What cannot be asked now stays for the next time. Raises KafkaException or RegistryUnavailableError.
        """
        try:
            subjects = set(self._registry.client.get_subjects())
        except (SchemaRegistryError, OSError) as error:
            raise RegistryUnavailableError(str(error)) from error
        for topic in self._existing():
            if topic in self.encoders or topic in self._judged or f"{topic}{_VALUE}" not in subjects:
                continue
            try:
                self.encoders[topic] = self._registry.encoder(topic, self._schema)
                _log.info("topic takes readings", topic=topic)
            except SchemaNotRegisteredError:
                self._judged.add(topic)

    async def watch(self, interval_s: float) -> None:
        """Refresh again and again, in a thread."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval_s)
            try:
                await loop.run_in_executor(None, self.refresh)
            except (KafkaException, RegistryUnavailableError) as error:
                _log.warning("topics cannot be refreshed", reason=str(error))

    def _existing(self) -> set[str]:
        metadata = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S)
        return {name for name, topic in metadata.topics.items() if topic.error is None}
