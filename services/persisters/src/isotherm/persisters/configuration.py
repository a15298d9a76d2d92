"""A connector's configuration: read from its file, checked without asking a server, and what it means for a task."""

from __future__ import annotations

import os
import re
from pathlib import Path

from isotherm.connector.config import converters
from isotherm.connector.config import files as config_files
from isotherm.connector.config.converters import PARTS, is_enveloped
from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.validation import (
    InvalidConfigError,
    Problem,
    Validated,
    examine,
    source_problems,
)
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.connector.java_patterns import JavaPattern
from isotherm.connector.transforms.chain import read_chain
from isotherm.kcql.projection.ids import separator_problem
from isotherm.persisters.api.statements import null_behaviour_problems
from isotherm.persisters.consuming.fetch_positions import START_OFFSETS
from isotherm.persisters.hotpath import column_reader
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoding import key_decoder, value_decoder
from isotherm.persisters.records.projection import Projector
from isotherm.persisters.records.transforming import RecordTransforms
from isotherm.persisters.sinks.catalog import find_sink, installed_sinks, unknown_class
from isotherm.persisters.sinks.plugin import SinkKind
from isotherm.servicekit.avro import SchemaRegistry

_START = "consumer.override.auto.offset.reset"


def load(sink: str | None, file: Path, *, resolve: bool) -> tuple[ConnectorConfig, SinkKind, Validated]:
    """Read and check a connector's file.

    Args:
        sink: name of the kind of sink (a key of `installed_sinks`); None takes it from `connector.class`.
        file: the file.
        resolve: whether references to environment variables and files are replaced before the check.

    Returns the configuration as it is written, the kind of its sink, and the checked configuration. Raises ConfigError
    with every problem, MissingExtraError.
    """
    read = config_files.read(file)
    kinds = installed_sinks()
    kind = kinds[sink] if sink else find_sink(read.klass, kinds.values())
    if kind is None:
        raise ConfigError([f"{file}: {unknown_class(read.klass, kinds.values())}"])
    return read, kind, check(kind, read.resolved(os.environ) if resolve else read)


def check(kind: SinkKind, config: ConnectorConfig) -> Validated:
    """Check everything about a configuration that needs no server.

    Raises InvalidConfigError with every problem, MissingExtraError.
    """
    code = kind.load()
    validated, problems = examine(kind.definition, config)
    problems += [
        *_topic_problems(validated),
        *_start_problems(validated),
        *converters.problems(validated),
        *_separator_problems(kind, validated),
        *_null_problems(kind, validated),
    ]
    problems += code.problems(validated)
    notices = (*validated.notices, *converters.notices(validated), *code.notices(validated))
    if problems:
        raise InvalidConfigError(problems, notices)
    return Validated(
        validated.name, validated.definition, validated.values, validated.statements, notices, validated.given
    )


def subscription(config: Validated) -> list[str]:
    """Return the topics to read; a regular expression begins with `^` (see `connector.config.topic_patterns`)."""
    pattern = config.text("topics.regex")
    return [f"^({pattern})$"] if pattern else config.items("topics")


def start_offset(config: Validated) -> str:
    """Return where partitions without a committed offset begin, a key of START_OFFSETS."""
    return config.text(_START) or "earliest"


def dead_letter_topic(config: Validated) -> str | None:
    """Return the dead-letter topic; None if dead letters are not enabled."""
    named = config.text("errors.deadletterqueue.topic.name")
    return named or (f"{config.name}.dead-letters" if config.flag("errors.deadletterqueue.enable") else None)


def error_policy(kind: SinkKind, config: Validated) -> ErrorPolicy:
    """Return the error policy that a configuration asks for."""
    return ErrorPolicy(
        policy=Policy(config.text(f"{kind.prefix}.error.policy").upper()),
        max_retries=config.integer(f"{kind.prefix}.max.retries"),
        retry_interval_ms=config.integer(f"{kind.prefix}.retry.interval"),
        tolerate_all=config.text("errors.tolerance").lower() == "all",
        dead_letters=dead_letter_topic(config) is not None,
    )


def projector(
    kind: SinkKind, config: Validated, value_schemas: SchemaRegistry, key_schemas: SchemaRegistry | None = None
) -> Projector:
    """Return the projection that a configuration asks for; `key_schemas` defaults to `value_schemas`."""
    separator = config.text(f"{kind.prefix}.pk.separator") or kind.conventions.pk_separator
    is_value, is_key = (is_enveloped(config, part) for part in PARTS)
    chain, _ = read_chain(config.values)
    return Projector(
        config.statements,
        value_decoder(config.text("value.converter"), value_schemas, envelope=is_value),
        key_decoder(config.text("key.converter"), key_schemas or value_schemas, envelope=is_key),
        Conventions(separator, kind.conventions.ttl_unit_ms, kind.load().retention_ms(config)),
        transforms=None if chain is None else RecordTransforms(chain),
        read_columns=column_reader() if kind.reads_columns else None,
    )


def _topic_problems(config: Validated) -> list[Problem]:
    keys = ("topics", "topics.regex", config.definition.kcql_key or "")
    if not all(config.is_resolved(key) for key in keys):
        return []
    topics, pattern = config.items("topics"), config.text("topics.regex")
    chain, _ = read_chain(config.values)
    is_routed = chain is not None and chain.routes
    if bool(topics) == bool(pattern):
        return [Problem("topics", "exactly one of topics and topics.regex must be given")]
    if topics:
        # Statements that cannot be parsed are a problem of their own, and this one would only repeat it.
        return source_problems(config.statements, topics) if config.statements and not is_routed else []
    try:
        expression = JavaPattern(pattern)
        return [
            Problem("topics.regex", f"does not match {statement.source!r}, read by {statement.text!r}")
            for statement in config.statements
            if not is_routed and statement.source != "*" and not expression.fullmatch(statement.source)
        ]
    except re.error as error:
        why = f"{pattern!r} is no regular expression, or uses what only Java's has: {error}"
        return [Problem("topics.regex", why)]


def _separator_problems(kind: SinkKind, config: Validated) -> list[Problem]:
    key = f"{kind.prefix}.pk.separator"
    why = separator_problem(config.text(key)) if config.text(key) and config.is_resolved(key) else None
    return [] if why is None else [Problem(key, why)]


def _null_problems(kind: SinkKind, config: Validated) -> list[Problem]:
    return [
        Problem(f"{kind.prefix}.kcql", f"{why} (in {statement.text!r})")
        for statement in config.statements
        for why in null_behaviour_problems(statement)
    ]


def _start_problems(config: Validated) -> list[Problem]:
    value = config.text(_START)
    if not value or not config.is_resolved(_START) or value in START_OFFSETS:
        return []
    return [Problem(_START, f"{value!r} is not allowed; expected one of {', '.join(START_OFFSETS)}")]
