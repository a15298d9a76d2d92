"""The Kafka topics that accept readings, each with its Avro encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from isotherm.mqtt_proxy.ingest.plain_route import Encode
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)

_REQUEST_TIMEOUT_S = 10.0
_VALUE = "-value"
_ASKED_AGAIN = 20
"""How many topics with another schema a refresh asks about again: thousands of them must cost the registry little."""


class MissingTopicError(LookupError):
    """A topic that the routes need does not exist."""


class TopicEncoders:
    """Encoders by topic.

    The methods block and run in a thread. The event loop reads `encoders`, which only grows.
    """

    def __init__(self, admin: AdminClient, registry: SchemaRegistry, schema: Mapping[str, Any]) -> None:
        self.encoders: dict[str, Encode] = {}
        self._admin = admin
        self._registry = registry
        self._schema = schema
        self._with_other_schema: dict[str, None] = {}
        """In the order in which the registry was asked."""

    def require(self, topics: Iterable[str], *, without_readings: Iterable[str], raw: Collection[str] = ()) -> None:
        """Make an encoder for each of `topics`, and check that those and the topics `without_readings` exist.

        The topics of `raw` routes must exist and have no schema. Raises MissingTopicError, SchemaNotRegisteredError,
        RegistryUnavailableError, KafkaException, or SettingsError for a raw route to a topic with a schema.
        """
        existing = self._existing_topics()
        topics = tuple(topics)
        missing = sorted({*topics, *without_readings} - existing)
        if missing:
            raise MissingTopicError(f"Kafka has no topic {', '.join(missing)}; run `isotherm apply` first")
        missing = sorted(set(raw) - existing)
        if missing:
            raise MissingTopicError(f"Kafka has no topic {', '.join(missing)}; create it for the raw routes first")
        subjects = self._registry.subjects() if raw else frozenset()
        with_schema = sorted(topic for topic in raw if f"{topic}{_VALUE}" in subjects)
        if with_schema:
            problem = f"routes: a raw route writes to {', '.join(with_schema)}, whose readers expect the topic's schema"
            raise SettingsError([problem])
        for topic in topics:
            if topic not in self.encoders:
                self.encoders[topic] = self._registry.encoder(topic, self._schema)

    def refresh(self) -> None:
        """Add every further topic whose subject in the registry holds our schema.

        A topic about which the registry does not answer is tried again with the next refresh. So are those whose
        subject had another schema, a few at a time: ours may be registered later. Raises KafkaException or
        RegistryUnavailableError.
        """
        subjects, existing = self._registry.subjects(), self._existing_topics()
        asked = {topic for topic in existing - self.encoders.keys() if f"{topic}{_VALUE}" in subjects}
        other = {topic: None for topic in self._with_other_schema if topic in asked}
        self._with_other_schema = other
        for topic in [*(asked - other.keys()), *islice(other, _ASKED_AGAIN)]:
            # A topic that was asked about comes behind those that wait for their turn.
            other.pop(topic, None)
            try:
                self.encoders[topic] = self._registry.encoder(topic, self._schema)
                _log.info("a topic accepts readings", topic=topic)
            except SchemaNotRegisteredError:
                other[topic] = None

    async def watch(self, interval_s: float) -> None:
        """Refresh every `interval_s` seconds in a thread, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval_s)
            try:
                await loop.run_in_executor(None, self.refresh)
            except (KafkaException, RegistryUnavailableError) as error:
                _log.warning("the topics cannot be refreshed", reason=str(error))

    def _existing_topics(self) -> set[str]:
        metadata = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S)
        return {name for name, topic in metadata.topics.items() if topic.error is None}
