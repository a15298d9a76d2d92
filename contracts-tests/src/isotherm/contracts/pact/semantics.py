"""Checks promises of topic files that Avro cannot express: key, times, units, ranges, windows, headers, identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

from isotherm.contracts.schema_catalog import JsonSchema
from isotherm.schemas import Topic

EARLIEST_MS = 1_000_000_000_000
"""September 2001: no device measured before, and a time in seconds lies below it."""
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""


def violations(
    topic: Topic, schema: JsonSchema, key: str, value: Mapping[str, Any], headers: Mapping[str, str], writer: str
) -> list[str]:
    """The promises of the topic file that a message breaks, each with its field; times are epoch milliseconds."""
    declared = topic.semantics
    return [
        *_key(topic, key, value),
        *_times(schema, value),
        *_units(declared.get("units"), value),
        *_ranges(declared, value),
        *_windows(declared, value),
        *_identity(schema, value),
        *_headers(declared.get("headers", {}).get(writer, {}), headers),
    ]


def _key(topic: Topic, key: str, value: Mapping[str, Any]) -> Iterator[str]:
    declared = topic.key
    if "field" in declared:
        wanted = value[declared["field"]]
    elif "|" in declared["format"] or "/" in declared["format"]:
        separator = "|" if "|" in declared["format"] else "/"
        parts = [name.removesuffix("_ms") for name in declared["format"].split(separator)]
        texts = [str(value[part]) for part in parts]
        wanted = separator.join(_escaped(text) if separator == "|" else text for text in texts)
    else:
        wanted = key or "anything but nothing"
    if key != wanted:
        yield f"key: {key!r} instead of {wanted!r}"


def _escaped(text: str) -> str:
    return quote(text, safe="".join(chr(code) for code in range(32, 127) if chr(code) not in "%|"))


def instants(schema: JsonSchema) -> list[str]:
    """The fields of a record that hold times, nullable ones included."""
    return [field["name"] for field in schema["fields"] if _is_instant(field["type"])]


def _is_instant(kind: Any) -> bool:
    if isinstance(kind, list):
        return any(_is_instant(branch) for branch in kind)
    return isinstance(kind, Mapping) and kind.get("logicalType") == "timestamp-millis"


def _times(schema: JsonSchema, value: Mapping[str, Any]) -> Iterator[str]:
    for name in instants(schema):
        instant = value[name]
        if instant is not None and not EARLIEST_MS <= instant <= LATEST_MS:
            yield f"{name}: {instant} is no epoch milliseconds of our time (seconds?)"


def _units(units: Mapping[str, str] | None, value: Mapping[str, Any]) -> Iterator[str]:
    wanted = (units or {}).get(value.get("metric", ""))
    if wanted is not None and value["unit"] != wanted:
        yield f"unit: {value['metric']} in {value['unit']!r} instead of {wanted!r}"


def _ranges(declared: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[str]:
    for name, least in declared.get("at_least", {}).items():
        if value[name] < least:
            yield f"{name}: {value[name]} is below {least}"
    ascending = [value[name] for name in declared.get("ascending", ())]
    if ascending != sorted(ascending):
        yield f"{', '.join(declared['ascending'])}: {ascending} do not ascend"
    for name, allowed in declared.get("one_of", {}).items():
        if value[name] not in allowed:
            yield f"{name}: {value[name]!r} is none of {', '.join(allowed)}"


def _windows(declared: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[str]:
    if "windows" in declared:
        start, length = value["window_start"], value["window_end"] - value["window_start"]
        if length <= 0 or start % length:
            yield f"window_start: {start} is not aligned to windows of {length} ms"


def _identity(schema: JsonSchema, value: Mapping[str, Any]) -> Iterator[str]:
    nullable = {field["name"] for field in schema["fields"] if isinstance(field["type"], list)}
    for name in schema["isotherm.identity"]:
        if value[name] in (None, "") and name not in nullable:
            yield f"{name}: empty, and part of the identity"


def _headers(declared: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[str]:
    always, optional = declared.get("always", ()), declared.get("optional", ())
    for name in always:
        if name not in headers:
            yield f"header {name}: missing"
    for name in headers:
        if not any(fnmatchcase(name, pattern) for pattern in (*always, *optional)):
            yield f"header {name}: not declared"
