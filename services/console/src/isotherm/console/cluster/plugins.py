"""Connector classes as their workers published them: finding one, and checking a configuration against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isotherm.connector.config import files as config_files
from isotherm.connector.config.definitions import (
    Definition,
    Importance,
    Key,
    Type,
)
from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.masking import masked_value
from isotherm.connector.config.validation import (
    Problem,
    Validated,
    examine,
    source_problems,
)

WORKER_GROUP = "worker.group"
SINK = "sink"
_PASSED_ON = ("consumer.override.", "producer.override.", "admin.override.")
TOPICS, TOPICS_REGEX = "topics", "topics.regex"
_TASKS_MAX = "tasks.max"
_COMMON = ("name", "connector.class", _TASKS_MAX, WORKER_GROUP, "key.converter", "value.converter")
_GROUP_KEY = Key(
    WORKER_GROUP,
    Type.STRING,
    "",
    "Worker group that runs it; may be left out where one group alone knows the class.",
    Importance.LOW,
)


@dataclass(frozen=True)
class Plugin:
    """One connector class."""

    definition: Definition
    version: str

    @property
    def klass(self) -> str:
        """The class's full name."""
        return self.definition.klass

    def is_secret(self, key: str) -> bool:
        """Whether the value of `key` must never be shown."""
        return self.definition.is_secret(key)


@dataclass(frozen=True)
class CheckedConfig:
    """What is to be said of a configuration."""

    plugin: Plugin
    validated: Validated
    problems: tuple[Problem, ...]

    @property
    def notices(self) -> tuple[Problem, ...]:
        """What is accepted but deserves a word."""
        return self.validated.notices


def plugin_of(record: Mapping[str, Any]) -> Plugin:
    """The class that a PluginDefinition record describes. Raises ValueError for an importance that nobody knows."""
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
        open_prefixes=_PASSED_ON,
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
    """The class called `klass`: in full, by another name of it, or by the last part of its name as Connect allows."""
    exact = (plugin for plugin in plugins if plugin.definition.answers_to(klass))
    return next(exact, None) or next((plugin for plugin in plugins if _is_called(plugin, klass)), None)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def check_config(plugin: Plugin, config: Mapping[str, str]) -> CheckedConfig:
    """Everything that can be said of a configuration without its worker, which has the last word when it starts."""
    named = ConnectorConfig(config.get(config_files.NAME, ""), _class_of(config, plugin), dict(config))
    validated, problems = examine(plugin.definition, named)
    name_problems = _name_problems(config, {problem.key for problem in problems})
    return CheckedConfig(plugin, validated, (*problems, *name_problems, *_topic_problems(validated)))


def _class_of(config: Mapping[str, str], plugin: Plugin) -> str:
    given = config.get(config_files.CLASS) or config.get(config_files.CLASS_ALIASES[0]) or plugin.klass
    # Connect takes the last part of a class's name for it.
    return plugin.klass if _is_called(plugin, given) else given


def _is_called(plugin: Plugin, klass: str) -> bool:
    short = {_last_part(name) for name in (plugin.klass, *plugin.definition.aliases)}
    return plugin.definition.answers_to(klass) or klass in short or f"{klass}Connector" in short


def _name_problems(config: Mapping[str, str], known: set[str]) -> list[Problem]:
    name = config.get(config_files.NAME)
    if not name or config_files.NAME in known:
        return []
    try:
        config_files.from_mapping({config_files.NAME: name, config_files.CLASS: "any"}, origin="")
    except ConfigError as error:
        return [Problem(config_files.NAME, problem.removeprefix(": name: ")) for problem in error.problems]
    return []


def _topic_problems(config: Validated) -> list[Problem]:
    if config.definition.kind != SINK or not all(config.is_resolved(key) for key in (TOPICS, TOPICS_REGEX)):
        return []
    topics = config.items(TOPICS)
    if bool(topics) == bool(config.text(TOPICS_REGEX)):
        return [Problem(TOPICS, "exactly one of topics and topics.regex must be given")]
    return source_problems(config.statements, topics) if topics and config.statements else []


def key_infos(plugin: Plugin) -> list[dict[str, Any]]:
    """The class's keys in Connect's form (`ConfigKeyInfo`)."""
    return [_key_info(key, number) for number, key in enumerate(plugin.definition.keys, start=1)]


def _key_info(key: Key, order: int) -> dict[str, Any]:
    is_required = key.required and key.default is None
    return {
        "name": key.name,
        "type": Type.PASSWORD.value if key.is_secret else key.type.value,
        "required": is_required,
        "default_value": key.default,
        "importance": key.importance.value,
        "documentation": key.doc,
        "group": _group(key.name),
        "order_in_group": order,
        "width": "MEDIUM",
        "display_name": key.name,
        "dependents": [],
    }


def _group(name: str) -> str:
    if name in _COMMON:
        return "Common"
    return "Error Handling" if name.startswith("errors.") else "Connector"


def config_infos(checked: CheckedConfig, given: Mapping[str, str]) -> dict[str, Any]:
    """The outcome of a check in Connect's form (`ConfigInfos`), secrets masked."""
    keys = checked.plugin.definition.keys
    by_key: dict[str, list[str]] = {}
    for problem in checked.problems:
        by_key.setdefault(_canonical(checked.plugin, problem.key), []).append(problem.message)
    configs = [
        {"definition": definition, "value": _value(checked, given, key, by_key.pop(key.name, []))}
        for key, definition in zip(keys, key_infos(checked.plugin), strict=True)
    ]
    configs += [
        {
            "definition": _key_info(Key(name, Type.STRING, None, ""), 0),
            "value": _value_info(name, given.get(name), errors),
        }
        for name, errors in by_key.items()
    ]
    configs += _older_names(checked.plugin, given)
    return {
        "name": checked.plugin.klass,
        "error_count": sum(len(one["value"]["errors"]) for one in configs),
        "groups": sorted({one["definition"]["group"] for one in configs}),
        "configs": configs,
    }


def _older_names(plugin: Plugin, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """Other names of keys that are given, so that whoever asks sees that they are known."""
    named = [(name, _canonical(plugin, name)) for name in given]
    return [
        {
            "definition": _key_info(replace(plugin.definition.key(key), name=name, doc=f"Another name of {key}."), 0)
            | {"required": False, "default_value": None},
            "value": _value_info(name, masked_value(name, given[name], plugin.is_secret), []),
        }
        for name, key in named
        if name != key
    ]


def _canonical(plugin: Plugin, name: str) -> str:
    try:
        return plugin.definition.key(name).name
    except KeyError:
        return name


def _value(checked: CheckedConfig, given: Mapping[str, str], key: Key, errors: list[str]) -> dict[str, Any]:
    found = next((given[name] for name in (key.name, *key.aliases) if name in given), key.default)
    value = None if found is None else masked_value(key.name, found, lambda _: key.is_secret)
    return _value_info(key.name, value, errors, key.allowed)


def _value_info(name: str, value: str | None, errors: list[str], allowed: Iterable[str] = ()) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "recommended_values": list(allowed),
        "errors": errors,
        "visible": True,
    }
