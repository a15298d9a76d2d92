"""The transforms and predicates that a configuration may name, with their options, as in Apache Kafka 4.3."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from isotherm.connector.java_patterns import JavaPattern
from isotherm.connector.transforms import casts, fields, headers, routing, structure, times
from isotherm.connector.transforms.date_format import DateFormat
from isotherm.connector.transforms.message import Message, Part, Transform
from isotherm.connector.transforms.schemas import PRIMITIVES

PACKAGE = "org.apache.kafka.connect.transforms."
Predicate = Callable[[Message], bool]


class OptionType(Enum):
    """How an option's text is read."""

    TEXT = auto()
    LIST = auto()
    BOOLEAN = auto()
    INT = auto()
    PATTERN = auto()
    """A regular expression of Java's."""


@dataclass(frozen=True)
class Option:
    """One option of a transform or predicate."""

    type: OptionType = OptionType.TEXT
    default: str | None = None
    required: bool = False
    allowed: tuple[str, ...] = ()


Options = Mapping[str, Any]
"""The options' values, read by their type; None for one without a value and a default."""


@dataclass(frozen=True)
class TransformClass:
    """A transform: its options, and what makes it.

    `make` raises ValueError for options that do not fit together. It gets the part that the class's suffix names; a
    class without parts gets the value.
    """

    options: Mapping[str, Option]
    make: Callable[[Options, Part], Transform]
    has_parts: bool = True


@dataclass(frozen=True)
class PredicateClass:
    """A predicate: its options, and what makes it."""

    options: Mapping[str, Option]
    make: Callable[[Options], Predicate]


_LIST = Option(OptionType.LIST, default="")
_REQUIRED_LIST = Option(OptionType.LIST, required=True)
_NULLS = "replace.null.with.default"
_WITH_NULLS = {_NULLS: Option(OptionType.BOOLEAN, default="true")}


def pairs(entries: list[str], example: str) -> dict[str, str]:
    """The entries `a:b` of a list. Raises ValueError."""
    found = {}
    for entry in entries:
        parts = entry.split(":")
        if len(parts) != 2 or not all(parts):
            raise ValueError(f"{entry!r} is not allowed; expected pairs such as {example}")
        found[parts[0].strip()] = parts[1].strip()
    return found


def _cast(options: Options, part: Part) -> Transform:
    spec: list[str] = options["spec"]
    wholes = [entry for entry in spec if ":" not in entry]
    types = {} if wholes else pairs(spec, "field:int32")
    for target in (*wholes, *types.values()):
        if target.lower() not in PRIMITIVES:
            raise ValueError(f"spec: {target!r} is not allowed; expected a type of {', '.join(PRIMITIVES)}")
    if wholes:
        if len(spec) > 1:
            raise ValueError("spec: the type of the whole data stands alone")
        return casts.cast_whole(part, wholes[0].lower())
    lower = {name: target.lower() for name, target in types.items()}
    return casts.cast_fields(part, lower, replaces_nulls=options[_NULLS])


def _header_from(options: Options, part: Part) -> Transform:
    if len(options["fields"]) != len(options["headers"]):
        raise ValueError("fields and headers must have the same number of entries")
    is_move = options["operation"] == "move"
    return headers.header_from(
        part, options["fields"], options["headers"], is_move=is_move, replaces_nulls=options[_NULLS]
    )


def _insert_field(options: Options, part: Part) -> Transform:
    kinds = ("topic", "partition", "offset", "timestamp", "static")
    inserted = {kind: options[f"{kind}.field"] for kind in kinds if options[f"{kind}.field"] is not None}
    if not inserted:
        raise ValueError("none of topic.field, partition.field, offset.field, timestamp.field, static.field is given")
    if "static" in inserted and options["static.value"] is None:
        raise ValueError("static.field needs static.value")
    return fields.insert_field(part, inserted, options["static.value"], replaces_nulls=options[_NULLS])


def _replace_field(options: Options, part: Part) -> Transform:
    renames = pairs(options["renames"], "old:new")
    return fields.replace_field(part, options["exclude"], options["include"], renames, replaces_nulls=options[_NULLS])


def _set_schema_metadata(options: Options, part: Part) -> Transform:
    if options["schema.name"] is None and options["schema.version"] is None:
        raise ValueError("neither schema.name nor schema.version is given")
    return structure.set_schema_metadata(part, options["schema.name"], options["schema.version"])


def _timestamp_converter(options: Options, part: Part) -> Transform:
    pattern = options["format"].strip() and options["format"]
    if options["target.type"] == "string" and not pattern:
        raise ValueError("target.type=string needs a format")
    return times.timestamp_converter(
        part,
        options["field"],
        options["target.type"],
        DateFormat(pattern) if pattern else None,
        options["unix.precision"],
        replaces_nulls=options[_NULLS],
    )


TRANSFORMS: Mapping[str, TransformClass] = {
    "Cast": TransformClass({"spec": _REQUIRED_LIST, **_WITH_NULLS}, _cast),
    "DropHeaders": TransformClass(
        {"headers": _REQUIRED_LIST}, lambda options, _: headers.drop_headers(options["headers"]), has_parts=False
    ),
    "ExtractField": TransformClass(
        {
            "field": Option(required=True),
            "field.syntax.version": Option(default="V1", allowed=("V1", "V2")),
            **_WITH_NULLS,
        },
        lambda options, part: structure.extract_field(
            part,
            structure.field_path(options["field"], is_nested=options["field.syntax.version"] == "V2"),
            replaces_nulls=options[_NULLS],
        ),
    ),
    "Filter": TransformClass({}, lambda options, _: lambda message: None, has_parts=False),
    "Flatten": TransformClass(
        {"delimiter": Option(default=".")}, lambda options, part: structure.flatten(part, options["delimiter"])
    ),
    "HeaderFrom": TransformClass(
        {
            "fields": _REQUIRED_LIST,
            "headers": _REQUIRED_LIST,
            "operation": Option(required=True, allowed=("move", "copy")),
            **_WITH_NULLS,
        },
        _header_from,
    ),
    "HoistField": TransformClass(
        {"field": Option(required=True)}, lambda options, part: structure.hoist_field(part, options["field"])
    ),
    "InsertField": TransformClass(
        {
            **dict.fromkeys(
                ("topic.field", "partition.field", "offset.field", "timestamp.field", "static.field", "static.value"),
                Option(),
            ),
            **_WITH_NULLS,
        },
        _insert_field,
    ),
    "InsertHeader": TransformClass(
        {"header": Option(required=True), "value.literal": Option(required=True)},
        lambda options, _: headers.insert_header(options["header"], options["value.literal"]),
        has_parts=False,
    ),
    "MaskField": TransformClass(
        {"fields": _REQUIRED_LIST, "replacement": Option(), **_WITH_NULLS},
        lambda options, part: fields.mask_field(
            part, options["fields"], options["replacement"], replaces_nulls=options[_NULLS]
        ),
    ),
    "RegexRouter": TransformClass(
        {"regex": Option(OptionType.PATTERN, required=True), "replacement": Option(required=True)},
        lambda options, _: routing.regex_router(options["regex"], options["replacement"]),
        has_parts=False,
    ),
    "ReplaceField": TransformClass(
        {"exclude": _LIST, "include": _LIST, "renames": _LIST, **_WITH_NULLS}, _replace_field
    ),
    "SetSchemaMetadata": TransformClass(
        {"schema.name": Option(), "schema.version": Option(OptionType.INT), **_WITH_NULLS}, _set_schema_metadata
    ),
    "TimestampConverter": TransformClass(
        {
            "field": Option(default=""),
            "target.type": Option(required=True, allowed=tuple(times.TARGETS)),
            "format": Option(default=""),
            "unix.precision": Option(default="milliseconds", allowed=times.PRECISIONS),
            **_WITH_NULLS,
        },
        _timestamp_converter,
    ),
    "TimestampRouter": TransformClass(
        {"topic.format": Option(default="${topic}-${timestamp}"), "timestamp.format": Option(default="yyyyMMdd")},
        lambda options, _: routing.timestamp_router(options["topic.format"], DateFormat(options["timestamp.format"])),
        has_parts=False,
    ),
    "ValueToKey": TransformClass(
        {"fields": _REQUIRED_LIST, **_WITH_NULLS},
        lambda options, _: fields.value_to_key(options["fields"], replaces_nulls=options[_NULLS]),
        has_parts=False,
    ),
}
"""The transforms by the name of their class without its package."""

PREDICATES: Mapping[str, PredicateClass] = {
    "HasHeaderKey": PredicateClass(
        {"name": Option(required=True)},
        lambda options: lambda message: any(name == options["name"] for name, _ in message.headers),
    ),
    "RecordIsTombstone": PredicateClass({}, lambda options: lambda message: message.value is None),
    "TopicNameMatches": PredicateClass(
        {"pattern": Option(OptionType.PATTERN, required=True)},
        lambda options: routing.topic_name_matches(options["pattern"]),
    ),
}
"""The predicates by the name of their class without its package."""


def read_option(option: Option, text: str) -> Any:
    """The value of an option. Raises ValueError that names what is allowed."""
    if option.type is OptionType.LIST:
        entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
        if option.required and not entries:
            raise ValueError("is empty; expected a list")
        return entries
    if option.type is OptionType.BOOLEAN:
        if text.strip().lower() not in ("true", "false"):
            raise ValueError(f"{text!r} is not allowed; expected true or false")
        return text.strip().lower() == "true"
    if option.type is OptionType.INT:
        if not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", text):
            raise ValueError(f"{text!r} is not allowed; expected a whole number")
        return int(text)
    if option.type is OptionType.PATTERN:
        try:
            return JavaPattern(text)
        except re.error as error:
            raise ValueError(f"{text!r} is no regular expression, or uses what only Java's has: {error}") from None
    if option.allowed and text not in option.allowed:
        raise ValueError(f"{text!r} is not allowed; expected one of {', '.join(option.allowed)}")
    if option.required and not text:
        raise ValueError("is empty; expected a value")
    return text
