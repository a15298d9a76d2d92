"""The sinks that this package knows. Their clients are extras, imported only when the sink is used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from isotherm.connector.config import converters
from isotherm.connector.config import files as config_files
from isotherm.connector.config.definitions import Definition
from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.topic_patterns import compiled
from isotherm.connector.config.validation import (
    InvalidConfigError,
    Problem,
    Validated,
    examine,
    source_problems,
)
from isotherm.kcql.projection.ids import separator_problem
from isotherm.persisters.consuming.fetching import STARTS
from isotherm.persisters.records.decoding import Decode
from isotherm.persisters.records.projection import Conventions
from isotherm.persisters.sinks.cassandra import connector_keys
from isotherm.persisters.sinks.elasticsearch import connector_keys as elasticsearch_keys
from isotherm.persisters.sinks.hazelcast import connector_keys as hazelcast_keys
from isotherm.persisters.sinks.sink import Sink

Build = Callable[[Validated, Decode, int, Callable[[str], str]], Sink]
"""From a configuration, a decoder of Avro values, the number of writers, and what tells the id that a topic has now."""
Look = Callable[[Validated], list[Problem]]
Upkeep = Callable[[Validated, CollectorRegistry], AbstractContextManager[None]]


class SinkCode(NamedTuple):
    """What a sink's module brings."""

    build: Build
    problems: Look
    """What only the sink knows to be wrong in a configuration."""
    notices: Look = lambda _config: []
    """What it assumes and should say so."""
    upkeep: Upkeep = lambda _config, _registry: nullcontext()
    """What the first task does beside its loop, while it runs."""
    retention_ms: Callable[[Validated], int | None] = lambda _config: None
    """After which time the sink drops dated records; None for never."""


@dataclass(frozen=True)
class SinkKind:
    """One kind of sink."""

    name: str
    definition: Definition
    prefix: str
    conventions: Conventions

    def load(self) -> SinkCode:
        """The sink's code.

        Raises MissingExtraError when the sink's client is not installed.
        """
        try:
            return _LOADERS[self.name]()
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"--sink {self.name} needs the extra: pip install 'isotherm-persisters[{self.name}]' ({error})"
            ) from None


class MissingExtraError(Exception):
    """The client library of a sink is not installed."""


def load(sink: str | None, file: Path, *, resolve: bool) -> tuple[ConnectorConfig, SinkKind, Validated]:
    """The configuration in `file`, as it stands there and checked, for the sink of that name or of its class.

    Raises ConfigError with every problem, MissingExtraError.
    """
    read = config_files.read(file)
    kinds = [KINDS[sink]] if sink else [kind for kind in KINDS.values() if kind.definition.answers_to(read.klass)]
    if not kinds:
        known = ", ".join(KINDS)
        raise ConfigError([f"{file}: connector.class: {read.klass!r} is no sink of this package ({known})"])
    return read, kinds[0], check(kinds[0], read.resolved(os.environ) if resolve else read)


def check(kind: SinkKind, config: ConnectorConfig) -> Validated:
    """Everything that can be said about a configuration without asking a server.

    Raises InvalidConfigError with every problem, MissingExtraError.
    """
    code = kind.load()
    validated, problems = examine(kind.definition, config)
    problems += [
        *_topic_problems(validated),
        *_start_problems(validated),
        *converters.problems(validated),
        *_separator_problems(kind, validated),
    ]
    problems += code.problems(validated)
    notices = (*validated.notices, *converters.notices(validated), *code.notices(validated))
    if problems:
        raise InvalidConfigError(problems, notices)
    return Validated(
        validated.name, validated.definition, validated.values, validated.statements, notices, validated.given
    )


def subscription(config: Validated) -> list[str]:
    """The topics that are read; a regular expression begins with `^` (see `connector.config.topic_patterns`)."""
    pattern = config.text("topics.regex")
    return [f"^({pattern})$"] if pattern else config.items("topics")


def _topic_problems(config: Validated) -> list[Problem]:
    looked_at = ("topics", "topics.regex", config.definition.kcql_key or "")
    if not all(config.is_resolved(key) for key in looked_at):
        return []
    topics, pattern = config.items("topics"), config.text("topics.regex")
    if bool(topics) == bool(pattern):
        return [Problem("topics", "exactly one of topics and topics.regex must be given")]
    if topics:
        # Without a statement that could be read there is another problem, and this one would only be its echo.
        return source_problems(config.statements, topics) if config.statements else []
    try:
        expression = compiled(pattern)
    except re.error as error:
        why = f"{pattern!r} is no regular expression, or uses what only Java's has: {error}"
        return [Problem("topics.regex", why)]
    return [
        Problem("topics.regex", f"does not match {statement.source!r}, read by {statement.text!r}")
        for statement in config.statements
        if statement.source != "*" and not expression.fullmatch(statement.source)
    ]


def _separator_problems(kind: SinkKind, config: Validated) -> list[Problem]:
    key = f"{kind.prefix}.pk.separator"
    why = separator_problem(config.text(key)) if config.text(key) and config.is_resolved(key) else None
    return [] if why is None else [Problem(key, why)]


def _start_problems(config: Validated) -> list[Problem]:
    key = "consumer.override.auto.offset.reset"
    value = config.text(key)
    if not value or not config.is_resolved(key) or value in STARTS:
        return []
    return [Problem(key, f"{value!r} is not allowed; expected one of {', '.join(STARTS)}")]


def _elasticsearch() -> SinkCode:
    from isotherm.persisters.sinks.elasticsearch import retention_job as retention
    from isotherm.persisters.sinks.elasticsearch import sink

    return SinkCode(
        lambda config, _decode, writers, _topic_id: sink.ElasticsearchSink(config, writers),
        sink.check,
        sink.notices,
        upkeep=retention.running,
        retention_ms=retention.retention_ms,
    )


def _scylla() -> SinkCode:
    from isotherm.persisters.sinks.cassandra import sink

    return SinkCode(lambda config, _decode, _writers, _topic_id: sink.CassandraSink(config), sink.check)


def _hazelcast() -> SinkCode:
    from isotherm.persisters.sinks.hazelcast import sink

    return SinkCode(
        lambda config, decode, _writers, topic_id: sink.HazelcastSink(config, decode, topic_id),
        sink.check,
        sink.notices,
    )


_LOADERS = {"elasticsearch": _elasticsearch, "scylla": _scylla, "hazelcast": _hazelcast}

KINDS = {
    "elasticsearch": SinkKind(
        "elasticsearch", elasticsearch_keys.DEFINITION, elasticsearch_keys.PREFIX, Conventions(ttl_unit_ms=None)
    ),
    "scylla": SinkKind("scylla", connector_keys.DEFINITION, connector_keys.PREFIX, Conventions(ttl_unit_ms=1_000)),
    "hazelcast": SinkKind("hazelcast", hazelcast_keys.DEFINITION, hazelcast_keys.PREFIX, Conventions(ttl_unit_ms=1)),
}
"""By the name that `--sink` takes."""
