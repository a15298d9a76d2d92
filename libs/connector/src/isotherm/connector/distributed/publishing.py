"""Records that workers publish on the control topics: their connectors and their connector classes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import isotherm.schemas
from isotherm.connector.config.definitions import Definition
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.masking import IsSecret, masked_value
from isotherm.connector.state import connector_topic
from isotherm.connector.state.target_follower import READER, Target, target_of
from isotherm.servicekit import secrets
from isotherm.servicekit.avro import SchemaRegistry

CONNECTORS = connector_topic.TOPIC
PLUGINS = "isotherm.plugins"

PLUGIN_SCHEMA = isotherm.schemas.schema("PluginDefinition", 2)


def connector_record(
    config: ConnectorConfig,
    *,
    worker_group: str,
    now_ms: int,
    target: Target | None = None,
    is_secret: IsSecret = secrets.is_secret,
) -> dict[str, Any]:
    """The ConnectorConfig record of a connector with a file, which owns its configuration.

    `target` is its target state (STARTED by default). References to secrets stay references; secrets that the file
    writes out, also passwords in URLs, are masked. `is_secret` says which keys hold secrets.
    """
    target = target or Target()
    return {
        "name": config.name,
        "connector_class": config.klass,
        "config": {key: masked_value(key, value, is_secret) for key, value in config.config.items()},
        "target_state": target.state.value,
        "restart_count": target.restarts,
        "task_restarts": dict(target.task_restarts),
        "mode": "standalone",
        "worker_group": worker_group,
        "updated_at": now_ms,
    }


def plugin_record(definition: Definition, version: str) -> dict[str, Any]:
    """The PluginDefinition record of a connector class."""
    return {
        "connector_class": definition.klass,
        "type": definition.kind,
        "version": version,
        "aliases": list(definition.aliases),
        "keys": [
            {
                "name": key.name,
                "type": key.type.value,
                "default": key.default,
                "required": key.required,
                "importance": key.importance.value,
                "documentation": key.doc,
                "aliases": list(key.aliases),
                "allowed": list(key.allowed),
                "minimum": key.minimum,
                "maximum": key.maximum,
            }
            for key in definition.keys
        ],
        "kcql_clauses": sorted(definition.kcql_clauses),
    }


def announcements(
    registry: SchemaRegistry,
    config: ConnectorConfig,
    definition: Definition,
    *,
    version: str,
    worker_group: str = "",
    known: Mapping[str, Any] | None = None,
) -> list[tuple[str, str, bytes]]:
    """Topic, key and value of the records to publish when the connector starts.

    `known` is the connector's current record. Its target state is kept. When nothing else differs either, no connector
    record is published, so that a start does not undo a change that is made at the same time.

    Raises SchemaNotRegisteredError when `isotherm apply` has not been run, RegistryUnavailableError.
    """
    target = None if known is None else target_of(known)
    connector = connector_record(
        config,
        worker_group=worker_group,
        now_ms=int(time.time() * 1000),
        target=target,
        is_secret=definition.is_secret,
    )
    messages = plugin_messages(registry, [definition], version)
    if known is None or {**known, "updated_at": None} != {**connector, "updated_at": None}:
        encode = registry.encoder(CONNECTORS, READER)
        messages.insert(0, (CONNECTORS, config.name, encode(connector)))
    return messages


def plugin_messages(
    registry: SchemaRegistry, definitions: Iterable[Definition], version: str
) -> list[tuple[str, str, bytes]]:
    """Topic, key and value of the records of connector classes. Raises as `announcements`."""
    encode = registry.encoder(PLUGINS, PLUGIN_SCHEMA)
    return [(PLUGINS, one.klass, encode(plugin_record(one, version))) for one in definitions]
