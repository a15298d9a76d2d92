"""KCQL statements compiled to rules and routes: which record of which topic a notification of a resource becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import isotherm.schemas
from isotherm import kcql, payloads
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.resource import (
    AddressError,
    Resource,
    Server,
    parse_resource,
)
from isotherm.coap_ingest.ingest.records import Project, ReadingRules
from isotherm.coap_ingest.ingest.resource_pattern import ResourcePattern, is_pattern
from isotherm.connector.config.validation import Problem
from isotherm.kcql.syntax.names import nearest

SERVICE = "coap-ingest"
_ANY_SERVER = Server("coap", "any", 0)
MESSAGE, READING = "CoapMessage", "SensorReading"

Encode = Callable[[Mapping[str, Any]], bytes]
Accepts = Callable[[dict[str, Any]], bool]
"""Whether a condition is true of a row or a message. Raises PayloadError."""


class Values(Enum):
    """The encoding of record values."""

    AVRO = "AVRO"
    JSON = "JSON"
    JSON_WITH_SCHEMA = "JSON with schemas"


class MessageKey(Enum):
    """The key of complete messages when WITHKEY names no fields of the payload."""

    RESOURCE = "resource"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Target:
    """A Kafka topic, its record and how values are encoded."""

    name: str
    record: str
    version: int
    values: Values = Values.AVRO
    units: Mapping[str, str] = field(default_factory=dict)
    """The units of metrics that the topic declares."""


@dataclass(frozen=True, slots=True)
class Route:
    """One statement applied to one resource: from the resource to a topic.

    `rules` is None when the record is the complete message.
    """

    statement: kcql.Statement
    resource: Resource
    topic: Target
    rules: ReadingRules | None
    message_key: MessageKey = MessageKey.RESOURCE
    limits: payloads.Limits = field(default_factory=payloads.Limits)
    accepts: Accepts | None = None
    """Whether the condition of WHERE is true of a complete message; readings have it in `rules`."""

    def key(self, notification: Notification) -> str:
        """Return the key of a complete message.

        Raises PayloadError when WITHKEY names a field that the payload does not have, or that differs between the items
        of the payload.
        """
        if self.statement.with_key:
            return _payload_key(self.statement, notification, self.limits)
        if self.message_key is MessageKey.RESOURCE:
            return notification.resource.uri
        return notification.device_id or notification.resource.server.authority


@dataclass(frozen=True, slots=True)
class Rule:
    """One checked statement; it becomes a route for each resource that its FROM names."""

    statement: kcql.Statement
    topic: Target
    units: Mapping[str, str]
    limits: payloads.Limits
    message_key: MessageKey = MessageKey.RESOURCE
    _named: Resource = field(init=False, repr=False, compare=False)
    """The path and query of FROM, at any server."""
    _units: Mapping[str, str] = field(init=False, repr=False, compare=False)
    _project: Project | None = field(init=False, repr=False, compare=False)
    """None when the record is the complete message."""
    _accepts: Accepts | None = field(init=False, repr=False, compare=False)
    """None without WHERE."""

    def __post_init__(self) -> None:
        # Compiled once and not for each resource: with patterns a request may name another one each time.
        is_message = self.topic.record == MESSAGE
        object.__setattr__(self, "_named", parse_resource(_ANY_SERVER, self.statement.source))
        object.__setattr__(self, "_units", {**self.topic.units, **self.units})
        object.__setattr__(self, "_project", None if is_message else _project(self.statement))
        object.__setattr__(self, "_accepts", _accepts(self.statement))

    @property
    def pattern(self) -> ResourcePattern | None:
        """The pattern of the resources when FROM names many; None when it names one."""
        return ResourcePattern(self.statement.source) if is_pattern(self.statement.source) else None

    def route_for_server(self, server: Server) -> Route:
        """Return the route of the one resource of `server` that FROM names."""
        return self.route_for(parse_resource(server, self.statement.source))

    def matches(self, resource: Resource) -> bool:
        """Return whether FROM names `resource`; a FROM without a pattern compares its query as well when it has one."""
        pattern = self.pattern
        if pattern is not None:
            return pattern.matches(resource.path)
        return self._named.path == resource.path and self._named.query in ((), resource.query)

    def route_for(self, resource: Resource) -> Route:
        """Return the route from `resource` to the statement's topic."""
        rules = None
        if self._project is not None:
            metric = default_metric(self.statement, resource, self.topic.name, self._units)
            rules = ReadingRules(metric, self._units, self._project, self.limits, self._accepts)
        return Route(self.statement, resource, self.topic, rules, self.message_key, self.limits, self._accepts)


def compile_rules(
    statements: Iterable[kcql.Statement],
    *,
    key: str,
    units: Mapping[str, str],
    limits: payloads.Limits,
    values: Values = Values.AVRO,
    message_key: MessageKey = MessageKey.RESOURCE,
) -> tuple[list[Rule], list[Problem]]:
    """Compile `statements` to rules; return them and the problems of the other statements.

    `key` is the configuration key that holds the statements; `units` gives units by metric beside those of the topic.
    """
    rules, problems = [], []
    for statement in statements:
        try:
            _check_source(statement)
            target = _target(statement, values)
            _check_fields(statement, target)
        except (AddressError, InvalidStatementError) as error:
            problems.append(Problem(key, f"{error} (in {statement.text!r})"))
        else:
            rules.append(Rule(statement, target, units, limits, message_key))
    return rules, problems


class InvalidStatementError(ValueError):
    """The statement cannot be used; the text states why."""


def _check_source(statement: kcql.Statement) -> None:
    if is_pattern(statement.source) and "?" in statement.source:
        raise InvalidStatementError(f"{statement.source!r}: a pattern has no query")
    parse_resource(_ANY_SERVER, statement.source)


def _target(statement: kcql.Statement, values: Values) -> Target:
    if statement.target is None or statement.target_from is not None:
        raise InvalidStatementError("the target must be the name of a topic")
    expected = "AVRO" if values is Values.AVRO else "JSON"
    if statement.format not in (None, expected):
        raise InvalidStatementError(f"WITHFORMAT {statement.format}: values are {expected}, by value.converter")
    return _declared(statement.target) if values is Values.AVRO else _undeclared(statement.target, statement, values)


def _declared(name: str) -> Target:
    try:
        topic = isotherm.schemas.topic(name)
    except LookupError:
        own = ", ".join(_own_topics())
        raise InvalidStatementError(f"topic {name} is not declared; declared for {SERVICE}: {own}") from None
    if SERVICE not in topic.writers:
        raise InvalidStatementError(f"topic {name} is not written by {SERVICE}; it writes {', '.join(_own_topics())}")
    if topic.record is None or topic.version is None:
        raise InvalidStatementError(f"topic {name} has no schema")
    return Target(name, topic.record, topic.version, units=topic.semantics.get("units", {}))


def _undeclared(name: str, statement: kcql.Statement, values: Values) -> Target:
    """Return a topic with JSON values; with SELECT * it holds complete messages, with selected fields readings."""
    if any(topic.name == name for topic in isotherm.schemas.topics()):
        raise InvalidStatementError(
            f"topic {name} is declared with AVRO values, and its readers rely on them: write JSON to another topic"
        )
    record = MESSAGE if _selects_all(statement) and not statement.ignore else READING
    return Target(name, record, 1, values)


def _check_fields(statement: kcql.Statement, target: Target) -> None:
    is_message = target.record == MESSAGE
    if is_message and (statement.ignore or not _selects_all(statement)):
        raise InvalidStatementError(f"topic {target.name} holds complete messages: it accepts SELECT * only")
    if statement.with_key and not is_message:
        raise InvalidStatementError(
            "WITHKEY: readings are keyed by device, so that the readings of a device stay in order"
        )
    if any(path.part is not kcql.Part.VALUE or not path.segments for path in statement.with_key):
        raise InvalidStatementError("WITHKEY accepts fields of the payload only")
    paths = [*(field.path for field in statement.fields), *kcql.paths_of(statement.where)]
    other = next((path for path in paths if path.part is not kcql.Part.VALUE), None)
    if other is not None:
        raise InvalidStatementError(
            f"a CoAP payload has no {other.part.value}: only fields of the payload can be selected or compared"
        )
    if is_message:
        _check_message_condition(statement, target)


def _check_message_condition(statement: kcql.Statement, target: Target) -> None:
    known = [field["name"] for field in isotherm.schemas.schema(target.record, target.version)["fields"]]
    for path in kcql.paths_of(statement.where):
        if path.segments and path.segments[0] not in known:
            near = nearest(path.segments[0], known)
            suggestion = f"; did you mean {near}?" if near else ""
            raise InvalidStatementError(f"WHERE: a complete message has no {path.segments[0]}{suggestion}")


def _payload_key(statement: kcql.Statement, notification: Notification, limits: payloads.Limits) -> str:
    rows = payloads.decode(
        notification.payload, notification.content_format, limits=limits, now_ms=notification.arrived_ms
    )
    paths = [path.segments for path in statement.with_key]
    found = {statement.key_delimiter.join(_key_part(row, segments) for segments in paths) for row in rows}
    if len(found) != 1:
        raise payloads.PayloadError(
            f"WITHKEY: the payload has {len(found)} different keys, but one message has one key"
        )
    return found.pop()


def _key_part(row: Mapping[str, Any], segments: tuple[str, ...]) -> str:
    value: Any = row
    for name in segments:
        value = value.get(name) if isinstance(value, Mapping) else None
    if type(value) not in (str, int, float, bool):
        raise payloads.PayloadError(f"WITHKEY: {'.'.join(segments)} is not a text, number or boolean")
    return str(value)


def _own_topics() -> list[str]:
    return [topic.name for topic in isotherm.schemas.topics() if SERVICE in topic.writers]


def _selects_all(statement: kcql.Statement) -> bool:
    return all(field.wildcard and not field.path.segments for field in statement.fields)


def default_metric(statement: kcql.Statement, resource: Resource, topic: str, units: Mapping[str, str]) -> str | None:
    """Return the metric of a reading whose payload names none.

    It is the name of the field that is selected AS value, else the topic's name when that is a metric with a known unit
    (`temperature`), else the last segment of the resource's path. It is None for the root, which has no segment.
    """
    for selected in statement.fields:
        if selected.alias == "value" and selected.path.segments and selected.path.segments[-1] != "value":
            return selected.path.segments[-1]
    if topic in units:
        return topic
    return resource.path[-1] if resource.path else None


def _project(statement: kcql.Statement) -> Project:
    row_of = kcql.compile_projection(statement).row

    def project(row: dict[str, Any]) -> Mapping[str, Any]:
        try:
            projected: Mapping[str, Any] = row_of(kcql.Record(value=row))
        except kcql.ProjectionError as error:
            raise payloads.PayloadError(str(error)) from error
        return projected

    return project


def _accepts(statement: kcql.Statement) -> Accepts | None:
    accepts = kcql.compile_projection(statement).accepts
    if accepts is None:
        return None

    def accepts_row(row: dict[str, Any]) -> bool:
        try:
            return accepts(kcql.Record(value=row))
        except kcql.ProjectionError as error:
            raise payloads.PayloadError(str(error)) from error

    return accepts_row
