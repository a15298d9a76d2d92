"""Kafka Connect's JSON of connector classes: `ConfigKeyInfo` and `ConfigInfos` (its package `rest.entities`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from isotherm.connector.config.definitions import Key, Type
from isotherm.connector.config.masking import masked_value
from isotherm.console.cluster.plugins import WORKER_GROUP, Plugin
from isotherm.console.connectors.validation import CheckedConfig

_COMMON_KEYS = ("name", "connector.class", "tasks.max", WORKER_GROUP, "key.converter", "value.converter")


def key_infos(plugin: Plugin) -> list[dict[str, Any]]:
    """Return the keys of a class as a list of `ConfigKeyInfo`."""
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
    if name in _COMMON_KEYS:
        return "Common"
    return "Error Handling" if name.startswith("errors.") else "Connector"


def config_infos(checked: CheckedConfig, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of a validation as `ConfigInfos`, with secrets masked."""
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
    configs += _given_aliases(checked.plugin, given)
    return {
        "name": checked.plugin.klass,
        "error_count": sum(len(one["value"]["errors"]) for one in configs),
        "groups": sorted({one["definition"]["group"] for one in configs}),
        "configs": configs,
    }


def _given_aliases(plugin: Plugin, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the aliases among the given keys, so that the caller sees that they are known."""
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
