"""KCQL statements as routes: which record a notification of which resource becomes in which topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import isotherm_schemas
import kcql
import payloads
from coap_ingest.discovery import Pattern, is_pattern
from coap_ingest.records import Project, ReadingRules
from coap_ingest.resource import AddressError, Resource, Server, parse_resource
from connector.validation import Problem

SERVICE = "coap-ingest"
_ANY_SERVER = Server("coap", "any", 0)
MESSAGE, READING = "CoapMessage", "SensorReading"

Encode = Callable[[Mapping[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class Route:
    """One statement: from a resource to a topic. `rules` is None for the message as it is."""

    statement: kcql.Statement
    resource: Resource
    topic: isotherm_schemas.Topic
    rules: ReadingRules | None


@dataclass(frozen=True, slots=True)
class Rule:
    """One statement, checked: it becomes routes of the resources that its FROM names."""

    statement: kcql.Statement
    topic: isotherm_schemas.Topic
    units: Mapping[str, str]
    limits: payloads.Limits

    @property
    def pattern(self) -> Pattern | None:
        """Which resources, when FROM names many; None when it names one."""
        return Pattern(self.statement.source) if is_pattern(self.statement.source) else None

    def named(self, server: Server) -> Route:
        """The route of the one resource of `server` that FROM names."""
        return self.route(parse_resource(server, self.statement.source))

    def matches(self, resource: Resource) -> bool:
        """Whether FROM names this resource, alone or among others; one that is named alone with its queries."""
        pattern = self.pattern
        if pattern is not None:
            return pattern.matches(resource.path)
        named = parse_resource(resource.server, self.statement.source)
        return named.path == resource.path and named.query in ((), resource.query)

    def route(self, resource: Resource) -> Route:
        """From this resource to the statement's topic."""
        is_message = self.topic.record == MESSAGE
        rules = None if is_message else _rules(self.statement, resource, self.topic, self.units, self.limits)
        return Route(self.statement, resource, self.topic, rules)


def compile_rules(
    statements: Iterable[kcql.Statement], *, key: str, units: Mapping[str, str], limits: payloads.Limits
) -> tuple[list[Rule], list[Problem]]:
    """The rules of `statements`, and what is wrong with the others; `key` is the configuration key they stand in."""
    rules, problems = [], []
    for statement in statements:
        wrong = _wrong_source(statement) or _wrong(statement)
        if wrong is None:
            rules.append(Rule(statement, isotherm_schemas.topic(statement.target or ""), units, limits))
        else:
            problems.append(Problem(key, f"{wrong} (in {statement.text!r})"))
    return rules, problems


def _wrong_source(statement: kcql.Statement) -> str | None:
    if is_pattern(statement.source) and "?" in statement.source:
        return f"{statement.source!r}: a pattern has no query"
    try:
        parse_resource(_ANY_SERVER, statement.source)
    except AddressError as error:
        return str(error)
    return None


def _wrong(statement: kcql.Statement) -> str | None:
    if statement.target is None or statement.target_from is not None:
        return "the target must be the name of a topic"
    try:
        topic = isotherm_schemas.topic(statement.target)
    except LookupError:
        return f"topic {statement.target} is not declared; declared for {SERVICE}: {', '.join(_own_topics())}"
    if SERVICE not in topic.writers:
        return f"topic {topic.name} is not written by {SERVICE}; it writes {', '.join(_own_topics())}"
    if statement.format not in (None, "AVRO"):
        return f"WITHFORMAT {statement.format}: {topic.name} holds AVRO"
    if topic.record == MESSAGE and (statement.ignore or not _is_everything(statement)):
        return f"topic {topic.name} holds whole messages: it takes SELECT * only"
    other = next((field for field in statement.fields if field.path.part is not kcql.Part.VALUE), None)
    if other is not None:
        return f"a CoAP payload has no {other.path.part.value}: only fields of the payload can be selected"
    return None


def _own_topics() -> list[str]:
    return [topic.name for topic in isotherm_schemas.topics() if SERVICE in topic.writers]


def _is_everything(statement: kcql.Statement) -> bool:
    return all(field.wildcard and not field.path.segments for field in statement.fields)


def _rules(
    statement: kcql.Statement,
    resource: Resource,
    topic: isotherm_schemas.Topic,
    units: Mapping[str, str],
    limits: payloads.Limits,
) -> ReadingRules:
    known = {**topic.semantics.get("units", {}), **units}
    return ReadingRules(default_metric(statement, resource, topic.name, known), known, _project(statement), limits)


def default_metric(statement: kcql.Statement, resource: Resource, topic: str, units: Mapping[str, str]) -> str:
    """What a reading measures when its payload does not say.

    The name of the field that is selected AS value, else the topic's name where that is a metric with a known unit
    (`temperature`), else the last segment of the resource's path.
    """
    for field in statement.fields:
        if field.alias == "value" and field.path.segments and field.path.segments[-1] != "value":
            return field.path.segments[-1]
    return topic if topic in units else resource.path[-1]


def _project(statement: kcql.Statement) -> Project:
    row_of = kcql.compile_projection(statement).row

    def project(row: dict[str, Any]) -> Mapping[str, Any]:
        try:
            projected: Mapping[str, Any] = row_of(kcql.Record(value=row))
        except kcql.ProjectionError as error:
            raise payloads.PayloadError(str(error)) from error
        return projected

    return project
