"""What a worker says of itself on the control topics: the connector that it runs, and the classes that it knows."""

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
    """The ConnectorConfig record of a connector whose file owns its configuration; `target` is what is wanted of it.

    References to secrets stay references; a secret that is written out in the file, a URL's password too, is masked.
    `is_secret` says which keys hold secrets.
    """
    wanted = target or Target()
    return {
        "name": config.name,
        "connector_class": config.klass,
        "config": {key: masked_value(key, value, is_secret) for key, value in config.config.items()},
        "target_state": wanted.state.value,
        "restart_count": wanted.restarts,
        "task_restarts": dict(wanted.task_restarts),
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
    """Topic, key and value of what is to be published when the connector starts.

    `known` is the connector's record on the topic: what is wanted of the connector is kept, and nothing is said of it
    when all else is the same too, so that no start takes back what is asked for meanwhile.

    Raises SchemaNotRegisteredError before `isotherm apply` was run, RegistryUnavailableError.
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
    """Topic, key and value of what is to be published of connector classes. Raises as `announcements`."""
    encode = registry.encoder(PLUGINS, PLUGIN_SCHEMA)
    return [(PLUGINS, one.klass, encode(plugin_record(one, version))) for one in definitions]
