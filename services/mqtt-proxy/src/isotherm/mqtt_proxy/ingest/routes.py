"""Routes from MQTT topics to Kafka topics: KCQL statements and the old `topic.regex.list`, compiled once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import re2  # type: ignore[import-untyped]  # it ships no types

import isotherm.schemas
from isotherm import kcql
from isotherm.kcql.filters import matches_filter, without_share
from isotherm.kcql.projection.compiler import compile_projection
from isotherm.payloads.protobuf import DescriptorError, MessageDecoder

CLAUSES = frozenset(("IGNORE", "PROPERTIES", "WHERE", "WITHFORMAT", "WITHSTRUCTURE"))
_FORMATS = ("PROTOBUF", "RAW")
_DESCRIPTOR, _MESSAGE = "protobuf.descriptor", "protobuf.message"
_RESERVED = ("isotherm.", "__")
"""Beginnings of the names of topics that belong to the suite or to Kafka itself."""
PLAIN_FIELDS = ("device_id", "metric", "value", "unit", "event_time", "sequence")
"""The fields of a reading that a payload may give and that are scalars."""
_CACHED_TOPICS = 10_000
_ALL = kcql.Field(kcql.Path(kcql.Part.VALUE), wildcard=True)
_SAME_NAMES = {name: name for name in PLAIN_FIELDS}
_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
# Devices choose the topics, and `(x+)+y` keeps a backtracking engine busy for hours: RE2 takes linear time (ADR 111).
_RE2_OPTIONS = re2.Options()
_RE2_OPTIONS.log_errors = False
_REGEX_PAIR = re.compile(r"([A-Za-z0-9._-]{1,249})\s*:\s*(.*)", re.DOTALL)


class RouteError(ValueError):
    """A route in the settings cannot work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route.

    `target` is the Kafka topic; None when `target_of` takes it from each record. `device_level` is the index of the
    topic level that names the device. `metric` is the metric of readings that name none; None means the last level of
    the topic. `project` computes the fields of a record; None keeps them as they are.
    """

    text: str
    matches: Callable[[str], bool]
    target: str | None
    target_text: str = ""
    """The target as the statement has it, by which metrics count what WHERE leaves out."""
    source: str | None = None
    """The MQTT topic filter; None for a regular expression."""
    target_of: Callable[[kcql.Record], str] | None = None
    device_level: int | None = None
    metric: str | None = None
    accepts: Callable[[kcql.Record], bool] | None = None
    """Whether the condition of WHERE is true of a record; None for a route that takes all of them."""
    project: Callable[[kcql.Record], dict[str, Any]] | None = None
    decode: Callable[[bytes], list[dict[str, Any]]] | None = None
    """Reads payloads in a format that the route names, and raises PayloadError; None for the publish's content type."""
    is_raw: bool = False
    """Whether the record's value is the payload as it came, and not readings in Avro."""
    plain_names: Mapping[str, str] | None = None
    """The fields of PLAIN_FIELDS by their name in the payload; None for a route that does more than rename them."""


class ResolvedRoute(NamedTuple):
    """A route for one MQTT topic, with the device and metric that the topic names."""

    route: Route
    target: str | None
    device_id: str | None
    metric: str | None


class Router:
    """The routes in their order. `resolve(topic)` returns the matching routes from a bounded cache."""

    def __init__(self, routes: Sequence[Route], *, first_match_only: bool) -> None:
        self.routes = tuple(routes)
        self._first_match_only = first_match_only
        self.resolve: Callable[[str], tuple[ResolvedRoute, ...]] = lru_cache(maxsize=_CACHED_TOPICS)(self._resolve)

    def device_level(self, topic: str) -> int | None:
        """Return the level of `topic` that names the device and decides nothing else; None when there is none.

        Every topic that differs from `topic` only in the text of this level has the same route and metric.
        """
        resolved = self.resolve(topic)
        route = resolved[0].route if len(resolved) == 1 else None
        level = route.device_level if route is not None else None
        levels = topic.split("/")
        # A wildcard at the first level does not match `$...`.
        if route is None or level is None or not 0 < level < len(levels) or not levels[level]:
            return None
        if route.metric is None and not any(levels[level + 1 :]):
            return None  # The level is the metric, too.
        return level if all(_ignores(other, level, topic) for other in self.routes) else None

    @property
    def targets(self) -> tuple[str, ...]:
        """The Kafka topics of readings that the routes name, each once."""
        return self._targets(is_raw=False)

    @property
    def raw_targets(self) -> tuple[str, ...]:
        """The Kafka topics of the raw routes, each once."""
        return self._targets(is_raw=True)

    @property
    def sources(self) -> tuple[str, ...]:
        """The MQTT topic filters of the routes, each once, without the `$share/<group>/` of a shared subscription."""
        sources = (route.source for route in self.routes)
        return tuple(dict.fromkeys(without_share(source) for source in sources if source is not None))

    @property
    def has_dynamic_targets(self) -> bool:
        """Whether a route takes its Kafka topic from each record."""
        return any(route.target is None for route in self.routes)

    def _targets(self, *, is_raw: bool) -> tuple[str, ...]:
        named = (route.target for route in self.routes if route.is_raw == is_raw)
        return tuple(dict.fromkeys(target for target in named if target is not None))

    def _resolve(self, topic: str) -> tuple[ResolvedRoute, ...]:
        found = []
        for route in self.routes:
            if route.matches(topic):
                found.append(_resolve(route, topic))
                if self._first_match_only:
                    break
        return tuple(found)


def _ignores(route: Route, level: int, topic: str) -> bool:
    """Return whether a route matches all topics that differ from `topic` only in this level, or none of them."""
    if route.source is None:
        return False
    wanted = without_share(route.source).split("/")
    if "#" in wanted[: level + 1] or len(wanted) <= level or wanted[level] == "+":
        return True
    return not matches_filter("/".join([*wanted[:level], "+", *wanted[level + 1 :]]), topic)


def _resolve(route: Route, topic: str) -> ResolvedRoute:
    levels = topic.split("/")
    level = route.device_level
    device_id = levels[level] if level is not None and level < len(levels) else None
    # A trailing slash makes an empty last level, which cannot be a metric.
    last = next((name for name in reversed(levels) if name), None)
    return ResolvedRoute(route, route.target, device_id or None, route.metric or last)


def kcql_routes(text: str, *, device_level: int | None, metrics: frozenset[str]) -> list[Route]:
    """Compile KCQL statements into routes.

    `metrics` are the metrics with a unit in the settings. A target topic with the name of one is the default metric.
    `device_level` overrides the topic level that names the device.
    Raises kcql.KcqlError for a syntax error, RouteError for a statement that the MQTT proxy cannot execute.
    """
    return [_kcql_route(statement, device_level, metrics) for statement in kcql.parse(text)]


def _kcql_route(statement: kcql.Statement, device_level: int | None, metrics: frozenset[str]) -> Route:
    text = " ".join(statement.text.split())
    if statement.target is None:
        raise RouteError(f"{text}: INSERT INTO a Kafka topic is missing")
    if statement.with_key:
        raise RouteError(f"{text}: WITHKEY: readings are keyed by device, so that those of a device stay in order")
    for clause in sorted(statement.clauses - CLAUSES):
        raise RouteError(f"{text}: {clause} has no effect in the MQTT proxy; it uses {', '.join(sorted(CLAUSES))}")
    if statement.format not in (None, *_FORMATS):
        raise RouteError(f"{text}: WITHFORMAT {statement.format} is not allowed; expected {' or '.join(_FORMATS)}")
    topic_filter = statement.source
    projection = compile_projection(statement)
    selects_all = statement.fields == (_ALL,)
    is_raw = statement.format == "RAW"
    if is_raw and not (selects_all and statement.clauses == {"WITHFORMAT"}):
        raise RouteError(f"{text}: WITHFORMAT RAW stores payloads as they come: it takes SELECT * and no other clause")
    target: str | None = None
    target_of: Callable[[kcql.Record], str] | None = None
    if statement.target_from is None:
        target = statement.target
        check_kafka_topic(target, text)
        if is_raw:
            check_raw_target(target, text)
    elif is_raw:
        raise RouteError(f"{text}: WITHFORMAT RAW needs the name of a Kafka topic as its target")
    else:
        target_of = lambda record: projection.target(record, None)  # noqa: E731  # a closure over one name
    return Route(
        text=text,
        matches=(lambda _topic: True) if topic_filter == "*" else (lambda topic: matches_filter(topic_filter, topic)),
        target=target,
        source="#" if topic_filter == "*" else topic_filter,
        target_of=target_of,
        device_level=_only_plus(topic_filter) if device_level is None else device_level,
        metric=target if target in metrics else None,
        accepts=projection.accepts,
        target_text=statement.target,
        project=None if selects_all and not statement.ignore else projection.row,
        decode=_decoder(statement, text),
        is_raw=is_raw,
        plain_names=_plain_names(statement),
    )


def _decoder(statement: kcql.Statement, text: str) -> Callable[[bytes], list[dict[str, Any]]] | None:
    """Return what reads the payloads of WITHFORMAT PROTOBUF. Raises RouteError for other or missing properties."""
    properties = statement.properties
    if statement.format != "PROTOBUF":
        if properties:
            raise RouteError(f"{text}: PROPERTIES belong to WITHFORMAT PROTOBUF")
        return None
    if properties.keys() != {_DESCRIPTOR, _MESSAGE}:
        expected = f"PROPERTIES('{_DESCRIPTOR}'='file', '{_MESSAGE}'='package.Type')"
        raise RouteError(f"{text}: WITHFORMAT PROTOBUF needs {expected}, and no other property")
    try:
        return MessageDecoder(Path(properties[_DESCRIPTOR]).read_bytes(), properties[_MESSAGE]).decode
    except (OSError, DescriptorError) as error:
        raise RouteError(f"{text}: {_DESCRIPTOR}: {error}") from None


def _plain_names(statement: kcql.Statement) -> Mapping[str, str] | None:
    """Return `Route.plain_names` of a statement."""
    if statement.format is not None or statement.target_from is not None:
        return None
    if statement.ignore or statement.with_structure or statement.where is not None:
        return None
    if statement.fields == (_ALL,):
        return _SAME_NAMES
    names: dict[str, str] = {}
    for field in statement.fields:
        path, name = field.path, field.alias or field.natural_name
        if field.wildcard or path.part is not kcql.Part.VALUE or len(path.segments) != 1 or name not in PLAIN_FIELDS:
            return None
        names[path.segments[0]] = name
    return names if len(names) == len(set(names.values())) == len(statement.fields) else None


def _only_plus(topic_filter: str) -> int | None:
    """Return the index of the only `+` in the filter, which names the device by default; None without a single one."""
    levels = [index for index, level in enumerate(without_share(topic_filter).split("/")) if level == "+"]
    return levels[0] if len(levels) == 1 else None


def regex_routes(text: str, *, device_level: int | None, is_raw: bool = False) -> list[Route]:
    """Compile a `topic.regex.list`, such as `temperature:.*temperature, brightness:.*brightness`, into routes.

    A regular expression must match the whole MQTT topic. The name of the Kafka topic is the default metric. `is_raw`
    makes all of them raw routes. Raises RouteError for an entry that is not `kafka-topic:regular expression`.
    """
    routes = []
    for entry in _entries(text):
        pair = _REGEX_PAIR.fullmatch(entry)
        if pair is None or not pair[2]:
            raise RouteError(f"{entry!r} is not `kafka-topic:regular expression`")
        check_kafka_topic(pair[1], entry)
        if is_raw:
            check_raw_target(pair[1], entry)
        try:
            pattern = re2.compile(pair[2], _RE2_OPTIONS)
        except re2.error as error:
            raise RouteError(f"{entry!r}: not a regular expression of RE2: {_reason(error)}") from None
        routes.append(
            Route(
                text=entry,
                matches=_full_match(pattern),
                target=pair[1],
                device_level=device_level,
                metric=pair[1],
                is_raw=is_raw,
                plain_names=None if is_raw else _SAME_NAMES,
            )
        )
    return routes


def _full_match(pattern: Any) -> Callable[[str], bool]:
    return lambda topic: pattern.fullmatch(topic) is not None


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _entries(text: str) -> list[str]:
    """Split a list at its commas. A comma before a closing `}` or `]` belongs to the regular expression."""
    entries: list[str] = []
    end, following = len(text), ""
    # From the end, so that the next brace or bracket behind each comma is known.
    for at in range(len(text) - 1, -1, -1):
        if text[at] in "{[}]":
            following = text[at]
        if text[at] == "," and following not in ("}", "]"):
            entries.append(text[at + 1 : end].strip())
            end = at
    return [text[:end].strip(), *reversed(entries)]


def is_kafka_topic(name: str) -> bool:
    """Return whether Kafka accepts `name` as the name of a topic."""
    return _KAFKA_TOPIC.fullmatch(name) is not None and name not in (".", "..")


def check_kafka_topic(name: str, where: str) -> None:
    """Raise RouteError, with `where` in its text, when `name` cannot be the name of a Kafka topic."""
    if not is_kafka_topic(name):
        raise RouteError(f"{where}: {name!r} is not a Kafka topic (letters, digits, '.', '_', '-', at most 249)")


def check_raw_target(name: str, where: str) -> None:
    """Raise RouteError, with `where` in its text, when raw payloads in the topic `name` would break its readers."""
    declared = next((topic for topic in isotherm.schemas.topics() if topic.name == name), None)
    if declared is not None and declared.record is not None:
        raise RouteError(f"{where}: the readers of {name} expect {declared.record}; a raw route needs another topic")
    if name.startswith(_RESERVED):
        raise RouteError(f"{where}: topics that begin with {' or '.join(_RESERVED)} are not for payloads of devices")
