"""Encoders of record values, one for each target topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import isotherm.schemas
from isotherm.coap_ingest.ingest import json_values
from isotherm.coap_ingest.ingest.routes import Encode, Target, Values
from isotherm.servicekit.avro import SchemaRegistry


def make_encoders(registry: SchemaRegistry, topics: Iterable[Target]) -> dict[str, Encode]:
    """Return an encoder for each topic, by topic name.

    Raises RegistryUnavailableError, SchemaNotRegisteredError.
    """
    return {topic.name: _encoder(registry, topic) for topic in {topic.name: topic for topic in topics}.values()}


def schema_of(topic: Target) -> dict[str, Any]:
    """Return the Avro schema of the topic's record."""
    return isotherm.schemas.schema(topic.record, topic.version)


def _encoder(registry: SchemaRegistry, topic: Target) -> Encode:
    if topic.values is Values.AVRO:
        return registry.encoder(topic.name, schema_of(topic))
    return json_values.encoder(schema_of(topic), with_schema=topic.values is Values.JSON_WITH_SCHEMA)
