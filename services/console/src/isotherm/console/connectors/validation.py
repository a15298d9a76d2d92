"""Validation of a connector's configuration against its class, without asking a worker. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isotherm.connector.config import files as config_files
from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.validation import Problem, Validated, examine, source_problems
from isotherm.console.cluster.plugins import SINK, Plugin, is_called

TOPICS, TOPICS_REGEX = "topics", "topics.regex"


@dataclass(frozen=True)
class CheckedConfig:
    """The result of validating a configuration."""

    plugin: Plugin
    validated: Validated
    problems: tuple[Problem, ...]

    @property
    def notices(self) -> tuple[Problem, ...]:
        """Hints about accepted keys, for example unknown ones."""
        return self.validated.notices


def check_config(plugin: Plugin, config: Mapping[str, str]) -> CheckedConfig:
    """Validate a configuration against its class. The worker validates it again when it starts a task."""
    named = ConnectorConfig(config.get(config_files.NAME, ""), _class_of(config, plugin), dict(config))
    validated, problems = examine(plugin.definition, named)
    name_problems = _name_problems(config, {problem.key for problem in problems})
    return CheckedConfig(plugin, validated, (*problems, *name_problems, *_topic_problems(validated)))


def _class_of(config: Mapping[str, str], plugin: Plugin) -> str:
    given = config.get(config_files.CLASS) or config.get(config_files.CLASS_ALIASES[0]) or plugin.klass
    # Connect accepts the last part of a class's name in place of the full name.
    return plugin.klass if is_called(plugin, given) else given


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
