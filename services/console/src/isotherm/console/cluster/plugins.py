"""Connector classes (Connect's plugins), as their workers publish them on `isotherm.plugins`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isotherm.connector.config.definitions import Definition, Importance, Key, Type

WORKER_GROUP = "worker.group"
SINK = "sink"
_CLIENT_OVERRIDES = ("consumer.override.", "producer.override.", "admin.override.")
_GROUP_KEY = Key(
    WORKER_GROUP,
    Type.STRING,
    "",
    "Worker group that runs the connector. It may be left out when only one group can run the class.",
    Importance.LOW,
)


@dataclass(frozen=True)
class Plugin:
    """One connector class."""

    definition: Definition
    version: str

    @property
    def klass(self) -> str:
        """The full name of the class."""
        return self.definition.klass

    def is_secret(self, key: str) -> bool:
        """Whether the value of `key` is a secret."""
        return self.definition.is_secret(key)


def plugin_of(record: Mapping[str, Any]) -> Plugin:
    """Read a decoded PluginDefinition record. Raises ValueError for an unknown importance."""
    keys = tuple(_key(one) for one in record["keys"])
    if not any(key.name == WORKER_GROUP for key in keys):
        keys = (*keys, _GROUP_KEY)
    definition = Definition(
        klass=record["connector_class"],
        kind=record["type"],
        keys=keys,
        aliases=tuple(record["aliases"]),
        kcql_key=next((key.name for key in keys if key.name.endswith("kcql")), None),
        kcql_clauses=frozenset(record["kcql_clauses"]),
        open_prefixes=_CLIENT_OVERRIDES,
    )
    return Plugin(definition, record["version"])


def _key(record: Mapping[str, Any]) -> Key:
    return Key(
        name=record["name"],
        type=Type(record["type"]) if record["type"] in Type.__members__ else Type.STRING,
        default=record["default"],
        doc=record["documentation"],
        importance=Importance(record["importance"]),
        aliases=tuple(record["aliases"]),
        allowed=tuple(record["allowed"]),
        required=record["required"],
        minimum=record["minimum"],
        maximum=record["maximum"],
    )


def find_plugin(plugins: Sequence[Plugin], klass: str) -> Plugin | None:
    """Find a class by its full name, an alias, or the last part of its name, as Connect allows."""
    exact = (plugin for plugin in plugins if plugin.definition.answers_to(klass))
    return next(exact, None) or next((plugin for plugin in plugins if is_called(plugin, klass)), None)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def is_called(plugin: Plugin, klass: str) -> bool:
    """Whether `klass` names the plugin: in full, by an alias, or by the last part of a name."""
    short = {_last_part(name) for name in (plugin.klass, *plugin.definition.aliases)}
    return plugin.definition.answers_to(klass) or klass in short or f"{klass}Connector" in short
